//! The command `limiter-server`.

use std::process::ExitCode;

fn main() -> ExitCode {
    limiter_server::cli::run()
}
