//! Changes of rules.

use crate::admin::edit::consistency::{ChangedTexts, require_consistent};
use crate::admin::edit::{EditError, MANAGED_BY_UI, save_one};
use crate::admin::permissions::{Actor, AdminAction, Object, Permission, may};
use crate::policy_text::{parse_rules, rules_to_toml};
use crate::store::{Author, DocumentKind, Origin, RULES, SaveRequest, Store, now_micros};

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
    let documents = store.documents(namespace).await?;
    let changes = ChangedTexts {
        rules: Some(text),
        ..ChangedTexts::default()
    };
    let request = check_rules(actor, namespace, expected, text)?;
    require_consistent(&documents, &changes)?;
    let author = Author {
        name: actor.name.clone(),
        origin,
        reason,
        at: now_micros(),
    };
    Ok(save_one(store, (&request, &author), (&documents, &changes)).await?)
}

/// Returns the request that saves rules, if the caller may.
pub(super) fn check_rules(
    actor: &Actor,
    namespace: &str,
    expected: i64,
    text: &str,
) -> Result<SaveRequest, EditError> {
    match may(actor, AdminAction::ManageNamespace, Object::Namespace(namespace)) {
        Permission::Allowed => {}
        Permission::Hidden => return Err(EditError::Hidden),
        Permission::Proposal | Permission::Forbidden => {
            return Err(EditError::Forbidden(
                "rules need the role admin of the namespace".to_owned(),
            ));
        }
    }
    let rules = parse_rules(text)?;
    let body = rules_to_toml(&rules).map_err(|error| EditError::Invalid(error.to_string()))?;
    Ok(SaveRequest {
        namespace: namespace.to_owned(),
        kind: DocumentKind::Rules,
        name: RULES.to_owned(),
        expected,
        body,
        is_deletion: false,
        apps: None,
        note: None,
        managed_by: MANAGED_BY_UI.to_owned(),
    })
}
