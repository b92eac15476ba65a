//! Documents that one transaction saves.

use limiter_server::store::{
    DocumentKind, NamespaceLook, SaveRequest, Store, StoreError, StoredApp, StoredGrant, SubjectKind,
};

use super::{author, read, save};

const DOCUMENTS: usize = 20;

pub(super) async fn documents_are_saved_together_or_not_at_all(store: Store, _: &str) {
    let requests: Vec<SaveRequest> = (0..DOCUMENTS)
        .map(|number| save(&format!("p{number}"), 0))
        .collect();
    let saved = store.save_all(&requests, &author("ann", 1)).await.expect("saved");
    assert_eq!(saved.len(), DOCUMENTS);
    // Each document has an entry in the outbox, with a revision of its own.
    let publication = store.publication("prod").await.expect("a publication");
    assert_eq!(publication.pending, i64::try_from(DOCUMENTS).expect("small"));

    let stale = [save("p0", 1), save("p1", 0), save("p2", 7), save("new", 0)];
    let failures = store
        .save_all(&stale, &author("bob", 2))
        .await
        .expect_err("conflicts");
    let names: Vec<&str> = failures.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["p1", "p2"]);
    let conflicts = failures
        .iter()
        .all(|of| matches!(of.error, StoreError::Conflict { .. }));
    assert!(conflicts, "{failures:?}");
    assert_eq!(read(&store, "p0").await.revision, 1, "nothing was saved");
    let current = store.policies("prod", "", 100).await.expect("a list");
    assert_eq!(current.len(), DOCUMENTS, "nothing was saved");
}

/// Two transactions that lock several documents in opposite orders would end each other.
pub(super) async fn confirmation_beside_a_batch_has_no_deadlock(store: Store, _: &str) {
    let names: Vec<String> = (0..DOCUMENTS).map(|number| format!("p{number:02}")).collect();
    for revision in 0..20_i64 {
        let requests: Vec<SaveRequest> = names.iter().rev().map(|name| save(name, revision)).collect();
        let published = names
            .iter()
            .map(|name| (DocumentKind::Policy, name.clone(), revision));
        let published: Vec<_> = published.collect();
        let by = author("ann", 1);
        let (saved, confirmed) = tokio::join!(
            store.save_all(&requests, &by),
            store.confirm("prod", revision, &published, 1)
        );
        saved.expect("saved");
        confirmed.expect("confirmed");
    }
}

