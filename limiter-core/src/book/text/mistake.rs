//! What is wrong with a book.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use crate::error::{ConfigError, StoreError};

/// More are not told of one text.
const MOST_MISTAKES: usize = 50;

/// Why a book was not read, or not written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BookError {
    /// The text is refused. Nothing of it counts.
    Mistakes {
        /// At least one, in the order of the text; the first fifty.
        mistakes: Vec<Mistake>,
    },
    /// The file cannot be read.
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        error: Arc<io::Error>,
    },
    /// Somebody else has published since. Nothing was written.
    Conflict {
        /// The revision that was to be replaced; 0 for none.
        expected: u64,
        /// The revision that is there; 0 for none.
        found: u64,
    },
    /// What stands in Redis is older than what this process has seen there before, so it is not believed.
    Older {
        /// The revision that is there.
        found: u64,
        /// The revision that was seen.
        seen: u64,
    },
    /// A value that a change of the book wanted to put there cannot be used.
    Config(ConfigError),
    /// Redis gave no answer. A book that was to be published may have been.
    Store(StoreError),
}

/// One mistake of a text: `limits.toml:3:8: policy.search.rate is "10", expected …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    place: Arc<str>,
    line: usize,
    column: usize,
    message: String,
}

impl Mistake {
    /// The file, or the key in Redis.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The line, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column, counted from 1 in characters.
    #[must_use]
    pub fn column(&self) -> usize {
        self.column
    }

    /// What stands there, and what was expected.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Mistake {
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

impl fmt::Display for BookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mistakes { mistakes } => {
                for (index, mistake) in mistakes.iter().enumerate() {
                    let separator = if index > 0 { "\n" } else { "" };
                    write!(f, "{separator}{mistake}")?;
                }
                Ok(())
            }
            Self::File { path, .. } => write!(f, "cannot read the policy file `{}`", path.display()),
            Self::Conflict { expected, found } => {
                write!(
                    f,
                    "the book has revision {found}, expected {expected}: somebody else has published it"
                )
            }
            Self::Older { found, seen } => {
                write!(
                    f,
                    "the book has revision {found}, expected {seen} or a later one: publish it again"
                )
            }
            Self::Config(error) => error.fmt(f),
            Self::Store(_) => f.write_str("the book in Redis cannot be read or written"),
        }
    }
}

impl Error for BookError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::File { error, .. } => Some(error),
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl BookError {
    /// A mistake at the beginning of a text, or of all of it.
    pub(crate) fn one(place: &str, message: &str) -> Self {
        let mistake = Mistake {
            place: place.into(),
            line: 1,
            column: 1,
            message: message.to_owned(),
        };
        Self::Mistakes {
            mistakes: vec![mistake],
        }
    }

    /// The same of a text that lacks lines at its beginning.
    #[cfg(feature = "redis")]
    pub(super) fn up_by(mut self, lines: usize) -> Self {
        if let Self::Mistakes { mistakes } = &mut self {
            for mistake in mistakes {
                mistake.line = mistake.line.saturating_sub(lines).max(1);
            }
        }
        self
    }
}

impl From<ConfigError> for BookError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<StoreError> for BookError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Collects the mistakes of one text.
pub(super) struct Report<'t> {
    place: &'t str,
    text: &'t str,
    /// By the byte at which they are.
    told: Vec<(usize, String)>,
}

impl<'t> Report<'t> {
    pub(super) fn new(place: &'t str, text: &'t str) -> Self {
        let told = Vec::new();
        Self { place, text, told }
    }

    pub(super) fn tell(&mut self, at: usize, message: String) {
        self.told.push((at, message));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.told.len()
    }

    /// A part of the text as it stands, or the beginning of it.
    pub(super) fn excerpt(&self, span: std::ops::Range<usize>) -> String {
        const SHOWN: usize = 60;
        let part = self.text.get(span).unwrap_or_default();
        let line = part.lines().next().unwrap_or_default();
        let mut shown: String = line.chars().take(SHOWN).collect();
        if shown.len() < part.len() {
            shown.push('…');
        }
        shown
    }
}

impl From<Report<'_>> for BookError {
    fn from(report: Report<'_>) -> Self {
        let Report {
            place,
            text,
            mut told,
        } = report;
        told.sort_by_key(|(at, _)| *at);
        told.truncate(MOST_MISTAKES);
        let place: Arc<str> = place.into();
        let mistakes = told.into_iter().map(|(at, message)| {
            let before = text.get(..at).unwrap_or(text);
            let line = before.rsplit('\n').next().unwrap_or_default();
            Mistake {
                place: Arc::clone(&place),
                line: before.matches('\n').count() + 1,
                column: line.chars().count() + 1,
                message,
            }
        });
        Self::Mistakes {
            mistakes: mistakes.collect(),
        }
    }
}
