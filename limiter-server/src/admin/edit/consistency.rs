//! The check that the policies, rules, suspensions and blocks of a namespace fit together.

use std::collections::BTreeSet;

use limiter_core::registry::PolicyRegistry;

use crate::admin::edit::EditError;
use crate::overlay_text;
use crate::policy_text::{PolicyText, parse_rules};
use crate::publish::timestamp;
use crate::store::{DocumentKind, StoredDocument, now_micros};

/// The texts that replace saved ones.
#[derive(Debug, Default)]
pub(in crate::admin) struct ChangedTexts<'a> {
    pub(in crate::admin) policies: Vec<&'a PolicyText>,
    pub(in crate::admin) rules: Option<&'a str>,
    pub(in crate::admin) overlays: Option<&'a str>,
}

/// Repeats [`require_consistent`] in the transaction of a save, if documents have changed since.
pub(super) fn require_still_consistent(
    before: &[StoredDocument],
    now: &[StoredDocument],
    changes: &ChangedTexts<'_>,
) -> Result<(), String> {
    match before == now {
        true => Ok(()),
        false => require_consistent(now, changes).map_err(|error| match error {
            EditError::Invalid(reason) | EditError::Forbidden(reason) | EditError::Managed(reason) => reason,
            EditError::Store(error) => error.to_string(),
            EditError::Hidden => "there is no such document".to_owned(),
        }),
    }
}

/// Checks the registry that results from a change: a rule cannot name a deleted or a concurrency
/// policy, and the whole text has a largest size.
pub(in crate::admin) fn require_consistent(
    documents: &[StoredDocument],
    changes: &ChangedTexts<'_>,
) -> Result<(), EditError> {
    let registry = PolicyRegistry::new();
    let invalid = |error: limiter_core::ConfigError| EditError::Invalid(error.to_string());
    let changed: BTreeSet<&str> = changes.policies.iter().map(|text| text.name()).collect();
    // Another program can end a policy that rules name. The text in force keeps its tombstone, so
    // it prevents no edit but that of the rules.
    let is_named = |of: &StoredDocument| !of.is_deleted || changes.rules.is_none();
    let unchanged = |of: &&StoredDocument| match of.kind {
        DocumentKind::Policy => is_named(of) && !changed.contains(of.name.as_str()),
        DocumentKind::Overlays => changes.overlays.is_none(),
        DocumentKind::Rules => changes.rules.is_none(),
    };
    let (mut rules, mut overlays) = (changes.rules, changes.overlays);
    for document in documents.iter().filter(unchanged) {
        match document.kind {
            DocumentKind::Policy => document.policy()?.put_into(&registry).map_err(invalid)?,
            DocumentKind::Overlays => overlays = Some(&document.body),
            DocumentKind::Rules => rules = Some(&document.body),
        }
    }
    let now = timestamp(now_micros());
    // The text of a deletion is a tombstone, which has ended.
    for policy in changes.policies.iter().filter(|text| !text.is_ended_at(now)) {
        policy.put_into(&registry).map_err(invalid)?;
    }
    if let Some(overlays) = overlays {
        let overlays = overlay_text::parse(overlays)?;
        overlay_text::copy(&overlays, &registry).map_err(invalid)?;
    }
    if let Some(rules) = rules {
        let rules = parse_rules(rules)?;
        registry.set_rules(rules.iter().cloned()).map_err(invalid)?;
    }
    let parsed = PolicyRegistry::from_toml(&registry.to_toml());
    parsed.map(|_| ()).map_err(|error| {
        EditError::Invalid(format!(
            "the policies and rules of the namespace do not fit together: {error}"
        ))
    })
}
