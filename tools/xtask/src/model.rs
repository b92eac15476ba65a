//! Runs the tests named `model` under the schedules of a model checker. Not part of CI, because it
//! compiles all crates again.

use crate::commands::{self, cargo, root, target_dir};

/// `cargo xtask model`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut command = cargo();
    command
        .args([
            "test",
            "-p",
            "limiter-core",
            "--no-default-features",
            "--features",
            "redis",
            "--lib",
            "model::",
        ])
        .args(args)
        .current_dir(root())
        // These flags need a separate build of every crate.
        .env("CARGO_TARGET_DIR", target_dir().join("model"))
        .env("RUSTFLAGS", "--cfg shuttle");
    commands::succeed(command, "model")
}
