//! The answers of the API as pages read them: policies, revisions, proposals, people, tokens,
//! status.
//!
//! The types have the fields that pages show, and ignore others. An answer that does not fit its
//! type is an internal error. Test: `tests/pages.rs`.

use serde::{Deserialize, Serialize};

use crate::admin::numbers::grouped;
use crate::admin::pages::publication;
use crate::admin::pages::time::PageTime;
use crate::admin::sentence::sentence;
use crate::policy_text::PolicyText;

/// A policy.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PolicyView {
    pub(super) name: String,
    pub(super) sentence: Option<String>,
    pub(super) enforcement: Option<String>,
    pub(super) apps: Option<Vec<String>>,
    pub(super) toml: String,
    pub(super) note: Option<String>,
    pub(super) revision: i64,
    pub(super) managed_by: String,
    pub(super) state: String,
    pub(super) updated_by: String,
    pub(super) updated_at: PageTime,
}

impl PolicyView {
    /// Returns the address of the source, if the owner is one.
    pub(super) fn source(&self) -> Option<&str> {
        let is_address = |scheme: &str| self.managed_by.starts_with(scheme);
        // Other schemes, such as `javascript:`, could run a script.
        (is_address("https://") || is_address("http://")).then_some(self.managed_by.as_str())
    }
}

/// A revision of a policy.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RevisionView {
    #[serde(rename = "revision")]
    pub(super) number: i64,
    #[serde(rename = "deleted")]
    pub(super) is_deletion: bool,
    state: String,
    pub(super) origin: String,
    pub(super) author: String,
    pub(super) reason: Option<String>,
    pub(super) toml: String,
    pub(super) created_at: PageTime,
}

/// A page of revisions.
#[derive(Debug, Deserialize)]
pub(super) struct RevisionListView {
    pub(super) revisions: Vec<RevisionView>,
    pub(super) next: Option<i64>,
}

/// A change that waits for an owner.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ProposalView {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) base: i64,
    pub(super) toml: String,
    pub(super) reason: Option<String>,
    pub(super) author: String,
    pub(super) created_at: PageTime,
}

/// Proposals.
#[derive(Debug, Deserialize)]
pub(super) struct ProposalListView {
    pub(super) proposals: Vec<ProposalView>,
    pub(super) next: Option<String>,
}

/// A policy without its text.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PolicySummary {
    pub(super) name: String,
    pub(super) apps: Option<Vec<String>>,
    pub(super) state: String,
    pub(super) has_trial: bool,
    /// The declared names of the parts of keys.
    pub(super) key_parts: Vec<String>,
    pub(super) updated_by: String,
    pub(super) updated_at: PageTime,
}

/// A page of policies without their texts.
#[derive(Debug, Deserialize)]
pub(super) struct SummaryListView {
    pub(super) policies: Vec<PolicySummary>,
    pub(super) next: Option<String>,
}

/// A page of policies.
#[derive(Debug, Deserialize)]
pub(super) struct PolicyListView {
    pub(super) policies: Vec<PolicyView>,
    pub(super) next: Option<String>,
}

/// The bounds of editors.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct BoundsView {
    pub(super) min_capacity: Option<u64>,
    pub(super) max_capacity: Option<u64>,
    pub(super) min_rate: Option<String>,
    pub(super) max_rate: Option<String>,
}

/// A role of a user or group in an app.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct GrantView {
    pub(super) subject_kind: String,
    pub(super) subject: String,
    pub(super) app: String,
    pub(super) role: String,
    pub(super) created_by: String,
    pub(super) created_at: PageTime,
}

/// The grants of a namespace.
#[derive(Debug, Deserialize)]
pub(super) struct GrantListView {
    pub(super) grants: Vec<GrantView>,
}

/// A bearer token.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct TokenView {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) scopes: Vec<String>,
    pub(super) state: String,
    pub(super) created_by: String,
    expires_at: PageTime,
    revoked_at: Option<PageTime>,
    used_day: Option<i64>,
}

/// The tokens of a namespace.
#[derive(Debug, Deserialize)]
pub(super) struct TokenListView {
    pub(super) tokens: Vec<TokenView>,
}

/// A user.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct UserView {
    pub(super) name: String,
    pub(super) admin: bool,
    pub(super) disabled: bool,
    pub(super) has_password: bool,
    pub(super) created_by: String,
    pub(super) created_at: PageTime,
}

/// All users.
#[derive(Debug, Deserialize)]
pub(super) struct UserListView {
    pub(super) users: Vec<UserView>,
}

/// An app.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AppView {
    pub(super) name: String,
    pub(super) bounds: Option<BoundsView>,
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

impl BoundsView {
    /// Returns the bounds as the API has them, so that a form states those that it replaces.
    pub(super) fn json(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Returns the bounds as one sentence.
    pub(super) fn text(&self) -> String {
        let capacities = [self.min_capacity, self.max_capacity].map(|of| of.map(grouped));
        let rate = |text: &String| match text.split_once('/') {
            Some((number, per)) => format!("{}/{per}", grouped(number)),
            None => grouped(text),
        };
        let rates = [&self.min_rate, &self.max_rate].map(|of| of.as_ref().map(rate));
        let range = |name: &str, [min, max]: [Option<String>; 2]| match (min, max) {
            (None, None) => format!("any {name}"),
            (Some(min), None) => format!("{name} from {min}"),
            (None, Some(max)) => format!("{name} to {max}"),
            (Some(min), Some(max)) => format!("{name} from {min} to {max}"),
        };
        format!("{}, {}.", range("capacity", capacities), range("rate", rates))
    }

    /// Returns the lower bound of the capacity for a field.
    pub(super) fn min_capacity_text(&self) -> String {
        self.min_capacity
            .map(|number| number.to_string())
            .unwrap_or_default()
    }

    /// Returns the upper bound of the capacity for a field.
    pub(super) fn max_capacity_text(&self) -> String {
        self.max_capacity
            .map(|number| number.to_string())
            .unwrap_or_default()
    }
}

impl TokenView {
    /// Returns the class of the state.
    pub(super) fn class(&self) -> &'static str {
        match self.state.as_str() {
            "valid" => "ok",
            "suspended" => "waiting",
            _ => "off",
        }
    }

    /// Returns the word of the state.
    pub(super) fn word(&self) -> &'static str {
        match self.state.as_str() {
            "valid" => "Valid",
            "suspended" => "Suspended",
            "revoked" => "Revoked",
            "expired" => "Expired",
            _ => "Not known",
        }
    }

    /// Returns the time of the end.
    pub(super) fn end(&self) -> PageTime {
        self.revoked_at
            .map_or(self.expires_at, |at| at.min(self.expires_at))
    }

    /// Returns the day of the last use.
    pub(super) fn used(&self) -> Option<String> {
        const MICROS_PER_DAY: i64 = 86_400_000_000;
        let day = self
            .used_day
            .map(|day| PageTime(day.saturating_mul(MICROS_PER_DAY)).utc());
        day.map(|day| day.chars().take("2026-11-23".len()).collect())
    }
}

impl RevisionView {
    /// Returns whether another program replaced the revision before its publication.
    pub(super) fn has_conflict(&self) -> bool {
        self.state == "conflict"
    }

    /// Returns the program that saved the revision.
    pub(super) fn origin_text(&self) -> &str {
        match self.origin.as_str() {
            "api" => "page or API",
            "command" => "command line",
            "outside" => "another program",
            "restore" => "restored",
            "proposal" => "approved proposal",
            other => other,
        }
    }
}

impl ProposalView {
    /// Returns the proposed policy as a sentence.
    pub(super) fn sentence(&self) -> String {
        let text = PolicyText::parse(&self.name, &self.toml);
        text.map_or_else(|_| "The text has errors.".to_owned(), |text| sentence(&text))
    }
}

impl PolicyView {
    /// Returns the word and the colour of the enforcement.
    pub(super) fn enforcement_word(&self) -> &'static str {
        match self.enforcement.as_deref() {
            Some("enforce") => "Enforced",
            Some("shadow") => "Shadow",
            Some("off") => "Off",
            _ => "Not known",
        }
    }

    /// Returns the class of the enforcement.
    pub(super) fn enforcement_class(&self) -> &'static str {
        match self.enforcement.as_deref() {
            Some("enforce") => "ok",
            Some("shadow") => "shadow",
            _ => "off",
        }
    }

    /// Returns the sentence, or a statement that the text has errors.
    pub(super) fn shown_sentence(&self) -> &str {
        self.sentence
            .as_deref()
            .unwrap_or("The text of this policy has errors.")
    }

    /// Returns whether the policy is in force in its newest revision.
    pub(super) fn is_in_force(&self) -> bool {
        publication::is_in_force(&self.state)
    }

    /// Returns the state of the publication.
    pub(super) fn publication_word(&self) -> &'static str {
        publication::word(&self.state)
    }

    /// Returns the class of the state of the publication.
    pub(super) fn publication_class(&self) -> &'static str {
        publication::class(&self.state)
    }
}
