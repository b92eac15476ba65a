//! Metadata of a policy: author, times and a comment.
//!
//! Programs that manage a registry show them and write them to its text. They are no part of the
//! policy, so they change no decision. Tests: `tests/registry/text.rs`.

use crate::units::Timestamp;

/// Notes about a policy of a registry: its author, the last change, and a comment. They change no
/// decision.
///
/// ```
/// use limiter_core::registry::{PolicyEntry, PolicyMetadata, PolicyRegistry};
/// use limiter_core::Policy;
///
/// let search = Policy::token_bucket("search").capacity(20).rate("10/s").build()?;
/// let metadata = PolicyMetadata::new().with_created_by("ann").with_note("agreed with the search team");
/// let registry = PolicyRegistry::new().with(PolicyEntry::new(search).with_metadata(metadata));
///
/// let text = registry.to_toml();
/// assert!(text.contains("created_by = \"ann\""));
/// let read = PolicyRegistry::from_toml(&text).unwrap().get("search").unwrap();
/// assert_eq!(read.metadata().note(), Some("agreed with the search team"));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyMetadata {
    pub(super) created_by: Option<String>,
    pub(super) created_at: Option<Timestamp>,
    pub(super) updated_by: Option<String>,
    pub(super) updated_at: Option<Timestamp>,
    pub(super) note: Option<String>,
}

impl PolicyMetadata {
    /// Creates empty metadata.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            created_by: None,
            created_at: None,
            updated_by: None,
            updated_at: None,
            note: None,
        }
    }

    /// Sets the author of the policy. Default: none.
    #[must_use]
    pub fn with_created_by(self, author: impl Into<String>) -> Self {
        Self {
            created_by: Some(author.into()),
            ..self
        }
    }

    /// Sets the time at which the policy was created. Default: none.
    #[must_use]
    pub fn with_created_at(self, at: impl Into<Timestamp>) -> Self {
        Self {
            created_at: Some(at.into()),
            ..self
        }
    }

    /// Sets the author of the last change. Default: none.
    #[must_use]
    pub fn with_updated_by(self, author: impl Into<String>) -> Self {
        Self {
            updated_by: Some(author.into()),
            ..self
        }
    }

    /// Sets the time of the last change. Default: none.
    #[must_use]
    pub fn with_updated_at(self, at: impl Into<Timestamp>) -> Self {
        Self {
            updated_at: Some(at.into()),
            ..self
        }
    }

    /// Sets the comment. Default: none.
    #[must_use]
    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self {
            note: Some(note.into()),
            ..self
        }
    }

    /// Returns the author of the policy.
    #[must_use]
    pub fn created_by(&self) -> Option<&str> {
        self.created_by.as_deref()
    }

    /// Returns the time at which the policy was created.
    #[must_use]
    pub fn created_at(&self) -> Option<Timestamp> {
        self.created_at
    }

    /// Returns the author of the last change.
    #[must_use]
    pub fn updated_by(&self) -> Option<&str> {
        self.updated_by.as_deref()
    }

    /// Returns the time of the last change.
    #[must_use]
    pub fn updated_at(&self) -> Option<Timestamp> {
        self.updated_at
    }

    /// Returns the comment.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Returns whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::new()
    }
}
