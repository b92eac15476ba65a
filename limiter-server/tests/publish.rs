//! Publication from SQL to the registry in Redis: one test per row of the reconciliation, crashes,
//! and concurrent nodes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use limiter_core::Limiter;
use limiter_core::registry::{PolicyRegistry, RedisRegistry, Suspension, SuspensionMode};
use limiter_server::admin::edit::save_overlays;
use limiter_server::policy_text::PolicyText;
use limiter_server::publish::{PublicationTarget, Publisher};
use limiter_server::store::{
    DocumentKind, DocumentState, NewAccount, NewStoredToken, OVERLAYS, Origin, RULES, SaveRequest, Store,
    StoredDocument,
};
use limiter_testing::RedisServer;
use support::saves::{author, policy_change};
use support::server::Directory;

/// A database, a Redis server, and a publisher between them.
struct Setup {
    directory: Directory,
    redis: RedisServer,
    store: Store,
    publisher: Publisher,
}

fn registry_of(redis: &RedisServer) -> RedisRegistry {
    let limiter = Limiter::redis(redis.url()).namespace("prod").build().unwrap();
    limiter.redis_registry().unwrap()
}

async fn open(directory: &Directory) -> Store {
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    Store::open(&url).await.unwrap()
}

impl Setup {
    async fn new() -> Self {
        let (directory, redis) = (Directory::new(), RedisServer::start());
        let store = open(&directory).await;
        let target = PublicationTarget::Redis(registry_of(&redis));
        let publisher = Publisher::new("prod", store.clone(), target);
        Self {
            directory,
            redis,
            store,
            publisher,
        }
    }

    async fn save(&self, name: &str, expected: i64, capacity: u32) {
        save(&self.store, name, expected, capacity).await;
    }

    async fn publish(&self) {
        self.publisher.publish().await.unwrap();
    }

    /// The capacities of the registry in Redis.
    async fn in_force(&self, name: &str) -> Option<u64> {
        capacity_in(&registry_of(&self.redis), name).await
    }

    async fn document(&self, name: &str) -> StoredDocument {
        let found = self.store.document("prod", DocumentKind::Policy, name).await;
        found.unwrap().unwrap()
    }

    /// Changes the registry as another program does.
    async fn change_outside(&self, change: impl Fn(&PolicyRegistry)) {
        let registry = registry_of(&self.redis);
        let edited = registry.edit(|draft| {
            change(draft);
            Ok(())
        });
        edited.await.unwrap();
    }
}

fn text(name: &str, capacity: u32) -> String {
    format!("[policy.{name}]\nalgorithm = 'token_bucket'\ncapacity = {capacity}\nrate = '1/h'\n")
}

fn policy(name: &str, capacity: u32) -> PolicyText {
    PolicyText::parse(name, &text(name, capacity)).unwrap()
}

async fn save(store: &Store, name: &str, expected: i64, capacity: u32) {
    let request = policy_change(name, expected, policy(name, capacity).to_toml());
    store.save(&request, &author("ann", 1)).await.unwrap();
}

async fn capacity_in(registry: &RedisRegistry, name: &str) -> Option<u64> {
    let (_, text) = registry.read().await.unwrap()?;
    let entry = PolicyRegistry::from_toml(&text).unwrap().get(name)?;
    Some(entry.policy().quota().whole())
}

#[tokio::test]
async fn empty_registry_receives_the_head() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.save("b", 0, 6).await;
    setup.publish().await;
    assert_eq!(setup.in_force("a").await, Some(5));
    let document = setup.document("a").await;
    assert_eq!(
        (document.published, document.state),
        (1, DocumentState::Published)
    );
    setup.save("a", 1, 7).await;
    setup.publish().await;
    assert_eq!(
        (setup.in_force("a").await, setup.in_force("b").await),
        (Some(7), Some(6))
    );
    assert_eq!(setup.store.publication("prod").await.unwrap().pending, 0);
    assert!(setup.store.alerts("prod").await.unwrap().is_empty());
}

#[tokio::test]
async fn emptied_redis_receives_the_head_again_with_an_alert() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.publish().await;
    setup.redis.command(&["DEL", "prod|book"]);
    assert_eq!(setup.in_force("a").await, None);
    // The registry is compared again although SQL has not changed.
    setup.publish().await;
    assert_eq!(setup.in_force("a").await, Some(5));
    let alerts = setup.store.alerts("prod").await.unwrap();
    assert_eq!(alerts[0].kind, "registry_went_back");
}

/// The clock of a new Redis server is behind that of the previous one, or the last revision was one
/// of a later time: the new revision is higher nevertheless, since processes that follow the
/// registry reject lower ones.
#[tokio::test]
async fn emptied_redis_receives_a_later_revision_than_the_confirmed_one() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.publish().await;
    let (revision, body) = registry_of(&setup.redis).read().await.unwrap().unwrap();
    let later = revision + 3_600_000;
    let text = format!("revision = {later}\n{body}");
    setup.redis.command(&["SET", "prod|book", &text]);
    setup.publish().await;
    assert_eq!(
        setup.store.publication("prod").await.unwrap().registry_revision,
        i64::try_from(later).unwrap()
    );
    setup.redis.command(&["DEL", "prod|book"]);
    // Another node, which has not published that revision itself.
    let target = PublicationTarget::Redis(registry_of(&setup.redis));
    let node = Publisher::new("prod", setup.store.clone(), target);
    node.publish().await.unwrap();
    let (found, _) = registry_of(&setup.redis).read().await.unwrap().unwrap();
    assert!(found > later, "{found}");
    node.publish().await.unwrap();
    let (again, _) = registry_of(&setup.redis).read().await.unwrap().unwrap();
    assert_eq!(again, found, "one publication is enough");
}

/// Another program, or another node, removes a policy of rates and adds one of concurrency.
#[tokio::test]
async fn kind_of_a_policy_that_changed_outside_does_not_end_publication() {
    let setup = Setup::new().await;
    setup.save("jobs", 0, 5).await;
    setup.publish().await;
    setup
        .change_outside(|draft| {
            draft.remove("jobs");
        })
        .await;
    setup.publish().await;
    let concurrency = "[policy.jobs]\nalgorithm = 'concurrency'\nmax = 3\n";
    let concurrency = PolicyText::parse("jobs", concurrency).unwrap();
    setup
        .change_outside(|draft| concurrency.put_into(draft).unwrap())
        .await;
    setup.publish().await;
    setup.save("b", 0, 6).await;
    setup.publish().await;
    assert_eq!(setup.in_force("b").await, Some(6));
    assert_eq!(setup.in_force("jobs").await, Some(3));
}

/// A text without a revision, and one that is not TOML: no process reads either of them. A
/// suspension is published nevertheless.
#[tokio::test]
async fn damaged_registry_is_replaced_with_an_alert() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.publish().await;
    let (revision, body) = registry_of(&setup.redis).read().await.unwrap().unwrap();
    let broken = format!("revision = {}\n{body}[policy.", revision + 1);
    for (expected, damaged) in [(1, "garbage".to_owned()), (2, broken)] {
        setup.redis.command(&["SET", "prod|book", &damaged]);
        setup.save("a", expected, 6).await;
        setup.publish().await;
        assert_eq!(setup.in_force("a").await, Some(6), "{damaged}");
        let alerts = setup.store.alerts("prod").await.unwrap();
        assert!(alerts[0].detail.contains("no process reads"), "{alerts:?}");
    }
    let (found, _) = registry_of(&setup.redis).read().await.unwrap().unwrap();
    assert!(found > revision + 1);
    // The text of a newer program, or one with an error that an operator can correct, stays.
    for other in ["min_reader = 99\n", "[policy.a]\nalgorithm = 'of_the_future'\n"] {
        let other = format!("revision = {}\n{other}", found + 1);
        setup.redis.command(&["SET", "prod|book", &other]);
        setup.publisher.publish().await.unwrap_err();
        assert_eq!(setup.redis.command(&["GET", "prod|book"]).text(), other);
    }
}

/// Saves suspensions as the API does.
async fn save_suspensions(store: &Store, change: impl Fn(&PolicyRegistry)) {
    let changed = |registry: &PolicyRegistry| {
        change(registry);
        Ok(())
    };
    let saved = save_overlays(store, ("ann", Origin::Api), "prod", "incident", changed);
    saved.await.unwrap();
}

/// Another program has published a policy that this version cannot read. Suspensions take effect
/// beside it, the policy stays, and the change is imported when it can be read.
#[tokio::test]
async fn suspensions_are_published_beside_an_unreadable_policy() {
    const BROKEN: &str = "[policy.b]\nalgorithm = 'of_the_future'\nsizes = [1, 2.5]\n";
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.publish().await;
    let read = async || registry_of(&setup.redis).read().await.unwrap().unwrap();
    let set = |(revision, text): (u64, &str)| {
        let text = format!("revision = {revision}\n{text}");
        setup.redis.command(&["SET", "prod|book", &text]);
    };
    let (revision, body) = read().await;
    set((revision + 1, &format!("{body}{BROKEN}")));
    let suspension = |scope: &str| {
        let end = std::time::SystemTime::now() + std::time::Duration::from_secs(600);
        Suspension::new(scope.parse().unwrap(), SuspensionMode::Deny, end)
    };
    save_suspensions(&setup.store, |of| of.suspend(suspension("policy:a")).unwrap()).await;
    let reason = setup.publisher.publish().await.unwrap_err();
    assert!(reason.contains("of_the_future"), "{reason}");
    let overlays = async || {
        let kind = DocumentKind::Overlays;
        setup
            .store
            .document("prod", kind, OVERLAYS)
            .await
            .unwrap()
            .unwrap()
    };
    assert_eq!(overlays().await.state, DocumentState::Published);
    let (found, text) = read().await;
    assert!(found > revision + 1 && text.contains("of_the_future"), "{text}");
    let follower = Limiter::redis(setup.redis.url())
        .namespace("prod")
        .build()
        .unwrap();
    let source = follower.redis_registry().unwrap().follow();
    // The unreadable policy remains an error.
    source.synced().await.unwrap_err();
    assert_eq!(follower.registry().suspensions().len(), 1);
    assert!(follower.registry().get("a").is_some());

    // Redis returns with an earlier copy, as after a failover: the suspension is published again.
    set((revision + 1, &format!("{body}{BROKEN}")));
    setup.publisher.publish().await.unwrap_err();
    let (found, text) = read().await;
    assert!(
        text.contains("policy:a") && text.contains("of_the_future"),
        "{text}"
    );
    assert_eq!(overlays().await.revision, 1);

    // A suspension of another program, such as `kill`, becomes a revision.
    let others = "[[suspend]]\nscope = 'all'\nenforcement = 'off'\nuntil = 2040-01-01T00:00:00Z\n";
    set((found + 1, &format!("{text}{others}")));
    setup.publisher.publish().await.unwrap_err();
    let imported = overlays().await;
    assert_eq!((imported.revision, imported.updated_by.as_str()), (2, "outside"));
    save_suspensions(&setup.store, |of| {
        of.end_suspension(&"policy:a".parse().unwrap());
    })
    .await;
    setup.publisher.publish().await.unwrap_err();
    let (found, text) = read().await;
    assert!(!text.contains("policy:a") && text.contains("\"all\""), "{text}");

    set((
        found + 1,
        &text
            .replace("of_the_future", "sliding_window")
            .replace("sizes = [1, 2.5]", "limit = 7\nwindow = '1m'"),
    ));
    setup.publish().await;
    assert_eq!(setup.document("b").await.updated_by, "outside");
    assert_eq!(
        (setup.in_force("a").await, setup.in_force("b").await),
        (Some(5), Some(7))
    );
    assert_eq!(setup.store.publication("prod").await.unwrap().pending, 0);
}

/// The text beside the registry that names the newest change of the database.
#[tokio::test]
async fn damaged_mark_does_not_end_publication() {
    let setup = Setup::new().await;
    setup.redis.command(&["SET", "prod|book|database", "garbage"]);
    setup.save("a", 0, 5).await;
    setup.publish().await;
    assert_eq!(setup.in_force("a").await, Some(5));
}

/// An empty database has nothing to publish in place of the text.
#[tokio::test]
async fn damaged_registry_stays_beside_an_empty_database() {
    let setup = Setup::new().await;
    setup.redis.command(&["SET", "prod|book", "garbage"]);
    let reason = setup.publisher.publish().await.unwrap_err();
    assert!(reason.contains("no revision"), "{reason}");
    assert_eq!(setup.redis.command(&["GET", "prod|book"]).text(), "garbage");
}

/// Another program publishes while policies end, one in each millisecond.
#[tokio::test]
async fn policy_that_ends_during_a_pass_is_not_imported_as_a_deletion() {
    const POLICIES: u64 = 200;
    let setup = Setup::new().await;
    let ending = |number: u64, end: u64| {
        let until = limiter_core::Timestamp::from_micros(end + number * 1_000);
        let entry = policy(&format!("p{number}"), 5).entry().clone().until(until);
        let registry = PolicyRegistry::new().with(entry);
        PolicyText::of(&registry, &format!("p{number}")).unwrap()
    };
    let now = || u64::try_from(limiter_server::store::now_micros()).unwrap();
    let first = now() + 1_500_000;
    let requests: Vec<SaveRequest> = (0..POLICIES)
        .map(|number| policy_change(&format!("p{number}"), 0, ending(number, first).to_toml()))
        .collect();
    setup.store.save_all(&requests, &author("ann", 1)).await.unwrap();
    setup.publish().await;
    let mut round = 0;
    while now() < first + POLICIES * 1_000 {
        round += 1;
        setup
            .change_outside(|draft| policy("other", round).put_into(draft).unwrap())
            .await;
        setup.publish().await;
    }
    let documents = setup.store.documents("prod").await.unwrap();
    let imported = documents
        .iter()
        .filter(|of| of.name != "other" && of.revision > 1)
        .count();
    assert_eq!(imported, 0, "after {round} publications");
}

/// A newer version of the server has saved a text that this version cannot read, and another
/// program removes the policy: the text is not in force.
#[tokio::test]
async fn unreadable_text_is_no_deletion() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.publish().await;
    let newer = policy_change("a", 1, "[policy.a]\nalgorithm = 'of_the_future'\n".to_owned());
    setup.store.save(&newer, &author("ann", 1)).await.unwrap();
    setup
        .change_outside(|draft| {
            draft.remove("a");
        })
        .await;
    // The text of the tombstone is not known either, so the next pass reports the policy.
    let _ = setup.publisher.publish().await;
    let document = setup.document("a").await;
    assert_eq!((document.published, document.state), (1, DocumentState::Pending));
    assert_eq!(setup.store.publication("prod").await.unwrap().pending, 1);
}

/// The registry has no largest size of one policy, so an import can store a text that is longer
/// than those that users save.
#[tokio::test]
async fn long_text_of_another_program_is_published_again() {
    let setup = Setup::new().await;
    let long = format!("{}note = '{}'\n", text("long", 5), "n".repeat(1 << 20));
    let registry = PolicyRegistry::from_toml(&long).unwrap();
    setup
        .change_outside(|draft| draft.set((*registry.get("long").unwrap()).clone()))
        .await;
    setup.publish().await;
    assert_eq!(setup.document("long").await.state, DocumentState::Published);
    setup.redis.command(&["DEL", "prod|book"]);
    setup.publish().await;
    assert_eq!(setup.in_force("long").await, Some(5));
}

#[tokio::test]
async fn older_registry_is_replaced_by_the_head_with_an_alert() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.publish().await;
    let old = setup.redis.command(&["GET", "prod|book"]).text();
    setup.save("a", 1, 6).await;
    setup.publish().await;
    setup.redis.command(&["SET", "prod|book", &old]);
    setup.publish().await;
    assert_eq!(setup.in_force("a").await, Some(6));
    assert_eq!(
        setup.store.alerts("prod").await.unwrap()[0].kind,
        "registry_went_back"
    );
}

#[tokio::test]
async fn outside_change_is_imported_and_conflicts_with_a_pending_edit() {
    let setup = Setup::new().await;
    for name in ["a", "b", "c"] {
        setup.save(name, 0, 5).await;
    }
    setup.publish().await;
    setup.save("a", 1, 6).await;
    setup.save("b", 1, 6).await;
    setup
        .change_outside(|draft| {
            policy("a", 50).put_into(draft).unwrap();
            policy("new", 51).put_into(draft).unwrap();
            draft.remove("c");
        })
        .await;
    setup.publish().await;
    let conflict = setup.document("a").await;
    assert_eq!((conflict.revision, conflict.state), (3, DocumentState::Conflict));
    assert!(conflict.body.contains("capacity = 50"), "{}", conflict.body);
    let kept = setup.store.revision("prod", DocumentKind::Policy, "a", 2).await;
    assert_eq!(kept.unwrap().unwrap().state, DocumentState::Conflict);
    assert_eq!(setup.in_force("a").await, Some(50), "the change in force stays");
    assert_eq!(setup.in_force("b").await, Some(6), "other policies are published");
    assert_eq!(setup.document("new").await.updated_by, "outside");
    assert!(setup.document("c").await.is_deleted);
    // All documents are published again, and the author has not saved yet.
    setup.redis.command(&["DEL", "prod|book"]);
    setup.publish().await;
    assert_eq!(setup.document("a").await.state, DocumentState::Conflict);
    // The author saves again.
    setup.save("a", 3, 7).await;
    setup.publish().await;
    assert_eq!(setup.in_force("a").await, Some(7));
}

#[tokio::test]
async fn empty_database_imports_the_registry_and_publishes_nothing() {
    let setup = Setup::new().await;
    setup
        .change_outside(|draft| policy("a", 5).put_into(draft).unwrap())
        .await;
    let before = setup.redis.command(&["GET", "prod|book"]);
    setup.publish().await;
    let document = setup.document("a").await;
    assert_eq!((document.revision, document.state), (1, DocumentState::Published));
    assert_eq!(setup.redis.command(&["GET", "prod|book"]), before);
    assert_eq!(
        setup.store.documents("prod").await.unwrap().len(),
        1,
        "no example policy"
    );
}

/// The database is empty, since the registry was empty at its first import, and Redis is restored
/// from an older copy with policies.
#[tokio::test]
async fn empty_database_imports_an_older_registry() {
    let setup = Setup::new().await;
    setup.change_outside(|_| ()).await;
    setup.publish().await;
    let confirmed = setup.store.publication("prod").await.unwrap().registry_revision;
    assert!(confirmed > 5, "{confirmed}");
    let older = format!("revision = 5\n{}", text("a", 5));
    setup.redis.command(&["SET", "prod|book", &older]);
    setup.publish().await;
    assert_eq!(setup.in_force("a").await, Some(5));
    assert_eq!(setup.document("a").await.updated_by, "outside");
    let (revision, _) = registry_of(&setup.redis).read().await.unwrap().unwrap();
    assert!(
        i64::try_from(revision).unwrap() > confirmed,
        "followers accept it"
    );
}

#[tokio::test]
async fn restored_database_imports_and_distrusts_its_credentials() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.publish().await;
    let account = NewAccount {
        name: "root".to_owned(),
        password: None,
        is_admin: true,
    };
    setup.store.add_account(&account, "setup", 1).await.unwrap();
    let root = setup.store.account("root").await.unwrap().unwrap();
    setup
        .store
        .start_signin("session", &root, 1, i64::MAX)
        .await
        .unwrap();
    let token = NewStoredToken {
        id: "t".to_owned(),
        hash: "hash".to_owned(),
        label: "ci".to_owned(),
        namespace: "prod".to_owned(),
        scopes: "admin:viewer".to_owned(),
        created_by: "root".to_owned(),
        issued_by: "root".to_owned(),
        created_at: 1,
        expires_at: i64::MAX,
    };
    setup.store.add_token(&token, None).await.unwrap();
    // A copy of the database, as a backup.
    let copy = Directory::new();
    let path = copy.path().join("limiter.db");
    let vacuum = format!("VACUUM INTO '{}'", path.display());
    let url = format!("sqlite:{}", setup.directory.path().join("limiter.db").display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(vacuum))
        .execute(&pool)
        .await
        .unwrap();
    setup.save("a", 1, 6).await;
    setup.publish().await;

    let restored = open(&copy).await;
    let target = PublicationTarget::Redis(registry_of(&setup.redis));
    Publisher::new("prod", restored.clone(), target)
        .publish()
        .await
        .unwrap();
    let found = restored
        .document("prod", DocumentKind::Policy, "a")
        .await
        .unwrap()
        .unwrap();
    assert!(found.body.contains("capacity = 6"), "{}", found.body);
    assert_eq!(
        setup.in_force("a").await,
        Some(6),
        "limits in force do not go back"
    );
    assert!(restored.signin("session", 2).await.unwrap().is_none());
    let token = restored.token_by_hash("hash").await.unwrap().unwrap();
    assert!(token.is_suspended && !token.is_valid_at(2));
    let alerts = restored.alerts("prod").await.unwrap();
    assert!(
        alerts.iter().any(|of| of.detail.contains("policy `a` differs")),
        "{alerts:?}"
    );
}

#[tokio::test]
async fn publication_without_confirmation_is_recognized() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.publish().await;
    setup.save("a", 1, 6).await;
    // A node publishes and is killed before the confirmation.
    setup
        .change_outside(|draft| policy("a", 6).put_into(draft).unwrap())
        .await;
    setup.save("a", 2, 7).await;
    setup.publish().await;
    let document = setup.document("a").await;
    assert_eq!((document.revision, document.state), (3, DocumentState::Published));
    assert_eq!(setup.in_force("a").await, Some(7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_nodes_publish_every_save() {
    const POLICIES: u32 = 12;
    let setup = Setup::new().await;
    let other = open(&setup.directory).await;
    let target = PublicationTarget::Redis(registry_of(&setup.redis));
    let second = Publisher::new("prod", other.clone(), target);
    let nodes = [(setup.store.clone(), setup.publisher.clone()), (other, second)];
    let mut tasks = tokio::task::JoinSet::new();
    for (node, (store, publisher)) in nodes.into_iter().enumerate() {
        tasks.spawn(tokio::spawn(publisher.clone().run()));
        tasks.spawn(tokio::spawn(async move {
            for number in 0..POLICIES {
                save(&store, &format!("p{node}-{number}"), 0, number + 1).await;
                publisher.wake();
            }
        }));
    }
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let documents = setup.store.documents("prod").await.unwrap();
        let all = usize::try_from(2 * POLICIES).unwrap();
        let is_done = |of: &StoredDocument| of.state == DocumentState::Published;
        if documents.len() == all && documents.iter().all(is_done) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{documents:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    for number in 0..POLICIES {
        for node in 0..2 {
            let name = format!("p{node}-{number}");
            assert_eq!(setup.in_force(&name).await, Some(u64::from(number + 1)), "{name}");
        }
    }
    assert!(setup.store.alerts("prod").await.unwrap().is_empty());
    tasks.abort_all();
}

/// A newer version has saved fields that this version does not know.
#[tokio::test]
async fn unreadable_document_does_not_keep_back_the_others() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.save("b", 0, 5).await;
    setup.publish().await;
    let newer = policy_change("a", 1, "[policy.a]\nalgorithm = 'of_the_future'\n".to_owned());
    setup.store.save(&newer, &author("ann", 1)).await.unwrap();
    setup.save("b", 1, 6).await;
    for _ in 0..2 {
        let reason = setup.publisher.publish().await.unwrap_err();
        assert!(
            reason.contains("policy `a`") && reason.contains("of_the_future"),
            "{reason}"
        );
        assert_eq!(setup.document("a").await.state, DocumentState::Pending);
        assert_eq!(setup.document("b").await.state, DocumentState::Published);
        let capacities = (setup.in_force("a").await, setup.in_force("b").await);
        assert_eq!(
            capacities,
            (Some(5), Some(6)),
            "the policy keeps its version in force"
        );
    }
    let revision = || async { registry_of(&setup.redis).read().await.unwrap().unwrap().0 };
    let before = revision().await;
    setup.publisher.publish().await.unwrap_err();
    assert_eq!(revision().await, before, "nothing new is published");
    // Redis loses its data: the limit is enforced by the version that was in force.
    setup.redis.command(&["DEL", "prod|book"]);
    setup.publisher.publish().await.unwrap_err();
    let capacities = (setup.in_force("a").await, setup.in_force("b").await);
    assert_eq!(capacities, (Some(5), Some(6)));
    setup.save("a", 2, 7).await;
    setup.publish().await;
    assert_eq!(setup.in_force("a").await, Some(7));
}

/// The registry of a gateway without Redis follows SQL.
#[tokio::test]
async fn unreadable_document_does_not_keep_back_the_others_without_redis() {
    let setup = Setup::new().await;
    let registry = PolicyRegistry::new();
    let target = PublicationTarget::Gateway(registry.clone());
    let publisher = Publisher::new("prod", setup.store.clone(), target);
    setup.save("a", 0, 5).await;
    publisher.publish().await.unwrap();
    let newer = policy_change("a", 1, "[policy.a]\nalgorithm = 'of_the_future'\n".to_owned());
    setup.store.save(&newer, &author("ann", 1)).await.unwrap();
    setup.save("b", 0, 6).await;
    let reason = publisher.publish().await.unwrap_err();
    assert!(reason.contains("policy `a`"), "{reason}");
    let capacity = |name: &str| registry.get(name).map(|entry| entry.policy().quota().whole());
    assert_eq!((capacity("a"), capacity("b")), (Some(5), Some(6)));
    assert_eq!(setup.document("a").await.state, DocumentState::Pending);
    assert_eq!(setup.document("b").await.state, DocumentState::Published);
}

/// A renamed policy with its rule: a gateway without Redis finds each rule with its policy at all
/// times, or calls would pass without a limit.
#[tokio::test]
async fn rules_have_their_policies_while_documents_change_without_redis() {
    let setup = Setup::new().await;
    let registry = PolicyRegistry::new();
    let target = PublicationTarget::Gateway(registry.clone());
    let publisher = Publisher::new("prod", setup.store.clone(), target);
    let rules = |policy: &str, expected| SaveRequest {
        kind: DocumentKind::Rules,
        ..policy_change(
            RULES,
            expected,
            format!("[[rule]]\nmatch = ['route']\npolicy = '{policy}'\n"),
        )
    };
    let saved = async |request: &SaveRequest| {
        setup.store.save(request, &author("ann", 1)).await.unwrap();
    };
    setup.save("a", 0, 5).await;
    for number in 0..100 {
        setup.save(&format!("b{number:03}"), 0, 5).await;
    }
    saved(&rules("a", 0)).await;
    publisher.publish().await.unwrap();
    let tombstone = policy("a", 5).tombstone(limiter_core::Timestamp::from_micros(1));
    saved(&SaveRequest {
        is_deletion: true,
        ..policy_change("a", 1, tombstone.to_toml())
    })
    .await;
    for number in 0..100 {
        setup.save(&format!("b{number:03}"), 1, 6).await;
    }
    setup.save("c", 0, 5).await;
    saved(&rules("c", 1)).await;
    let (ended, watched) = (Arc::new(AtomicBool::new(false)), registry.clone());
    let is_over = Arc::clone(&ended);
    let watching = std::thread::spawn(move || {
        let is_in_force = |name: &str| watched.get(name).is_some_and(|of| of.end().is_none());
        while !is_over.load(Ordering::Relaxed) {
            let rules = watched.rules();
            let missing = rules.iter().find(|of| !is_in_force(of.policy()));
            // A gateway repeats the lookup if the rules have changed.
            if let Some(rule) = missing.filter(|_| Arc::ptr_eq(&rules, &watched.rules())) {
                return Some(rule.policy().to_owned());
            }
        }
        None
    });
    publisher.publish().await.unwrap();
    ended.store(true, Ordering::Relaxed);
    assert_eq!(watching.join().unwrap(), None);
    assert!(registry.get("a").unwrap().end().is_some());
    assert_eq!(registry.rules()[0].policy(), "c");
}

/// The published text keeps all tombstones.
#[test]
fn tombstone_has_no_key_lists_and_no_trial() {
    let keys: Vec<String> = (0..1_000).map(|number| format!("'key{number}'")).collect();
    let keys = keys.join(", ");
    let before = format!(
        "{}generation = 3\nallow_keys = [{keys}]\ndeny_keys = [{keys}]\n\
         trial = {{ capacity = 9, rate = '1/h', until = 2100-01-01T00:00:00Z }}\n",
        text("a", 5)
    );
    let before = PolicyText::parse("a", &before).unwrap();
    let at = limiter_core::Timestamp::from_micros(1);
    let tombstone = before.tombstone(at);
    let written = tombstone.to_toml();
    assert!(written.len() < 400, "{written}");
    assert!(tombstone.is_ended_at(at));
    let kept = tombstone.entry().policy();
    assert_eq!((kept.quota().whole(), kept.generation()), (5, 3));
}

/// A new replica with the deleted policy `a` in its code does not apply it. This number of `b`
/// remains.
async fn assert_deleted(setup: &Setup, remaining: u64) {
    let code = PolicyRegistry::from_toml(&text("a", 5)).unwrap();
    let limiter = Limiter::redis(setup.redis.url())
        .namespace("prod")
        .registry(&code);
    let limiter = limiter.build().unwrap();
    limiter.redis_registry().unwrap().follow().synced().await.unwrap();
    let decision = limiter.named("a").check("ann").await.unwrap();
    assert_eq!(decision.origin(), limiter_core::Origin::NotConfigured);
    assert_eq!(
        limiter.named("b").check("ann").await.unwrap().remaining(),
        remaining
    );
}

#[tokio::test]
async fn deletion_publishes_a_tombstone() {
    let setup = Setup::new().await;
    setup.save("a", 0, 5).await;
    setup.save("b", 0, 5).await;
    setup.publish().await;
    let old = setup.redis.command(&["GET", "prod|book"]).text();
    let at = limiter_core::Timestamp::from_micros(1);
    let request = SaveRequest {
        is_deletion: true,
        ..policy_change("a", 1, policy("a", 5).tombstone(at).to_toml())
    };
    setup.store.save(&request, &author("ann", 1)).await.unwrap();
    setup.publish().await;
    // A replica whose code has the policy does not apply it any more.
    assert_deleted(&setup, 4).await;
    // The tombstone is no change of another program.
    setup.publish().await;
    assert_eq!(setup.document("a").await.revision, 2);
    // Redis is restored from a dump that has the policy.
    setup.redis.command(&["SET", "prod|book", &old]);
    setup.publish().await;
    assert_deleted(&setup, 3).await;
    assert!(setup.document("a").await.is_deleted);
}
