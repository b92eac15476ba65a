//! Entries of the audit as rows of tables: the action in words, and links to object and revision.
//!
//! The type of the answer of `GET audit`, which the timelines of an app and of an environment show.
//! Tests: below, `tests/pages/statements.rs`, `tests/pages/truth.rs`.

use serde::Deserialize;
use serde_json::Value;

use crate::admin::pages::links;
use crate::admin::pages::time::PageTime;

/// A recorded change or read.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AuditView {
    pub(super) at: PageTime,
    pub(super) actor: String,
    pub(super) action: String,
    pub(super) object: String,
    pub(super) detail: Option<String>,
}

/// A page of the audit.
#[derive(Debug, Deserialize)]
pub(super) struct AuditListView {
    pub(super) entries: Vec<AuditView>,
    pub(super) next: Option<i64>,
}

/// A row of a table of changes.
#[derive(Debug)]
pub(super) struct ChangeRow {
    pub(super) entry: AuditView,
    /// The page of the changed object.
    pub(super) href: Option<String>,
    /// The page that compares and restores the revision.
    pub(super) revision: Option<String>,
}

impl AuditView {
    /// Returns the action in words: `policy.update` is `changed the policy`.
    pub(super) fn words(&self) -> String {
        match self.action.as_str() {
            "policy.create" => "created the policy",
            "policy.update" => "changed the policy",
            "policy.delete" => "deleted the policy",
            "policy.import" => "imported the policy",
            "policy.key_reset" => "reset a key of the policy",
            "rules.create" | "rules.update" => "changed the rules",
            "rules.import" => "imported the rules",
            "proposal.create" => "proposed a change of the policy",
            "proposal.approve" => "approved a change of the policy",
            "proposal.reject" => "rejected a change of the policy",
            "grant.set" => "granted a role to",
            "grant.remove" => "removed a role of",
            "app.set" => "set the bounds of the app",
            "token.create" => "created the token",
            "token.revoke" => "revoked the token",
            "token.rotate" => "rotated the token",
            "overlays.create" | "overlays.update" => "changed suspensions and blocks",
            "overlays.import" => "imported suspensions and blocks",
            "alert.clear" => "cleared an alert",
            "key.read" => "looked at a key",
            "token.suspend" => "suspended the token",
            "token.confirm" => "confirmed the token",
            "namespace.change" => "changed the environment",
            "user.create" => "created the user",
            "user.change" => "changed the user",
            "user.remove" => "removed the user",
            "user.password" => "set the password of",
            "credentials.suspend" => "ended sessions and suspended tokens of",
            "policy.conflict" => "found another version of the policy in Redis",
            "overlays.conflict" => "found other suspensions and blocks in Redis",
            other => return other.replace(['.', '_'], " "),
        }
        .to_owned()
    }

    /// Returns the details; bounds as `max_capacity 100, max_rate 50/s`.
    pub(super) fn details(&self) -> String {
        let detail = self.detail.as_deref().unwrap_or_default();
        let fields = serde_json::from_str::<serde_json::Map<String, Value>>(detail);
        let Ok(fields) = fields else {
            return detail.to_owned();
        };
        let fields = fields.iter().filter(|(_, value)| !value.is_null());
        let fields = fields.map(|(name, value)| match value {
            Value::String(text) => format!("{name} {text}"),
            value => format!("{name} {value}"),
        });
        fields.collect::<Vec<_>>().join(", ")
    }

    /// Returns the revision that the change saved.
    fn revision(&self) -> Option<i64> {
        let (kind, _) = self.action.split_once('.')?;
        let detail = self.detail.as_deref()?.strip_prefix("revision ")?;
        let number = detail.split([' ', ':', ';']).next()?.parse().ok()?;
        matches!(kind, "policy" | "rules").then_some(number)
    }

    /// Returns the page that compares and restores the revision of the change.
    fn revision_href(&self, environment: &str) -> Option<String> {
        let number = self.revision()?.to_string();
        Some(match self.action.starts_with("rules.") {
            true => links::page(environment, &["rules", "history", &number]),
            false => links::page(environment, &["policies", &self.object, "history", &number]),
        })
    }

    /// Returns the page of the changed object.
    fn href(&self, environment: &str) -> Option<String> {
        let (kind, _) = self.action.split_once('.')?;
        match kind {
            "policy" | "proposal" if !self.object.is_empty() => {
                Some(links::page(environment, &["policies", &self.object]))
            }
            "rules" => Some(links::page(environment, &["rules"])),
            "app" => Some(links::page(environment, &["apps", &self.object])),
            _ => None,
        }
    }
}

impl ChangeRow {
    pub(super) fn new(environment: &str, entry: AuditView) -> Self {
        Self {
            href: entry.href(environment),
            revision: entry.revision_href(environment),
            entry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(action: &str, detail: &str) -> AuditView {
        AuditView {
            at: PageTime(0),
            actor: "ann".to_owned(),
            action: action.to_owned(),
            object: "shop".to_owned(),
            detail: Some(detail.to_owned()),
        }
    }

    #[test]
    fn details_of_bounds_are_in_words() {
        let bounds = entry(
            "app.set",
            r#"{"max_capacity":100,"max_rate":"50/s","min_rate":null}"#,
        );
        assert_eq!(bounds.details(), "max_capacity 100, max_rate 50/s");
        let saved = entry("policy.update", "revision 3 (api): Sale continues");
        assert_eq!(saved.details(), "revision 3 (api): Sale continues");
    }

    #[test]
    fn saved_revisions_have_a_page() {
        let saved = ChangeRow::new("prod", entry("policy.update", "revision 3 (api): Sale"));
        assert_eq!(saved.revision.as_deref(), Some("/e/prod/policies/shop/history/3"));
        assert_eq!(saved.href.as_deref(), Some("/e/prod/policies/shop"));
        let rules = ChangeRow::new("prod", entry("rules.update", "revision 3 (api): Sale"));
        assert_eq!(rules.revision.as_deref(), Some("/e/prod/rules/history/3"));
        let app = ChangeRow::new("prod", entry("app.set", "revision 3"));
        assert_eq!(app.revision, None);
    }
}
