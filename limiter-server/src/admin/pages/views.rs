//! The answers of the API as pages read them.

use serde::Deserialize;
use serde_json::Value;

use crate::admin::pages::time::PageTime;

/// A policy.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PolicyView {
    pub(super) name: String,
    pub(super) sentence: Option<String>,
    pub(super) enforcement: Option<String>,
    pub(super) apps: Option<Vec<String>>,
    pub(super) state: String,
    pub(super) updated_by: String,
    pub(super) updated_at: PageTime,
}

/// A page of policies.
#[derive(Debug, Deserialize)]
pub(super) struct PolicyListView {
    pub(super) policies: Vec<PolicyView>,
    pub(super) next: Option<String>,
}

/// An app.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AppView {
    pub(super) name: String,
    pub(super) role: Option<String>,
}

/// The apps of a namespace.
#[derive(Debug, Deserialize)]
pub(super) struct AppListView {
    pub(super) apps: Vec<AppView>,
}

/// A namespace.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct NamespaceView {
    pub(super) name: String,
    #[serde(default)]
    pub(super) label: Option<String>,
    #[serde(default)]
    pub(super) colour: Option<String>,
}

/// The namespaces that the user may read.
#[derive(Debug, Deserialize)]
pub(super) struct NamespaceListView {
    pub(super) namespaces: Vec<NamespaceView>,
}

/// The status of a namespace.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct StatusView {
    pub(super) read_only: bool,
    pub(super) pending: i64,
    pub(super) publisher_error: Option<String>,
    pub(super) alerts: Vec<Value>,
}

impl PolicyView {
    /// The word and the colour of the enforcement.
    pub(super) fn enforcement_word(&self) -> &'static str {
        match self.enforcement.as_deref() {
            Some("enforce") => "Enforced",
            Some("shadow") => "Shadow",
            Some("off") => "Off",
            _ => "Not known",
        }
    }

    /// The class of the enforcement.
    pub(super) fn enforcement_class(&self) -> &'static str {
        match self.enforcement.as_deref() {
            Some("enforce") => "ok",
            Some("shadow") => "shadow",
            _ => "off",
        }
    }

    /// The sentence, or a statement that the text has errors.
    pub(super) fn shown_sentence(&self) -> &str {
        self.sentence
            .as_deref()
            .unwrap_or("The text of this policy has errors.")
    }

    /// Whether the policy is in force in its newest revision.
    pub(super) fn is_in_force(&self) -> bool {
        self.state == "published"
    }

    /// The state of the publication.
    pub(super) fn publication_word(&self) -> &'static str {
        match self.state.as_str() {
            "published" => "In force",
            "conflict" => "Conflict",
            _ => "Publishing",
        }
    }

    /// The class of the state of the publication.
    pub(super) fn publication_class(&self) -> &'static str {
        match self.state.as_str() {
            "published" => "ok",
            "conflict" => "bad",
            _ => "waiting",
        }
    }
}
