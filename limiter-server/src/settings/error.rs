//! Errors of the settings.

use std::fmt;
use std::path::PathBuf;

/// The reason for rejected settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsError {
    /// The settings file cannot be read or parsed.
    File {
        /// The file.
        path: PathBuf,
        /// The reason, with line and column for a syntax error.
        reason: String,
    },
    /// The file of a secret cannot be read.
    Secret {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The value of a setting is invalid.
    Invalid {
        /// The name of the setting.
        setting: &'static str,
        /// The value; absent for values that can contain a password.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
    /// Settings contradict each other, or one of them is missing.
    Conflict(String),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, reason } => {
                write!(f, "cannot use the settings file {}: {reason}", path.display())
            }
            Self::Secret { path, reason } => {
                write!(f, "cannot read the secret in {}: {reason}", path.display())
            }
            Self::Invalid {
                setting,
                value,
                expected,
            } => write!(f, "setting {setting} is `{value}`, expected {expected}"),
            Self::Conflict(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for SettingsError {}
