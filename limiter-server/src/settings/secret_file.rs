//! Secrets in files.

use std::fs;
use std::path::Path;

use crate::settings::SettingsError;

/// Reads a secret from a file, without the line break at its end. An empty one is an error.
pub(super) fn read_secret(path: &Path) -> Result<String, SettingsError> {
    let text = fs::read_to_string(path).map_err(|error| SettingsError::Secret {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(SettingsError::Secret {
            path: path.to_owned(),
            reason: "the file is empty".to_owned(),
        }),
        secret => Ok(secret.to_owned()),
    }
}
