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

/// Two administrators send one change at once.
pub(super) async fn grants_at_once_are_all_saved(store: Store, _: &str) {
    for round in 0..20 {
        let mut tasks = tokio::task::JoinSet::new();
        for role in ["viewer", "editor", "owner"] {
            let store = store.clone();
            tasks.spawn(async move {
                let name = format!("app{round}");
                let grant = StoredGrant {
                    namespace: "prod".to_owned(),
                    subject_kind: SubjectKind::User,
                    subject: "ann".to_owned(),
                    app: name.clone(),
                    role: role.to_owned(),
                    created_by: "root".to_owned(),
                    created_at: 1,
                };
                store.set_grant(&grant).await?;
                let app = StoredApp {
                    namespace: "prod".to_owned(),
                    name: name.clone(),
                    bounds: None,
                    created_by: "root".to_owned(),
                    created_at: 1,
                };
                store.set_app(&app).await?;
                let look = NamespaceLook::default();
                store.set_namespace_look(&name, &look, "root", 1).await
            });
        }
        for saved in tasks.join_all().await {
            saved.expect("saved");
        }
    }
    let roles = store.roles_of("ann", &[]).await.expect("roles");
    assert_eq!(roles.len(), 20, "{roles:?}");
}
