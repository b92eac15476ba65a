//! `limiter-server import envoy`: converts a configuration of envoyproxy/ratelimit.
#![expect(clippy::print_stderr, reason = "warnings must not mix with the result")]

use std::path::Path;

use crate::cli::print_text;
use crate::import::convert;

/// Prints the policies and rules of a file as TOML, and warnings to standard error.
pub(super) fn envoy(file: &Path) -> Result<(), String> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read the configuration {shown}: {error}"))?;
    let imported = convert(&text).map_err(|reason| format!("{shown}: {reason}"))?;
    for warning in &imported.warnings {
        eprintln!("warning: {warning}");
    }
    print_text(&imported.registry.to_toml())?;
    Ok(())
}
