//! `limiter-server check`: validates a policy file for CI.

use std::path::Path;

use crate::serve::policies;

/// Reads the file and reports all of its errors.
pub(super) fn run(file: &Path) -> Result<(), String> {
    let registry = policies::read(file)?;
    let policies = registry.names().len();
    println!("{}: policies: {policies}", file.display());
    Ok(())
}
