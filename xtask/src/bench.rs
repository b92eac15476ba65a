//! Runs the benchmark, a program in a workspace of its own.

use crate::steps::{self, cargo, root, target_dir};
use crate::{instructions, redis};

/// Builds it with optimisations, and passes the arguments on.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some((first, rest)) = args.split_first()
        && first == "--instructions"
    {
        return instructions::run(rest);
    }
    redis::ensure()?;
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--release", "--manifest-path"])
        .arg(root().join("limiter-bench/Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir())
        .arg("--")
        .args(args);
    steps::succeed_silently(command, "the benchmark")
}
