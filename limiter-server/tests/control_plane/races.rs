//! Races between nodes, some of them made deterministic by a lock in PostgreSQL, and between users.

use limiter_server::store::{DocumentKind, Store};
use limiter_testing::{Proxy, RedisServer};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::support::admin::{AdminClient, Credentials, policy_of_all, with_database, with_sqlite};
use crate::support::browser::Browser;
use crate::support::databases::Database;
use crate::support::server::{Directory, wait_until};
use crate::{bucket, in_force, publisher_of, registry_of, save};

/// The rules name a policy that another user deletes at the time of the save: each change fits to
/// the saved documents, and both together do not.
#[test]
fn rule_and_deletion_of_its_policy_are_not_both_saved() {
    let database = Database::postgres();
    let server = with_database(Directory::new(), &database.create("together"), &[]);
    let root = AdminClient::set_up(&server);
    let rules = "/namespaces/default/rules";
    for round in 0..40_i64 {
        let name = format!("p{round}");
        let saved = root.put_policy(&name, 0, &policy_of_all(&name, 5));
        assert_eq!(saved.status, 200, "{}", saved.body);
        let (revision, tag) = (root.get(rules).json()["revision"].as_i64().unwrap(), "if-match");
        let revision = revision.to_string();
        let statuses = std::thread::scope(|scope| {
            let path = format!("/namespaces/default/policies/{name}");
            let root = &root;
            let deleted = scope.spawn(move || root.send("DELETE", &path, &[(tag, "1")], &Value::Null).status);
            let rule = format!("[[rule]]\nmatch = ['customer']\npolicy = '{name}'\n");
            let ruled = root.send("PUT", rules, &[(tag, &revision)], &json!({ "toml": rule }));
            [deleted.join().unwrap(), ruled.status]
        });
        assert!(
            matches!(statuses, [200, 422] | [422, 200]),
            "round {round}: {statuses:?}"
        );
    }
}

/// A policy of the other kind replaces a deleted one only when the deletion is in force: no
/// registry accepts the change otherwise, and all publications of the namespace would fail.
#[test]
fn kind_of_a_deleted_policy_changes_after_the_publication_of_the_deletion() {
    let redis = RedisServer::start();
    let (proxy, directory) = (Proxy::start(redis.port()), Directory::new());
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let server = with_database(directory, &url, &["--redis", &proxy.url()]);
    let root = AdminClient::set_up(&server);
    let path = "/namespaces/default/policies/jobs";
    assert_eq!(root.put_policy("jobs", 0, &policy_of_all("jobs", 5)).status, 200);
    let state = || root.get(path).json()["state"].clone();
    wait_until(|| state() == "published", || server.log());
    proxy.refuse(true);
    proxy.drop_connections();
    assert_eq!(
        root.send("DELETE", path, &[("if-match", "1")], &Value::Null)
            .status,
        200
    );
    let concurrency = "[policy.jobs]\nalgorithm = 'concurrency'\nmax = 3\n";
    let early = root.put_policy("jobs", 0, concurrency);
    assert!(
        early.status == 422 && early.body.contains("not in force yet"),
        "{}: {}",
        early.status,
        early.body
    );
    proxy.refuse(false);
    wait_until(
        || root.put_policy("jobs", 0, concurrency).status == 200,
        || server.log(),
    );
    wait_until(|| state() == "published", || server.log());
}

/// A node reads the registry, another node publishes and confirms, and then the first node reads
/// the confirmation, which is newer than its registry.
async fn publish_between_the_reads(url: &str) {
    let (redis, store) = (RedisServer::start(), Store::open(url).await.unwrap());
    let publisher = publisher_of(&store, &redis);
    let policy = DocumentKind::Policy;
    save(&store, policy, "search", 0, &bucket("search", ""), 1).await;
    publisher.publish().await.unwrap();
    save(&store, policy, "mail", 0, &bucket("mail", ""), 2).await;

    let connect = async || PgConnection::connect(url).await.unwrap();
    let (mut other, mut observer) = (connect().await, connect().await);
    let mut other = other.begin().await.unwrap();
    let lock = "LOCK TABLE publication IN ACCESS EXCLUSIVE MODE";
    other.execute(lock).await.unwrap();
    let late = publisher.clone();
    let late = tokio::spawn(async move { late.publish().await });
    // The node has read the registry, and waits for its first table.
    wait_for_a_waiting_lock(&mut observer, &late).await;
    let registry = registry_of(&redis);
    let (revision, text) = registry.read().await.unwrap().unwrap();
    let published = registry.publish(&text, revision).await.unwrap();
    let confirm = format!("UPDATE publication SET registry_revision = {published}");
    other.execute(sqlx::AssertSqlSafe(confirm)).await.unwrap();
    other.commit().await.unwrap();
    late.await.unwrap().unwrap();

    let alerts = store.alerts("prod").await.unwrap();
    assert!(alerts.is_empty(), "{alerts:?}");
    assert!(in_force(&redis).await.get("mail").is_some());
    // A registry that is older at both reads has lost data.
    redis.command(&["DEL", "prod|book"]);
    publisher.publish().await.unwrap();
    let alerts = store.alerts("prod").await.unwrap();
    assert_eq!(alerts.len(), 1, "{alerts:?}");
    assert_eq!(alerts[0].kind, "registry_went_back");
}

#[test]
fn publication_of_another_node_between_the_reads_raises_no_alert() {
    let database = Database::postgres();
    let url = database.create("races");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.unwrap().block_on(publish_between_the_reads(&url));
}

/// Waits until a statement of a task waits for a lock, or the task has ended.
async fn wait_for_a_waiting_lock<T>(observer: &mut PgConnection, task: &tokio::task::JoinHandle<T>) {
    while !task.is_finished() {
        let waiting = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted";
        let row = observer.fetch_one(waiting).await.unwrap();
        if row.get::<i64, _>(0) > 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// The user is removed after the sign-in of the request, before the token is stored.
#[test]
fn token_of_a_user_that_is_removed_meanwhile_is_not_stored() {
    const TOKENS: &str = "/namespaces/default/tokens";
    let database = Database::postgres();
    let url = database.create("removed");
    let server = with_database(Directory::new(), &url, &[]);
    let root = AdminClient::set_up(&server);
    let ann = root.add_user("ann", &[("*", "admin")]);
    let body = json!({ "name": "first", "scopes": ["admin:admin"] });
    let first = ann.send("POST", TOKENS, &[], &body);
    assert_eq!(first.status, 201, "{}", first.body);
    let secret = first.json()["secret"].as_str().unwrap().to_owned();
    let program = AdminClient::new(server.admin(), Credentials::Token(secret));
    // The first use on a day is recorded.
    assert_eq!(program.get(TOKENS).status, 200);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (client, lock, change) in [
        (
            program,
            "SELECT id FROM token WHERE label = 'first' FOR UPDATE",
            "UPDATE token SET revoked_at = 1 WHERE label = 'first'",
        ),
        (
            ann,
            "SELECT name FROM account WHERE name = 'ann' FOR UPDATE",
            "DELETE FROM account WHERE name = 'ann'",
        ),
    ] {
        runtime.block_on(async {
            let connect = async || PgConnection::connect(&url).await.unwrap();
            let (mut other, mut observer) = (connect().await, connect().await);
            let mut other = other.begin().await.unwrap();
            other.execute(lock).await.unwrap();
            let created = tokio::task::spawn_blocking(move || {
                let body = json!({ "name": "late", "scopes": ["check:*"] });
                client.send("POST", TOKENS, &[], &body)
            });
            wait_for_a_waiting_lock(&mut observer, &created).await;
            other.execute(change).await.unwrap();
            other.commit().await.unwrap();
            let created = created.await.unwrap();
            assert_eq!(created.status, 404, "{}", created.body);
        });
        let tokens = root.get(TOKENS).body;
        assert!(!tokens.contains("late"), "{tokens}");
    }
}

/// A transaction takes the number of its entry and commits after a later one.
async fn commit_an_earlier_number_late(url: &str) {
    const SECOND: i64 = 1_000_000;
    const NOW: i64 = 1_800_000_000 * SECOND;
    let store = Store::open(url).await.unwrap();
    let policy = DocumentKind::Policy;
    let insert = |name: &str, age: i64| {
        sqlx::AssertSqlSafe(format!(
            "INSERT INTO audit (namespace, created_at, actor, action, object) \
             VALUES ('prod', {}, 'ann', 'policy.update', '{name}')",
            NOW - age * SECOND
        ))
    };
    let read = async |cursor: i64, age: i64| {
        let events = store.events_after(cursor, NOW - age * SECOND, 10).await.unwrap();
        events.into_iter().map(|of| of.object).collect::<Vec<_>>()
    };
    let mut other = PgConnection::connect(url).await.unwrap();
    let mut slow = other.begin().await.unwrap();
    slow.execute(insert("slow", 30)).await.unwrap();
    save(&store, policy, "fast", 0, &bucket("fast", ""), NOW - 29 * SECOND).await;
    assert_eq!(read(0, 2).await, Vec::<String>::new());
    slow.commit().await.unwrap();
    assert_eq!(read(0, 2).await, ["slow", "fast"]);

    // A transaction that was rolled back leaves its number unused.
    let cursor = store.newest_change().await.unwrap();
    let mut rolled_back = other.begin().await.unwrap();
    rolled_back.execute(insert("never", 30)).await.unwrap();
    save(&store, policy, "next", 0, &bucket("next", ""), NOW - 29 * SECOND).await;
    rolled_back.rollback().await.unwrap();
    assert_eq!(read(cursor, 2).await, Vec::<String>::new());
    assert_eq!(read(cursor, -60).await, ["next"]);
    store.record("prod", "ann", "key.read", "", NOW).await.unwrap();
    save(&store, policy, "last", 0, &bucket("last", ""), NOW - 29 * SECOND).await;
    let cursor = cursor + 2;
    assert_eq!(read(cursor, 2).await, ["last"], "other entries are no gap");
}

#[test]
fn webhook_event_whose_transaction_commits_late_is_not_passed_over() {
    let database = Database::postgres();
    let url = database.create("late");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.unwrap().block_on(commit_an_earlier_number_late(&url));
}

/// Each administrator changes one property of the user, and has read the user before the other
/// change.
#[test]
fn changes_of_one_user_by_two_administrators_are_both_kept() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.add_user("ann", &[]);
    let put = |body: Value| root.send("PUT", "/users/ann", &[], &body).status;
    let ann = || {
        let users = root.get("/users").json();
        let users = users["users"].as_array().unwrap().clone();
        let ann = users.into_iter().find(|of| of["name"] == "ann").unwrap();
        (ann["admin"].clone(), ann["disabled"].clone())
    };
    assert_eq!(put(json!({ "disabled": true })), 204);
    assert_eq!(put(json!({ "admin": true })), 204);
    assert_eq!(ann(), (json!(true), json!(true)));
    assert_eq!(put(json!({})), 400);
    // A page that was loaded before the user was disabled.
    let mut browser = Browser::signed_in(&server, "root");
    let page = browser.get("/settings").body;
    assert!(page.contains("name=\"was_disabled\" value=\"1\""), "{page}");
    let stale = [("was_admin", "1")];
    let saved = browser.post("/settings/users/ann", &stale);
    assert_eq!(saved.status, 303, "{}", saved.body);
    assert_eq!(ann(), (json!(false), json!(true)));
    assert_eq!(put(json!({ "admin": false, "disabled": false })), 204);
    assert_eq!(ann(), (json!(false), json!(false)));
}

/// The first use of a token on a day is recorded. A standby of the database accepts no record.
#[test]
fn token_is_accepted_while_the_database_only_reads() {
    let database = Database::postgres();
    let url = database.create("standby");
    let server = with_database(Directory::new(), &url, &[]);
    let root = AdminClient::set_up(&server);
    let body = json!({ "name": "ci", "scopes": ["admin:viewer"] });
    let created = root.send("POST", "/namespaces/default/tokens", &[], &body);
    let secret = created.json()["secret"].as_str().unwrap().to_owned();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        for refusal in [
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'read only' USING ERRCODE = '25006'; END $$",
            "CREATE TRIGGER refused BEFORE UPDATE ON token FOR EACH STATEMENT EXECUTE FUNCTION refuse()",
        ] {
            connection.execute(refusal).await.unwrap();
        }
    });
    let program = AdminClient::new(server.admin(), Credentials::Token(secret));
    let read = program.get("/namespaces/default/policies");
    assert_eq!(read.status, 200, "{}", read.body);
}

/// Two owners have read the bounds before either of them replaces them.
#[test]
fn bounds_that_another_owner_has_changed_are_not_replaced() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let path = "/namespaces/default/apps/shop";
    let put = |bounds: Value, previous: Value| {
        let body = json!({ "bounds": bounds, "previous": previous });
        root.send("PUT", path, &[], &body).status
    };
    assert_eq!(put(json!({ "max_capacity": 5 }), json!({})), 204);
    assert_eq!(put(json!({ "max_capacity": 6 }), json!({})), 409);
    assert_eq!(
        put(json!({ "max_capacity": 7 }), json!({ "max_capacity": 5 })),
        204
    );
    let mut browser = Browser::signed_in(&server, "root");
    let mut form = |previous: &str| {
        let fields = ["min_capacity", "max_capacity", "min_rate", "max_rate"].map(|name| (name, ""));
        let fields = [&fields[..], &[("previous", previous)]].concat();
        browser.post("/e/default/apps/shop/bounds", &fields)
    };
    let stale = form("{\"max_capacity\":5}");
    assert!(
        stale.status == 409 && stale.body.contains("read it again"),
        "{}",
        stale.body
    );
    assert_eq!(form("{\"max_capacity\":7}").status, 303);
    let page = Browser::signed_in(&server, "root")
        .get("/e/default/apps/shop/people")
        .body;
    assert!(page.contains("name=\"previous\" value=\"{"), "{page}");
}
