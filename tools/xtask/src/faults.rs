//! Runs the fault suite, which is a separate program.

use crate::commands::{self, Strictness, cargo, root};
use crate::redis;

/// The faults whose gates are counts, or times with ample margin: a slow machine does not fail
/// them.
const IN_CI: [&str; 9] = [
    "cut-replies",
    "script-flush",
    "migration",
    "layouts",
    "processes",
    "eviction",
    "clock",
    "kill",
    "oom",
];

/// Builds the suite with optimisations, since it measures times, and runs it with the arguments.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    redis::ensure()?;
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--release", "--package", "limiter-faults", "--"])
        .args(args);
    commands::succeed_silently(command, "the fault suite")
}

/// Runs a part of the suite in the build of the tests.
pub(crate) fn run_in_ci(_: Strictness) -> Result<(), String> {
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--package", "limiter-faults", "--", "--quick"])
        .args(IN_CI.iter().flat_map(|fault| ["--only", fault]))
        .current_dir(root());
    commands::succeed(command, "the fault suite")
}
