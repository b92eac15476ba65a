//! The requirements of the store, which every database meets.

mod alerts;
mod denials;
mod events;
mod restoration;
mod revisions;
mod schema;
mod together;

use std::sync::Arc;

use limiter_server::store::{
    AuditFilter, DocumentKind, DocumentState, ImportedDocument, LibraryUsage, NewAccount, NewProposal,
    NewStoredToken, OutsideChange, ProposalFilter, SaveRequest, Store, StoreError, StoredGrant, SubjectKind,
    TokenChange, UsageKind, UsagePoint, UsageSpan, UsageTotals,
};

use super::databases::Database;
use super::saves::{author, policy_change};

/// Runs each requirement on an empty database.
pub(crate) fn run(database: &Database) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    macro_rules! each {
        ($($requirement:path),* $(,)?) => {$(
            let name = stringify!($requirement).rsplit("::").next().expect("a name");
            eprintln!("{name}");
            let url = database.create(name);
            runtime.block_on(async {
                let store = Store::open(&url).await.expect("a store");
                $requirement(store, &url).await;
            });
        )*};
    }
    each![
        save_writes_revision_audit_and_outbox,
        stale_save_conflicts_with_both_versions,
        concurrent_saves_lose_no_update,
        together::documents_are_saved_together_or_not_at_all,
        together::confirmation_beside_a_batch_has_no_deadlock,
        together::grants_at_once_are_all_saved,
        deleted_document_can_be_created_again,
        import_puts_pending_edit_into_conflict,
        name_of_a_deleted_document_has_a_new_life_after_an_import,
        import_without_a_later_registry_is_made_once,
        import_of_an_older_registry_is_made_once,
        revisions::revision_of_a_time_is_found,
        revisions::revision_of_a_time_has_no_conflict,
        confirmation_clears_the_outbox,
        second_open_keeps_data_and_identity,
        names_are_compared_by_bytes,
        users_sessions_and_setup,
        last_admin_remains,
        tokens_are_revoked_rotated_and_distrusted,
        grants_are_replaced,
        proposal_is_decided_once,
        alerts::alerts_are_raised_once,
        alerts::alert_of_two_nodes_is_raised_once,
        usage_is_summed_by_minute_and_hour,
        library_usage_is_recorded_once,
        denials::higher_samples_replace_lower_ones,
        denials::samples_of_one_stored_key_are_summed,
        events::event_with_a_later_time_is_not_passed_over,
        restoration::lost_change_is_detected,
        restoration::exported_change_behind_a_later_time_is_not_lost,
        restoration::rotated_token_is_distrusted,
        restoration::later_namespace_keeps_confirmed_tokens,
    ];
    schema::nodes_create_the_tables_together(database);
    schema::earlier_schemas_are_updated(database);
    schema::interrupted_migration_is_completed(database);
}

const BODY: &str = "[policy.search]\nalgorithm = 'token_bucket'\ncapacity = 5\nrate = '1/s'\n";

fn save(name: &str, expected: i64) -> SaveRequest {
    SaveRequest {
        apps: Some(vec!["checkout".to_owned()]),
        note: Some("é".to_owned()),
        ..policy_change(name, expected, format!("{BODY}# {expected}"))
    }
}

async fn read(store: &Store, name: &str) -> limiter_server::store::StoredDocument {
    let found = store.document("prod", DocumentKind::Policy, name).await;
    found.expect("readable").expect("a document")
}

async fn save_writes_revision_audit_and_outbox(store: Store, _: &str) {
    store
        .save(&save("search", 0), &author("ann", 7))
        .await
        .expect("saved");
    store
        .save(&save("search", 1), &author("bob", 8))
        .await
        .expect("saved");
    let found = read(&store, "search").await;
    assert_eq!((found.revision, found.published), (2, 0));
    assert_eq!(
        (found.created_by.as_str(), found.updated_by.as_str()),
        ("ann", "bob")
    );
    assert_eq!((found.created_at, found.updated_at), (7, 8));
    assert_eq!(found.apps, Some(vec!["checkout".to_owned()]));
    assert_eq!(found.note.as_deref(), Some("é"));
    let history = store
        .history("prod", DocumentKind::Policy, "search", i64::MAX, 10)
        .await;
    let history = history.expect("a history");
    let authors: Vec<_> = history.iter().map(|of| (of.number, of.author.as_str())).collect();
    assert_eq!(authors, [(2, "bob"), (1, "ann")]);
    let filter = AuditFilter {
        namespace: "prod".to_owned(),
        object: Some("search".to_owned()),
        actor: None,
        before: i64::MAX,
        limit: 10,
        includes_users: false,
    };
    let audit = store.audit(&filter).await.expect("an audit");
    let actions: Vec<_> = audit.iter().map(|of| of.action.as_str()).collect();
    assert_eq!(actions, ["policy.update", "policy.create"]);
    let publication = store.publication("prod").await.expect("a publication");
    assert_eq!((publication.pending, publication.oldest_pending), (2, Some(7)));
}

async fn stale_save_conflicts_with_both_versions(store: Store, _: &str) {
    store
        .save(&save("search", 0), &author("ann", 1))
        .await
        .expect("saved");
    store
        .save(&save("search", 1), &author("bob", 2))
        .await
        .expect("saved");
    for stale in [0, 1, 3] {
        let refused = store.save(&save("search", stale), &author("ann", 3)).await;
        let Err(StoreError::Conflict { expected, current }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(expected, stale);
        let current = current.expect("a version");
        assert_eq!((current.revision, current.updated_by.as_str()), (2, "bob"));
    }
    assert_eq!(read(&store, "search").await.revision, 2);
}

/// Of concurrent saves of one revision, one succeeds.
async fn concurrent_saves_lose_no_update(store: Store, url: &str) {
    const EDITORS: usize = 100;
    let other = Store::open(url).await.expect("a second node");
    let stores = [Arc::new(store), Arc::new(other)];
    for round in 0..2 {
        let mut tasks = tokio::task::JoinSet::new();
        for editor in 0..EDITORS {
            let store = Arc::clone(&stores[editor % 2]);
            tasks.spawn(async move {
                let author = author(&format!("editor-{editor}"), 1);
                match store.save(&save("search", round), &author).await {
                    Ok(_) => true,
                    Err(StoreError::Conflict { .. }) => false,
                    Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
                }
            });
        }
        let saved = tasks.join_all().await.into_iter().filter(|saved| *saved).count();
        assert_eq!(saved, 1, "round {round}");
    }
    assert_eq!(read(&stores[0], "search").await.revision, 2);
    // Editors that read again after a conflict all succeed.
    let mut tasks = tokio::task::JoinSet::new();
    for editor in 0..EDITORS {
        let store = Arc::clone(&stores[editor % 2]);
        tasks.spawn(async move {
            let author = author(&format!("editor-{editor}"), 1);
            let mut expected = 2;
            while let Err(error) = store.save(&save("search", expected), &author).await {
                let StoreError::Conflict { current, .. } = error else {
                    panic!("{error}");
                };
                expected = current.expect("a version").revision;
            }
        });
    }
    tasks.join_all().await;
    let editors = i64::try_from(EDITORS).expect("small");
    assert_eq!(read(&stores[0], "search").await.revision, 2 + editors);
    let history = stores[0].history("prod", DocumentKind::Policy, "search", i64::MAX, 1_000);
    assert_eq!(history.await.expect("a history").len(), 2 + EDITORS);
}

async fn deleted_document_can_be_created_again(store: Store, _: &str) {
    store
        .save(&save("search", 0), &author("ann", 1))
        .await
        .expect("saved");
    let deletion = SaveRequest {
        is_deletion: true,
        ..save("search", 1)
    };
    store.save(&deletion, &author("bob", 2)).await.expect("deleted");
    assert!(read(&store, "search").await.is_deleted);
    assert!(store.policies("prod", "", 10).await.expect("a list").is_empty());
    store
        .save(&save("search", 0), &author("eve", 3))
        .await
        .expect("created");
    let found = read(&store, "search").await;
    assert_eq!((found.revision, found.created_by.as_str()), (3, "eve"));
    assert_eq!(store.policies("prod", "", 10).await.expect("a list").len(), 1);
    assert!(
        store
            .policies("prod", "search", 10)
            .await
            .expect("a list")
            .is_empty()
    );
    assert!(
        store
            .policies("staging", "", 10)
            .await
            .expect("a list")
            .is_empty()
    );
}

async fn import_puts_pending_edit_into_conflict(store: Store, _: &str) {
    store
        .save(&save("search", 0), &author("ann", 1))
        .await
        .expect("saved");
    store
        .save(&save("mail", 0), &author("ann", 1))
        .await
        .expect("saved");
    let imported = |name: &str| ImportedDocument {
        kind: DocumentKind::Policy,
        name: name.to_owned(),
        body: "outside".to_owned(),
        is_deletion: false,
        apps: None,
        note: None,
        summary: None,
    };
    let outside = author("outside", 5);
    let change = OutsideChange {
        expected: 0,
        registry_revision: 70,
        documents: vec![imported("search"), imported("new")],
        restored: None,
    };
    let done = store.import("prod", &change, &outside).await;
    assert!(done.expect("imported"));
    let repeated = store.import("prod", &change, &outside).await;
    assert!(!repeated.expect("an answer"), "another node has imported");
    let found = read(&store, "search").await;
    assert_eq!((found.revision, found.published), (2, 2));
    assert_eq!(
        (found.state, found.body.as_str()),
        (DocumentState::Conflict, "outside")
    );
    let edit = store.revision("prod", DocumentKind::Policy, "search", 1).await;
    assert_eq!(
        edit.expect("readable").expect("kept").state,
        DocumentState::Conflict
    );
    let created = read(&store, "new").await;
    assert_eq!((created.revision, created.state), (1, DocumentState::Published));
    let pending = store.pending("prod").await.expect("a list");
    let names: Vec<_> = pending.iter().map(|of| of.document.name.as_str()).collect();
    assert_eq!(names, ["mail"], "other policies are published");
    assert_eq!(
        store.publication("prod").await.expect("read").registry_revision,
        70
    );
}

/// Readers see the decisions and keys since the creation, which are those of another app before.
async fn name_of_a_deleted_document_has_a_new_life_after_an_import(store: Store, _: &str) {
    let first = SaveRequest {
        managed_by: "git".to_owned(),
        ..save("search", 0)
    };
    store.save(&first, &author("ann", 1)).await.expect("saved");
    let import = async |revision: i64, is_deletion: bool| {
        let change = OutsideChange {
            expected: revision - 1,
            registry_revision: revision,
            documents: vec![ImportedDocument {
                kind: DocumentKind::Policy,
                name: "search".to_owned(),
                body: "outside".to_owned(),
                is_deletion,
                apps: None,
                note: None,
                summary: None,
            }],
            restored: None,
        };
        let author = author("outside", 10 * revision);
        let imported = store.import("prod", &change, &author).await;
        assert!(imported.expect("an answer"));
        let found = read(&store, "search").await;
        (found.created_by, found.created_at, found.managed_by)
    };
    let published = [(DocumentKind::Policy, "search".to_owned(), 1)];
    store.confirm("prod", 0, &published, 2).await.expect("confirmed");
    let expected = ("ann".to_owned(), 1, "git".to_owned());
    assert_eq!(import(1, false).await, expected);
    assert_eq!(import(2, true).await, expected);
    assert_eq!(
        import(3, false).await,
        ("outside".to_owned(), 30, "ui".to_owned())
    );
    assert_eq!(
        import(4, false).await,
        ("outside".to_owned(), 30, "ui".to_owned())
    );
}

/// Two nodes import suspensions beside a policy that they cannot read, and a user saves others in
/// between.
async fn import_without_a_later_registry_is_made_once(store: Store, _: &str) {
    let change = OutsideChange {
        expected: 0,
        registry_revision: 0,
        documents: vec![ImportedDocument {
            kind: DocumentKind::Policy,
            name: "search".to_owned(),
            body: "outside".to_owned(),
            is_deletion: false,
            apps: None,
            note: None,
            summary: None,
        }],
        restored: None,
    };
    let import = async || {
        let imported = store.import("prod", &change, &author("outside", 5)).await;
        imported.expect("an answer")
    };
    assert!(import().await);
    store
        .save(&save("search", 1), &author("ann", 6))
        .await
        .expect("saved");
    import().await;
    let found = read(&store, "search").await;
    assert_eq!((found.revision, found.published), (2, 1));
    assert_eq!(found.state, DocumentState::Pending);
}

/// Two nodes import an older registry into an empty database whose confirmed revision is later.
async fn import_of_an_older_registry_is_made_once(store: Store, _: &str) {
    store.confirm("prod", 9, &[], 1).await.expect("confirmed");
    let change = OutsideChange {
        expected: 9,
        registry_revision: 7,
        documents: vec![ImportedDocument {
            kind: DocumentKind::Policy,
            name: "search".to_owned(),
            body: "outside".to_owned(),
            is_deletion: false,
            apps: None,
            note: None,
            summary: None,
        }],
        restored: None,
    };
    for _ in 0..2 {
        let imported = store.import("prod", &change, &author("outside", 5)).await;
        imported.expect("an answer");
    }
    assert_eq!(read(&store, "search").await.revision, 1);
}

async fn confirmation_clears_the_outbox(store: Store, _: &str) {
    for expected in 0..3 {
        store
            .save(&save("search", expected), &author("ann", 1))
            .await
            .expect("saved");
    }
    let pending = store.pending("prod").await.expect("a list");
    assert_eq!(pending[0].texts.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    let confirmed = |number| [(DocumentKind::Policy, "search".to_owned(), number)];
    store
        .confirm("prod", 10, &confirmed(2), 5)
        .await
        .expect("confirmed");
    let found = read(&store, "search").await;
    assert_eq!((found.published, found.state), (2, DocumentState::Pending));
    assert_eq!(store.publication("prod").await.expect("read").pending, 1);
    // A slower node confirms an older revision later.
    store
        .confirm("prod", 11, &confirmed(3), 6)
        .await
        .expect("confirmed");
    store
        .confirm("prod", 9, &confirmed(1), 7)
        .await
        .expect("confirmed");
    let found = read(&store, "search").await;
    assert_eq!((found.published, found.state), (3, DocumentState::Published));
    let publication = store.publication("prod").await.expect("read");
    assert_eq!((publication.registry_revision, publication.pending), (11, 0));
}

async fn second_open_keeps_data_and_identity(store: Store, url: &str) {
    store
        .save(&save("search", 0), &author("ann", 1))
        .await
        .expect("saved");
    let again = Store::open(url).await.expect("a store");
    assert_eq!(again.id(), store.id());
    assert_eq!(read(&again, "search").await.revision, 1);
    assert!(!again.is_read_only());
}

async fn names_are_compared_by_bytes(store: Store, _: &str) {
    for name in ["Search", "search", "searché", "searche", "search "] {
        store
            .save(&save(name, 0), &author("ann", 1))
            .await
            .expect("a name of its own");
    }
    assert_eq!(store.policies("prod", "", 10).await.expect("a list").len(), 5);
    let hostile = "x'; DROP TABLE document; --";
    store
        .save(&save(hostile, 0), &author(hostile, 1))
        .await
        .expect("saved");
    assert_eq!(read(&store, hostile).await.created_by, hostile);
}

fn account(name: &str, is_admin: bool) -> NewAccount {
    NewAccount {
        name: name.to_owned(),
        password: Some("hash".to_owned()),
        is_admin,
    }
}

async fn users_sessions_and_setup(store: Store, _: &str) {
    assert!(store.offer_setup("link", 100).await.expect("offered"));
    assert!(store.is_setup_link("link", 99).await.expect("an answer"));
    assert!(!store.is_setup_link("link", 100).await.expect("an answer"));
    let late = store.complete_setup("link", &account("root", true), 100).await;
    assert!(matches!(late, Err(StoreError::NotFound)), "{late:?}");
    store
        .complete_setup("link", &account("root", true), 50)
        .await
        .expect("created");
    let replayed = store.complete_setup("link", &account("eve", true), 51).await;
    assert!(matches!(replayed, Err(StoreError::NotFound)), "{replayed:?}");
    assert!(!store.offer_setup("link2", 100).await.expect("an answer"));
    let again = store.add_account(&account("root", false), "root", 1).await;
    assert!(matches!(again, Err(StoreError::Exists)), "{again:?}");

    let root = store.account("root").await.expect("read").expect("a user");
    store
        .start_signin("session", &root, 10, 20)
        .await
        .expect("started");
    let session = store
        .signin("session", 19)
        .await
        .expect("read")
        .expect("a session");
    assert_eq!(session.account, "root");
    assert!(store.signin("session", 20).await.expect("read").is_none());
    store
        .set_password("root", "other", "root", 11)
        .await
        .expect("set");
    assert!(store.signin("session", 11).await.expect("read").is_none());
    // The password of the verified user has changed meanwhile.
    let late = store.start_signin("session", &root, 10, 20).await;
    assert!(matches!(late, Err(StoreError::NotFound)), "{late:?}");
    let root = store.account("root").await.expect("read").expect("a user");
    store
        .start_signin("session", &root, 10, 20)
        .await
        .expect("started");
    store.end_signin("session").await.expect("ended");
    assert!(store.signin("session", 11).await.expect("read").is_none());
    store
        .add_account(&account("ann", false), "root", 12)
        .await
        .expect("added");
    let ann = store.account("ann").await.expect("read").expect("a user");
    let disabled = store.change_account("ann", false, true, "root", 13).await;
    disabled.expect("disabled");
    let late = store.start_signin("of ann", &ann, 14, 20).await;
    assert!(matches!(late, Err(StoreError::NotFound)), "{late:?}");
}

async fn last_admin_remains(store: Store, _: &str) {
    store
        .add_account(&account("ann", true), "setup", 1)
        .await
        .expect("added");
    for refused in [
        store.remove_account("ann", "ann", 2).await,
        store.change_account("ann", false, false, "ann", 2).await,
        store.change_account("ann", true, true, "ann", 2).await,
    ] {
        assert!(matches!(refused, Err(StoreError::LastAdmin)), "{refused:?}");
    }
    store
        .add_account(&account("bob", true), "ann", 3)
        .await
        .expect("added");
    store.remove_account("ann", "bob", 4).await.expect("removed");
    assert!(store.account("ann").await.expect("read").is_none());
}

async fn tokens_are_revoked_rotated_and_distrusted(store: Store, _: &str) {
    let token = |id: &str| NewStoredToken {
        id: id.to_owned(),
        hash: format!("hash of {id}"),
        label: "ci".to_owned(),
        namespace: "prod".to_owned(),
        scopes: "admin:viewer".to_owned(),
        created_by: "ann".to_owned(),
        issued_by: "ann".to_owned(),
        created_at: 1,
        expires_at: 100,
    };
    store.add_token(&token("a"), None).await.expect("added");
    store
        .add_token(&token("b"), Some(("a", 50)))
        .await
        .expect("rotated");
    let read = async |id: &str| {
        let hash = format!("hash of {id}");
        store.token_by_hash(&hash).await.expect("read").expect("a token")
    };
    assert!(read("a").await.is_valid_at(49) && !read("a").await.is_valid_at(50));
    assert!(read("b").await.is_valid_at(99) && !read("b").await.is_valid_at(100));
    // A second rotation can shorten the overlap, and cannot extend it.
    for (id, ends_at, end) in [("c", 20, 20), ("d", 60, 20)] {
        let rotated = store.add_token(&token(id), Some(("a", ends_at))).await;
        rotated.expect("rotated again");
        assert_eq!(read("a").await.revoked_at, Some(end));
    }
    let later = NewStoredToken {
        created_at: 20,
        ..token("e")
    };
    let revoked = store.add_token(&later, Some(("a", 30))).await;
    assert!(matches!(revoked, Err(StoreError::NotFound)), "{revoked:?}");
    assert!(store.token_by_hash("hash of e").await.expect("read").is_none());
    let foreign = store
        .change_token("staging", "b", TokenChange::Revoke, "ann", 5)
        .await;
    assert!(matches!(foreign, Err(StoreError::NotFound)), "{foreign:?}");
    store.suspend_credentials("prod", 5).await.expect("done");
    assert!(!read("b").await.is_valid_at(6));
    store
        .change_token("prod", "b", TokenChange::Confirm, "ann", 7)
        .await
        .expect("confirmed");
    assert!(read("b").await.is_valid_at(8));
    store
        .change_token("prod", "b", TokenChange::Revoke, "ann", 9)
        .await
        .expect("revoked");
    assert!(!read("b").await.is_valid_at(9));
}

async fn grants_are_replaced(store: Store, _: &str) {
    let grant = |subject_kind, subject: &str, role: &str| StoredGrant {
        namespace: "prod".to_owned(),
        subject_kind,
        subject: subject.to_owned(),
        app: "checkout".to_owned(),
        role: role.to_owned(),
        created_by: "root".to_owned(),
        created_at: 1,
    };
    for of in [
        grant(SubjectKind::User, "ann", "viewer"),
        grant(SubjectKind::User, "ann", "owner"),
        grant(SubjectKind::Group, "ops", "editor"),
    ] {
        store.set_grant(&of).await.expect("granted");
    }
    let roles = store.roles_of("ann", &["ops".to_owned()]).await.expect("roles");
    let mut names: Vec<_> = roles.iter().map(|of| of.role.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["editor", "owner"]);
    assert!(store.roles_of("ops", &[]).await.expect("roles").is_empty());
    let holder = (SubjectKind::User, "ann");
    store
        .remove_grant("prod", holder, "checkout", "root", 2)
        .await
        .expect("removed");
    assert!(store.roles_of("ann", &[]).await.expect("roles").is_empty());
}

async fn proposal_is_decided_once(store: Store, _: &str) {
    store
        .save(&save("search", 0), &author("ann", 1))
        .await
        .expect("saved");
    let new = NewProposal {
        namespace: "prod".to_owned(),
        name: "search".to_owned(),
        base: 1,
        body: "proposed".to_owned(),
        apps: None,
    };
    let stale = store.propose(&new, &author("eve", 2)).await.expect("proposed");
    let id = store.propose(&new, &author("eve", 2)).await.expect("proposed");
    let all = |is_open| ProposalFilter {
        is_open,
        after: None,
        limit: 10,
    };
    // Pages of one entry contain all of them once.
    let (mut seen, mut filter) = (
        Vec::new(),
        ProposalFilter {
            limit: 1,
            ..all(false)
        },
    );
    while let Some(found) = store.proposals("prod", &filter).await.expect("a page").pop() {
        seen.push(found.id.clone());
        filter.after = Some(found);
    }
    let mut expected = vec![stale.clone(), id.clone()];
    expected.sort();
    assert_eq!(seen, expected);
    let request = SaveRequest {
        body: "proposed".to_owned(),
        ..save("search", 1)
    };
    let foreign = SaveRequest {
        namespace: "staging".to_owned(),
        ..request.clone()
    };
    assert!(
        store
            .approve(&id, &foreign, &author("bob", 3), |_| Ok(()))
            .await
            .is_err()
    );
    store
        .approve(&id, &request, &author("bob", 3), |_| Ok(()))
        .await
        .expect("approved");
    assert_eq!(read(&store, "search").await.body, "proposed");
    let again = store.approve(&id, &request, &author("bob", 3), |_| Ok(())).await;
    assert!(matches!(again, Err(StoreError::NotFound)), "{again:?}");
    let late = store
        .approve(&stale, &request, &author("bob", 3), |_| Ok(()))
        .await;
    assert!(matches!(late, Err(StoreError::Conflict { .. })), "{late:?}");
    assert_eq!(
        store.proposals("prod", &all(true)).await.expect("a list").len(),
        1
    );
    store
        .reject("prod", &stale, &author("bob", 4))
        .await
        .expect("rejected");
    assert!(
        store
            .proposals("prod", &all(true))
            .await
            .expect("a list")
            .is_empty()
    );
}

async fn usage_is_summed_by_minute_and_hour(store: Store, _: &str) {
    const MINUTE: i64 = 60_000_000;
    const HOUR: i64 = 60 * MINUTE;
    let totals = |allowed, denied| UsageTotals {
        allowed,
        denied,
        ..UsageTotals::default()
    };
    // More policies than one statement adds.
    let mut counts: Vec<_> = (0..120)
        .map(|number| (format!("p{number:03}"), totals(1, 0)))
        .collect();
    counts.push(("search".to_owned(), totals(5, 2)));
    let start = 10 * HOUR;
    for at in [start + 1, start + MINUTE - 1, start + MINUTE, start + HOUR] {
        let added = store.add_usage("prod", UsageKind::Policy, at, &counts);
        added.await.expect("added");
    }
    let read = async |span, from, to| {
        let points = store
            .usage(("prod", "search"), UsageKind::Policy, span, (from, to))
            .await;
        points.expect("readable")
    };
    let point = |start_at, totals| UsagePoint { start_at, totals };
    assert_eq!(
        read(UsageSpan::Minute, start, start + HOUR).await,
        [point(start, totals(10, 4)), point(start + MINUTE, totals(5, 2))]
    );
    let hours = [point(start, totals(15, 6)), point(start + HOUR, totals(5, 2))];
    assert_eq!(read(UsageSpan::Hour, 0, i64::MAX).await, hours);
    // The decisions of a trial and those with a cause are counted apart.
    for (kind, allowed) in (1..)
        .zip(&UsageKind::ALL[1..])
        .map(|(allowed, kind)| (*kind, allowed))
    {
        let counts = [("search".to_owned(), totals(allowed, 6))];
        for at in [start, start + MINUTE] {
            let added = store.add_usage("prod", kind, at, &counts);
            added.await.expect("added");
        }
        let sum = store.usage_sum(("prod", "search"), kind, UsageSpan::Hour, (0, i64::MAX));
        assert_eq!(sum.await.expect("readable"), totals(2 * allowed, 12), "{kind:?}");
    }
    let sums = store.usage_by_policy("prod", UsageSpan::Hour, (start, start + HOUR));
    let sums = sums.await.expect("readable");
    assert_eq!(sums.len(), 121);
    assert_eq!(sums[120], ("search".to_owned(), totals(15, 6)));
    assert_eq!(
        store
            .usage_by_policy("staging", UsageSpan::Hour, (0, i64::MAX))
            .await
            .expect("readable"),
        []
    );

    // 48 hours after the first minute, its count has ended, and that of its hour has not.
    store
        .prune_counts(start + MINUTE, start + MINUTE - 394 * 24 * HOUR)
        .await
        .expect("pruned");
    let minutes = read(UsageSpan::Minute, 0, i64::MAX).await;
    assert_eq!(minutes.len(), 2, "{minutes:?}");
    assert_eq!(read(UsageSpan::Hour, 0, i64::MAX).await, hours);
}

async fn library_usage_is_recorded_once(store: Store, url: &str) {
    const MINUTE: i64 = 60_000_000;
    const HOUR: i64 = 60 * MINUTE;
    let usage = |policy: &str, app: &str, allowed, denied| LibraryUsage {
        policy: policy.to_owned(),
        app: app.to_owned(),
        totals: UsageTotals {
            allowed,
            denied,
            ..UsageTotals::default()
        },
    };
    let other = Store::open(url).await.expect("a second node");
    let start = 10 * HOUR;
    // More rows than one statement writes.
    let mut many: Vec<_> = (0..120)
        .map(|number| usage(&format!("p{number:03}"), "", 1, 0))
        .collect();
    many.push(usage("search", "shop", 5, 2));
    many.push(usage("search", "web", 7, 0));
    for (node, at, rows) in [
        (&store, start + 1, &many[..]),
        (&other, start + 1, &many[..]),
        // A node with older numbers writes last.
        (&other, start + MINUTE, &[usage("search", "shop", 3, 3)]),
        (&store, start + MINUTE, &[usage("search", "shop", 1, 1)]),
        (&store, start + HOUR, &[usage("search", "shop", 4, 0)]),
    ] {
        let recorded = node.record_library_usage("prod", UsageKind::Policy, at, rows);
        recorded.await.expect("recorded");
        node.sum_library_hour("prod", at).await.expect("summed");
    }
    let read = async |policy, span, range| {
        let usage = store.library_usage("prod", policy, span, range).await;
        usage.expect("readable")
    };
    let first_hour = (start, start + HOUR);
    let expected = [usage("search", "shop", 8, 5), usage("search", "web", 7, 0)];
    for span in [UsageSpan::Minute, UsageSpan::Hour] {
        assert_eq!(read(Some("search"), span, first_hour).await, expected, "{span:?}");
        assert_eq!(read(None, span, first_hour).await.len(), 122);
    }
    // The gateway and the library are summed.
    let totals = |allowed, denied| UsageTotals {
        allowed,
        denied,
        ..UsageTotals::default()
    };
    let of_gateway = [("search".to_owned(), totals(100, 10))];
    let added = store.add_usage("prod", UsageKind::Policy, start, &of_gateway);
    added.await.expect("added");
    let points = store.usage(
        ("prod", "search"),
        UsageKind::Policy,
        UsageSpan::Hour,
        (0, i64::MAX),
    );
    let point = |start_at, totals| UsagePoint { start_at, totals };
    assert_eq!(
        points.await.expect("readable"),
        [point(start, totals(115, 15)), point(start + HOUR, totals(4, 0))]
    );
    let sums = store.usage_by_policy("prod", UsageSpan::Minute, first_hour);
    assert_eq!(
        sums.await.expect("readable").last(),
        Some(&("search".to_owned(), totals(115, 15)))
    );
    store.prune_counts(start + HOUR, start).await.expect("pruned");
    assert_eq!(
        read(Some("search"), UsageSpan::Minute, (0, start + HOUR)).await,
        []
    );
    assert_eq!(read(Some("search"), UsageSpan::Hour, first_hour).await, expected);
}
