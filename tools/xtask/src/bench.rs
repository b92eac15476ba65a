//! Runs the benchmark, which is a separate workspace.

use crate::commands::{self, cargo, root, target_dir};
use crate::{gateway_bench, instructions, redis};

/// Builds it with optimisations, and passes the arguments on. A run that writes the report counts
/// instructions first.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some((first, rest)) = args.split_first()
        && first == "--instructions"
    {
        return instructions::run(rest);
    }
    if args == ["--gateway"] || args == ["--gateway", "--require"] {
        return gateway_bench::run(args.len() > 1);
    }
    redis::ensure()?;
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--release", "--manifest-path"])
        .arg(root().join("tools/limiter-bench/Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir())
        .arg("--")
        .args(args);
    if args.is_empty() || matches!(args, [cell, _] if cell == "--redis-cell") {
        match instructions::measure() {
            Ok(_) => {
                command.arg("--counts").arg(instructions::file());
            }
            Err(why) => println!("==> bench: the report has no instruction counts: {why}"),
        }
    }
    commands::succeed_silently(command, "the benchmark")
}
