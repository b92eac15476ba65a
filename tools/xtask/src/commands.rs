//! The commands that the chores run, and the directories in which they run.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The treatment of warnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Denies warnings of clippy and rustdoc only; a new compiler must not prevent tests.
    Lenient,
    DenyWarnings,
}

/// Shows a command, and runs it.
pub(crate) fn succeed(command: Command, step: &str) -> Result<(), String> {
    let name = |word: &std::ffi::OsStr| Path::new(word).file_name().unwrap_or(word).display().to_string();
    let args = command.get_args().map(|arg| arg.display().to_string());
    let shown: Vec<_> = [name(command.get_program())].into_iter().chain(args).collect();
    let shown = shown.join(" ");
    println!("==> {step}: {shown}");
    succeed_silently(command, &format!("`{shown}`"))
}

/// Runs the command without printing its line, because another program parses the output.
pub(crate) fn succeed_silently(mut command: Command, shown: &str) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|error| format!("cannot run {shown}: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{shown}, {status}"))
    }
}

/// Returns the standard output of a command, or its standard error if it fails.
pub(crate) fn text(mut command: Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}, {}: {}", output.status, complaint.trim()))
}

/// Returns the directory of the workspace.
pub(crate) fn root() -> &'static Path {
    // This crate is in the folder `tools` of the workspace.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap_or_else(|| Path::new("."))
}

/// Returns the directory in which cargo builds; chores with flags of their own build in a directory
/// within.
pub(crate) fn target_dir() -> PathBuf {
    root().join(
        env::var_os("CARGO_TARGET_DIR")
            .filter(|dir| !dir.is_empty())
            .unwrap_or_else(|| "target".into()),
    )
}

/// Returns the cargo that runs this, so that `cargo +toolchain xtask` means that toolchain
/// throughout.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
