//! The detection of a restored copy, and the distrust of its credentials.

use limiter_server::store::{ChangeMark, NewStoredToken, Store, TokenChange};

use super::{author, save};

pub(super) async fn lost_change_is_detected(store: Store, _: &str) {
    let newest = store.newest_mark().await.expect("a mark");
    assert_eq!((newest.change, newest.database.as_str()), (0, store.id()));
    assert!(!store.has_lost(&newest).await.expect("an answer"));
    for at in [5, 6] {
        let name = format!("p{at}");
        store
            .save(&save(&name, 0), &author("ann", at))
            .await
            .expect("saved");
    }
    let newest = store.newest_mark().await.expect("a mark");
    assert_eq!(newest.at, 6);
    assert_eq!(newest.to_string().parse(), Ok(newest.clone()));
    let other = |change: i64, at: i64| ChangeMark {
        change,
        at,
        ..newest.clone()
    };
    let of_other_database = ChangeMark {
        database: "other".to_owned(),
        ..other(newest.change + 1, 9)
    };
    for (mark, is_lost) in [
        (newest.clone(), false),
        (of_other_database, false),
        (other(newest.change + 1, 9), true),
        // The copy has grown to the number of the lost change.
        (other(newest.change, 9), true),
    ] {
        let found = store.has_lost(&mark).await.expect("an answer");
        assert_eq!(found, is_lost, "{mark}");
    }
    // The export of the audit removes the oldest entries.
    let moved = store.audit_before(i64::MAX, 10).await.expect("a list");
    let first = moved.first().expect("an entry").clone();
    let exported = other(first.id, first.created_at);
    assert!(!store.has_lost(&exported).await.expect("an answer"));
    store.remove_audit(&moved).await.expect("removed");
    assert!(!store.has_lost(&exported).await.expect("an answer"));
    assert!(!store.has_lost(&newest).await.expect("an answer"));
}

/// The clocks of nodes differ, so the export can remove an entry and leave an earlier one.
pub(super) async fn exported_change_behind_a_later_time_is_not_lost(store: Store, _: &str) {
    let mut marks = Vec::new();
    for (name, at) in [("ahead", 9), ("behind", 5), ("newest", 10)] {
        let saved = store.save(&save(name, 0), &author("ann", at)).await;
        saved.expect("saved");
        marks.push(store.newest_mark().await.expect("a mark"));
    }
    let moved = store.audit_before(7, 10).await.expect("a list");
    store.remove_audit(&moved).await.expect("removed");
    for mark in &marks {
        assert!(!store.has_lost(mark).await.expect("an answer"), "{mark}");
    }
    let later = ChangeMark {
        change: marks[2].change + 1,
        ..marks[2].clone()
    };
    assert!(store.has_lost(&later).await.expect("an answer"));
}

fn token_in(namespace: &str, id: &str) -> NewStoredToken {
    NewStoredToken {
        id: id.to_owned(),
        hash: id.to_owned(),
        label: "ci".to_owned(),
        namespace: namespace.to_owned(),
        scopes: "check:*".to_owned(),
        created_by: "ann".to_owned(),
        issued_by: "ann".to_owned(),
        created_at: 1,
        expires_at: 100,
    }
}

pub(super) async fn rotated_token_is_distrusted(store: Store, _: &str) {
    let token = |id: &str| token_in("prod", id);
    store.add_token(&token("revoked"), None).await.expect("added");
    let revoked = store
        .change_token("prod", "revoked", TokenChange::Revoke, "ann", 2)
        .await;
    revoked.expect("revoked");
    store.add_token(&token("rotated"), None).await.expect("added");
    let replaced = Some(("rotated", 50));
    store.add_token(&token("new"), replaced).await.expect("rotated");
    store.suspend_credentials("prod", 5).await.expect("done");
    for (id, is_suspended) in [("rotated", true), ("new", true), ("revoked", false)] {
        let token = store.token("prod", id).await.expect("read").expect("a token");
        assert_eq!(token.is_suspended, is_suspended, "{id}");
        assert!(!token.is_valid_at(6), "{id}");
    }
    let alerts = store.alerts("prod").await.expect("a list");
    assert_eq!(alerts.len(), 1, "{alerts:?}");
    assert_eq!(alerts[0].kind, "database_restored");
}

/// The Redis of another namespace can answer after an administrator has confirmed tokens.
pub(super) async fn later_namespace_keeps_confirmed_tokens(store: Store, _: &str) {
    let namespaces = ["prod", "staging"];
    for namespace in namespaces {
        store
            .add_token(&token_in(namespace, namespace), None)
            .await
            .expect("added");
    }
    let suspended = async || {
        let mut suspended = Vec::new();
        for namespace in namespaces {
            let token = store.token(namespace, namespace).await.expect("read");
            suspended.push(token.expect("a token").is_suspended);
        }
        suspended
    };
    store.suspend_credentials("prod", 5).await.expect("done");
    assert_eq!(suspended().await, [true, false]);
    let confirmed = store.change_token("prod", "prod", TokenChange::Confirm, "ann", 6);
    confirmed.await.expect("confirmed");
    store.suspend_credentials("staging", 7).await.expect("done");
    assert_eq!(suspended().await, [false, true]);
    for namespace in namespaces {
        let alerts = store.alerts(namespace).await.expect("a list");
        assert_eq!(alerts.len(), 1, "{namespace}: {alerts:?}");
    }
}
