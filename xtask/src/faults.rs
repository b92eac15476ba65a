//! Runs the fault suite, which is a program of its own.

use crate::redis;
use crate::steps::cargo;

/// Builds the suite with optimisations, since its figures are times, and passes the arguments on to it.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    redis::ensure()?;
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--release", "--package", "limiter-faults", "--"])
        .args(args);
    let status = command
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("the fault suite, {status}"))
    }
}
