//! The content of the database: apps, users, policies with their history, and a day of usage.
//!
//! `fill` saves the content by the functions of the store that the server uses, in the order of
//! time, so that revisions, the audit and the outbox are consistent. All times are relative to the
//! start. Tests: below, and `tests/demo.rs`.

mod day;
mod edits;

use limiter_core::registry::PolicyMetadata;
use limiter_core::{Inheritance, Timestamp};

use crate::admin::auth::TOKEN_PREFIX;
pub(super) use crate::demo::content::edits::SavedEdit;
use crate::demo::content::edits::{EDITS, RULES_TEXT};
use crate::policy_text::{PolicyText, parse_rules, rules_to_toml};
use crate::secret::{Secret, random_id};
use crate::store::{
    Author, DocumentKind, NewAccount, NewProposal, NewStoredToken, Origin, RULES, SaveRequest, Store,
    StoreError, StoredApp, StoredGrant, SubjectKind,
};

/// The administrator of the demonstration.
pub const ADMIN: &str = "demo";
/// The other users with their roles: name, app, role.
pub const USERS: [(&str, &str, &str); 4] = [
    ("olivia", "search", "owner"),
    ("olivia", "checkout", "owner"),
    ("eddie", "search", "editor"),
    ("vera", "*", "viewer"),
];
/// The apps with their bounds.
const APPS: [(&str, Option<&str>); 3] = [
    ("search", Some(r#"{"max_capacity":100,"max_rate":"50/s"}"#)),
    ("checkout", None),
    ("accounts", None),
];
pub(super) const HOUR: i64 = 3_600_000_000;
const RULES_HOURS_AGO: i64 = 49;

/// Fills an empty database. All users have one password, given by its hash.
///
/// # Errors
///
/// The reason as one message.
pub async fn fill(store: &Store, namespace: &str, password: &str, now: i64) -> Result<(), String> {
    let failed = |error: StoreError| format!("cannot fill the database of the demonstration: {error}");
    add_people(store, namespace, password, now)
        .await
        .map_err(failed)?;
    let (older, newer): (Vec<_>, Vec<_>) = EDITS.iter().partition(|edit| edit.hours_ago > RULES_HOURS_AGO);
    for edit in older {
        save(store, namespace, edit, now).await?;
    }
    save_rules(store, namespace, now).await?;
    for edit in newer {
        save(store, namespace, edit, now).await?;
    }
    propose(store, namespace, now).await?;
    day::fill(store, namespace, now).await.map_err(failed)
}

pub(super) fn author(name: &str, reason: &str, at: i64) -> Author {
    Author {
        name: name.to_owned(),
        origin: Origin::Api,
        reason: Some(reason.to_owned()),
        at,
    }
}

pub(super) fn request(namespace: &str, name: &str) -> SaveRequest {
    SaveRequest {
        namespace: namespace.to_owned(),
        kind: DocumentKind::Policy,
        name: name.to_owned(),
        expected: 0,
        body: String::new(),
        is_deletion: false,
        apps: None,
        note: None,
        managed_by: crate::admin::edit::MANAGED_BY_UI.to_owned(),
    }
}

async fn add_people(store: &Store, namespace: &str, password: &str, now: i64) -> Result<(), StoreError> {
    let at = now - 72 * HOUR;
    let account = |name: &str| NewAccount {
        name: name.to_owned(),
        password: Some(password.to_owned()),
        is_admin: name == ADMIN,
    };
    store.add_account(&account(ADMIN), "limiter-server", at).await?;
    for (name, bounds) in APPS {
        let app = StoredApp {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            bounds: bounds.map(str::to_owned),
            created_by: ADMIN.to_owned(),
            created_at: at,
        };
        store.set_app(&app).await?;
    }
    let mut added: Vec<&str> = Vec::new();
    for (name, app, role) in USERS {
        if !added.contains(&name) {
            store.add_account(&account(name), ADMIN, at).await?;
            added.push(name);
        }
        let grant = StoredGrant {
            namespace: namespace.to_owned(),
            subject_kind: SubjectKind::User,
            subject: name.to_owned(),
            app: app.to_owned(),
            role: role.to_owned(),
            created_by: ADMIN.to_owned(),
            created_at: at,
        };
        store.set_grant(&grant).await?;
    }
    // The secret is discarded, so the token permits nothing.
    let token = NewStoredToken {
        id: random_id(),
        hash: Secret::generate(TOKEN_PREFIX).hash(),
        label: "checkout-proxy".to_owned(),
        namespace: namespace.to_owned(),
        scopes: "check:app=checkout".to_owned(),
        created_by: ADMIN.to_owned(),
        issued_by: ADMIN.to_owned(),
        created_at: at,
        expires_at: now + 30 * 24 * HOUR,
    };
    store.add_token(&token, None).await
}

pub(super) fn timestamp(at: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(at).unwrap_or_default())
}

/// Returns the text of a policy after an edit, as the control plane writes it.
fn written(
    policy: &str,
    text: &str,
    before: Option<&PolicyText>,
    author: &Author,
) -> Result<PolicyText, String> {
    let text = PolicyText::parse(policy, &format!("[policy.{policy}]\n{text}"));
    let mut text = text.map_err(|error| error.to_string())?;
    let now = timestamp(author.at);
    let mut metadata = PolicyMetadata::new()
        .with_updated_by(&author.name)
        .with_updated_at(now);
    if let Some(before) = before {
        let replaced = text.replacing(before, Inheritance::AsIs, now);
        text = replaced.map_err(|error| error.to_string())?;
    } else {
        metadata = metadata.with_created_by(&author.name).with_created_at(now);
    }
    Ok(text.with_metadata(metadata))
}

pub(super) async fn save(
    store: &Store,
    namespace: &str,
    edit: &SavedEdit<'_>,
    now: i64,
) -> Result<(), String> {
    let author = author(edit.author, edit.reason, now - edit.hours_ago * HOUR);
    let current = store.document(namespace, DocumentKind::Policy, edit.policy);
    let current = current.await.map_err(|error| error.to_string())?;
    let before = current.as_ref().and_then(|of| of.policy().ok());
    let text = written(edit.policy, edit.text, before.as_ref(), &author)?;
    let request = SaveRequest {
        expected: current.map_or(0, |current| current.revision),
        body: text.to_toml(),
        apps: text.apps(),
        ..request(namespace, edit.policy)
    };
    let saved = store.save(&request, &author).await;
    saved.map(|_| ()).map_err(|error| error.to_string())
}

async fn save_rules(store: &Store, namespace: &str, now: i64) -> Result<(), String> {
    let rules = parse_rules(RULES_TEXT).map_err(|error| error.to_string())?;
    let request = SaveRequest {
        kind: DocumentKind::Rules,
        body: rules_to_toml(&rules).map_err(|error| error.to_string())?,
        ..request(namespace, RULES)
    };
    let author = author(ADMIN, "Routes of the edge proxies", now - RULES_HOURS_AGO * HOUR);
    let saved = store.save(&request, &author).await;
    saved.map(|_| ()).map_err(|error| error.to_string())
}

/// Returns a change beyond the bounds of the app, which waits for its owner.
async fn propose(store: &Store, namespace: &str, now: i64) -> Result<(), String> {
    let author = author("eddie", "The sale needs more", now - HOUR / 2);
    let text =
        "algorithm = 'token_bucket'\ncapacity = 200\nrate = '40/s'\napps = ['search']\nkey = ['customer']\n";
    let text = written("search", text, None, &author)?;
    let proposal = NewProposal {
        namespace: namespace.to_owned(),
        name: "search".to_owned(),
        base: 3,
        body: text.to_toml(),
        apps: text.apps(),
    };
    let proposed = store.propose(&proposal, &author).await;
    proposed.map(|_| ()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_texts_are_valid() {
        let author = author(ADMIN, "", 0);
        for edit in &EDITS {
            let text = written(edit.policy, edit.text, None, &author);
            text.unwrap_or_else(|error| panic!("{}: {error}", edit.policy));
        }
        let rules = parse_rules(RULES_TEXT).unwrap();
        assert_eq!(rules.len(), 5);
        for rule in rules.iter() {
            assert!(
                EDITS.iter().any(|edit| edit.policy == rule.policy()),
                "{}",
                rule.policy()
            );
        }
    }

    #[test]
    fn edits_are_in_the_order_of_their_times() {
        assert!(EDITS.is_sorted_by(|a, b| a.hours_ago >= b.hours_ago));
    }
}
