//! Changes of rules, and the check that policies and rules fit together.

use limiter_core::registry::PolicyRegistry;

use crate::admin::edit::{EditError, MANAGED_BY_UI};
use crate::admin::permissions::{Actor, AdminAction, Object, Permission, may};
use crate::overlay_text;
use crate::policy_text::{PolicyText, parse_rules, rules_to_toml};
use crate::store::{Author, DocumentKind, Origin, RULES, SaveRequest, Store, StoredDocument, now_micros};

/// Replaces the rules of a namespace.
///
/// # Errors
///
/// As [`save_policy`].
pub async fn save_rules(
    store: &Store,
    actor: &Actor,
    namespace: &str,
    expected: i64,
    text: &str,
    reason: Option<String>,
    origin: Origin,
) -> Result<i64, EditError> {
    match may(actor, AdminAction::ManageNamespace, Object::Namespace(namespace)) {
        Permission::Allowed => {}
        Permission::Hidden => return Err(EditError::Hidden),
        Permission::Proposal | Permission::Forbidden => {
            return Err(EditError::Forbidden(
                "rules need the role admin of the namespace".to_owned(),
            ));
        }
    }
    let documents = store.documents(namespace).await?;
    let rules = parse_rules(text)?;
    require_consistent(&documents, None, Some(text))?;
    let body = rules_to_toml(&rules).map_err(|error| EditError::Invalid(error.to_string()))?;
    let request = SaveRequest {
        namespace: namespace.to_owned(),
        kind: DocumentKind::Rules,
        name: RULES.to_owned(),
        expected,
        body,
        is_deletion: false,
        apps: None,
        note: None,
        managed_by: MANAGED_BY_UI.to_owned(),
    };
    let author = Author {
        name: actor.name.clone(),
        origin,
        reason,
        at: now_micros(),
    };
    Ok(store.save(&request, &author).await?.revision)
}

/// Checks the registry that results from a change: a rule cannot name a concurrency policy, and
/// the whole text has a largest size.
pub(in crate::admin) fn require_consistent(
    documents: &[StoredDocument],
    policy: Option<&PolicyText>,
    rules: Option<&str>,
) -> Result<(), EditError> {
    let registry = PolicyRegistry::new();
    let invalid = |error: limiter_core::ConfigError| EditError::Invalid(error.to_string());
    for document in documents {
        match document.kind {
            DocumentKind::Policy if policy.is_some_and(|of| of.name() == document.name) => {}
            DocumentKind::Policy => document.policy()?.put_into(&registry).map_err(invalid)?,
            DocumentKind::Overlays => {
                let overlays = overlay_text::parse(&document.body)?;
                overlay_text::copy(&overlays, &registry).map_err(invalid)?;
            }
            DocumentKind::Rules if rules.is_some() => {}
            DocumentKind::Rules => {
                let rules = parse_rules(&document.body)?;
                registry.set_rules(rules.iter().cloned()).map_err(invalid)?;
            }
        }
    }
    if let Some(policy) = policy {
        policy.put_into(&registry).map_err(invalid)?;
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
