//! Secrets in files.

use std::fs;
use std::path::Path;

use crate::settings::SettingsError;

/// Reads a secret from a file, without the line break at its end.
pub(super) fn read_secret(path: &Path) -> Result<String, SettingsError> {
    let text = fs::read_to_string(path).map_err(|error| SettingsError::Secret {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
