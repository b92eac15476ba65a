//! The command `limiter-server`.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// HTTP/2 and messages allocate often: with the allocator of the system, a call of the rate limit
/// service on Redis takes a tenth more processor time. Version 2 without huge pages keeps 100,000
/// keys in 37 to 39 MB, version 3 in 65 (`tests/footprint.rs`).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    limiter_server::cli::run()
}
