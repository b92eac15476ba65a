//! Errors of reading and publishing a registry.
//!
//! `RegistryError` distinguishes causes that need different reactions: an invalid text, a text for
//! newer programs, a conflicting publication, an unreadable file, an unavailable Redis.
//! `ParseError` is one error of a text with file, line and column, so that editors can show it.
//! Tests: `tests/registry/text_errors.rs`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use crate::error::{ConfigError, StoreError};

/// The reason why a registry was not read or not written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RegistryError {
    /// The text is invalid. It is rejected, and the last policies of its source stay in effect. If
    /// the errors of a text in Redis are in single policies, only these keep their previous
    /// version, and the others apply.
    Parse {
        /// At least one error, in the order of the text; at most fifty.
        errors: Vec<ParseError>,
    },
    /// The text needs a newer version of this library. It is rejected, and the last policies of its
    /// source stay in effect.
    NewerFormat {
        /// The file, or the key in Redis.
        place: String,
        /// The lowest format that a reader of the text must know: its `min_reader`.
        min_reader: u32,
        /// The format that this version knows:
        /// [`PolicyRegistry::FORMAT`](crate::registry::PolicyRegistry::FORMAT).
        reader: u32,
    },
    /// The file cannot be read.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        error: Arc<io::Error>,
    },
    /// Another client has published a new revision since. Nothing was written.
    Conflict {
        /// The revision that was to be replaced; 0 for none.
        expected: u64,
        /// The revision in Redis; 0 for none.
        found: u64,
    },
    /// The text in Redis is older than one that this process has received before, and is rejected.
    Older {
        /// The revision in Redis.
        found: u64,
        /// The highest revision that this process has received.
        seen: u64,
    },
    /// A value that a change of the registry contains is invalid.
    Config(ConfigError),
    /// Redis did not answer. A publication may have succeeded nevertheless.
    Store(StoreError),
}

/// One error of a text: `limits.toml:3:8: policy.search.rate is "10", expected …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    pub(super) place: Arc<str>,
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) message: String,
}

impl ParseError {
    /// Returns the name of the file, or of the key in Redis.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the line, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the column, counted from 1 in characters.
    #[must_use]
    pub fn column(&self) -> usize {
        self.column
    }

    /// Returns the value that was found, and the expected value.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            line,
            column,
            message,
        } = self;
        write!(f, "{place}:{line}:{column}: {message}")
    }
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parse { errors } => {
                for (index, error) in errors.iter().enumerate() {
                    let separator = if index > 0 { "\n" } else { "" };
                    write!(f, "{separator}{error}")?;
                }
                Ok(())
            }
            Self::NewerFormat {
                place,
                min_reader,
                reader,
            } => write!(
                f,
                "{place}: the text needs a reader of format {min_reader}, and this program reads format {reader}: update the program"
            ),
            Self::File { path, .. } => write!(f, "cannot read the policy file `{}`", path.display()),
            Self::Conflict { expected, found } => {
                write!(
                    f,
                    "the registry has revision {found}, expected {expected}: another client has published it; read it again and repeat the change"
                )
            }
            Self::Older { found, seen } => {
                write!(
                    f,
                    "the registry has revision {found}, expected {seen} or a later one: publish it again"
                )
            }
            Self::Config(error) => error.fmt(f),
            Self::Store(_) => f.write_str("the registry in Redis cannot be read or written"),
        }
    }
}

impl Error for RegistryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::File { error, .. } => Some(error),
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl RegistryError {
    /// Creates an error at the beginning of a text, or about the whole text.
    pub(crate) fn single(place: &str, message: &str) -> Self {
        let error = ParseError {
            place: place.into(),
            line: 1,
            column: 1,
            message: message.to_owned(),
        };
        Self::Parse { errors: vec![error] }
    }

    /// Creates an error about the whole text, for a list of errors.
    #[cfg(feature = "redis")]
    pub(crate) fn in_whole_text(place: &str, message: String) -> ParseError {
        ParseError {
            place: place.into(),
            line: 1,
            column: 1,
            message,
        }
    }

    /// Moves the line numbers up by the number of lines that precede the given text.
    #[cfg(feature = "redis")]
    pub(super) fn shift_lines_up(mut self, lines: usize) -> Self {
        if let Self::Parse { errors } = &mut self {
            for error in errors {
                error.line = error.line.saturating_sub(lines).max(1);
            }
        }
        self
    }
}

impl From<ConfigError> for RegistryError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<StoreError> for RegistryError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
