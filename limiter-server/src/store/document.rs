//! Versioned documents: policies, and the rules and the overlays of a namespace.
//!
//! A document has two numbers: its newest revision, and the revision in force. They differ between
//! a save and its publication, and `DocumentState` states the reason. A deleted document keeps its
//! row, so that the numbers of its revisions continue when its name is used again.
//!
//! Tests: `deleted_document_can_be_created_again` and `confirmation_clears_the_outbox` in
//! `tests/support/store_suite.rs`.

use crate::policy_text::{PolicyText, TextError};

/// A kind of document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentKind {
    /// One policy with the quotas of its keys.
    Policy,
    /// All rules of a namespace.
    Rules,
    /// All suspensions and blocks of a namespace.
    Overlays,
}

impl DocumentKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Rules => "rules",
            Self::Overlays => "overlays",
        }
    }

    pub(super) fn parse(name: &str) -> Self {
        match name {
            "rules" => Self::Rules,
            "overlays" => Self::Overlays,
            _ => Self::Policy,
        }
    }
}

/// The state of the publication of a document or a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentState {
    /// Saved, and not in force yet.
    Pending,
    /// In force.
    Published,
    /// Saved, and not published because the policy was changed outside meanwhile.
    Conflict,
}

impl DocumentState {
    /// Returns the name in the database and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Published => "published",
            Self::Conflict => "conflict",
        }
    }

    pub(super) fn parse(name: &str) -> Self {
        match name {
            "published" => Self::Published,
            "conflict" => Self::Conflict,
            _ => Self::Pending,
        }
    }
}

/// The program through which a revision was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The API or the pages.
    Api,
    /// `limiter-server policy apply` or `import`.
    Command,
    /// The registry in Redis, written by another program.
    Outside,
    /// An earlier revision.
    Restore,
    /// An approved proposal.
    Proposal,
    /// The removal of entries that have ended.
    Retention,
}

impl Origin {
    /// Returns the name in the database and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Command => "command",
            Self::Outside => "outside",
            Self::Restore => "restore",
            Self::Proposal => "proposal",
            Self::Retention => "retention",
        }
    }
}

/// The author of a change.
#[derive(Clone, Debug)]
pub struct Author {
    /// The name of the user or token.
    pub name: String,
    /// The program.
    pub origin: Origin,
    /// The reason that the author gave.
    pub reason: Option<String>,
    /// The time in microseconds.
    pub at: i64,
}

/// The current version of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDocument {
    /// The namespace.
    pub namespace: String,
    /// The kind.
    pub kind: DocumentKind,
    /// The name of the policy.
    pub name: String,
    /// The number of the newest revision, from 1.
    pub revision: i64,
    /// The number of the revision in force; 0 for none.
    pub published: i64,
    /// The state of the publication of the newest revision.
    pub state: DocumentState,
    /// True if the newest revision is a deletion.
    pub is_deleted: bool,
    /// The owner of the text: `ui`, or the source that `policy apply` names.
    pub managed_by: String,
    /// The apps; `None` for all.
    pub apps: Option<Vec<String>>,
    /// The text.
    pub body: String,
    /// The note of the policy.
    pub note: Option<String>,
    /// The author of the first revision.
    pub created_by: String,
    /// The time of the first revision.
    pub created_at: i64,
    /// The author of the newest revision.
    pub updated_by: String,
    /// The time of the newest revision.
    pub updated_at: i64,
}

impl StoredDocument {
    /// Returns the policy of the text.
    ///
    /// # Errors
    ///
    /// [`TextError`] for rules, and for a text of a newer program.
    pub fn policy(&self) -> Result<PolicyText, TextError> {
        PolicyText::parse_stored(&self.name, &self.body)
    }
}

/// Apps are stored as a JSON array.
pub(super) fn read_apps(text: Option<&str>) -> Option<Vec<String>> {
    text.and_then(|text| serde_json::from_str(text).ok())
}

pub(super) fn write_apps(apps: Option<&[String]>) -> Option<String> {
    apps.map(|apps| serde_json::json!(apps).to_string())
}
