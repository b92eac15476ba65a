//! A database that stops during a transaction: statements have a timeout, and a commit without an
//! answer is reported as unknown.

use std::time::{Duration, Instant};

use limiter_server::store::{DocumentKind, Store, UsageKind, UsageSpan};
use limiter_server::usage::{self, UsageCounts, UsageRecorder};
use limiter_testing::RedisServer;
use metrics::{Key, Label, Level, Metadata, NoopRecorder, Recorder as _};
use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::bucket;
use crate::support::admin::{AdminClient, policy_of_all, with_database};
use crate::support::browser::Browser;
use crate::support::databases::{Database, block_on};
use crate::support::http;
use crate::support::saves::{author, policy_change};
use crate::support::server::{Directory, wait_until};

/// The documented time until an answer, with a margin for a busy machine.
const WITHIN: Duration = Duration::from_secs(14);
/// The commit of a save waits for a lock.
const WAIT: &str = "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
                    'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END'";
const LATE: &str = "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON outbox DEFERRABLE INITIALLY DEFERRED \
                    FOR EACH ROW EXECUTE FUNCTION wait()";

/// The host of the database vanishes while the save holds a transaction: its connection stays open
/// without answers.
#[test]
fn save_in_a_stalled_transaction_fails_within_the_timeout() {
    let (redis, mut database) = (RedisServer::start(), Database::postgres());
    let (url, redis_url) = (database.create("stalled"), redis.url());
    let server = with_database(Directory::new(), &url, &["--redis", &redis_url]);
    let root = AdminClient::set_up(&server);
    let save = |revision, capacity| root.put_policy("search", revision, &policy_of_all("search", capacity));
    assert_eq!(save(0, 1_000).status, 200);
    let peek = || {
        let body = json!({ "policy": "search", "key": "ann" }).to_string();
        http::post(server.http(), "/v1/peek", &[], &body).unwrap().status
    };
    wait_until(|| peek() == 200, || server.log());
    let state = || root.get("/namespaces/default/policies/search").json()["state"].clone();
    wait_until(|| state() == "published", || server.log());

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap();
    let mut other = runtime.block_on(PgConnection::connect(&url)).unwrap();
    // The save waits for this lock after its first statements.
    for statement in ["BEGIN", "LOCK TABLE outbox IN EXCLUSIVE MODE"] {
        runtime.block_on(other.execute(statement)).unwrap();
    }
    std::thread::scope(|scope| {
        let saving = scope.spawn(|| save(1, 2_000));
        let waits = "SELECT pid FROM pg_stat_activity \
                     WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO outbox%'";
        // A transaction reads the activity once.
        let mut observer = runtime.block_on(PgConnection::connect(&url)).unwrap();
        let is_waiting = || !runtime.block_on(observer.fetch_all(waits)).unwrap().is_empty();
        wait_until(is_waiting, || server.log());
        database.pause();
        let paused = Instant::now();
        while !saving.is_finished() {
            assert_eq!(peek(), 200, "{}", server.log());
            assert!(
                paused.elapsed() < WITHIN,
                "{:?}\n{}",
                paused.elapsed(),
                server.log()
            );
        }
        let answer = saving.join().unwrap();
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(answer.body.contains("does not answer"), "{}", answer.body);
    });
    database.resume();
    runtime.block_on(other.close()).unwrap();
    // The transaction has ended without its changes, and the other tasks of the node go on.
    let is_saved = || {
        let answer = save(1, 3_000);
        assert_ne!(answer.status, 409, "{}", answer.body);
        answer.status == 200
    };
    wait_until(is_saved, || server.log());
    wait_until(|| state() == "published", || server.log());
    assert_eq!(peek(), 200);
}

/// Other requests begin an outage while a form waits for the answer to its commit.
#[test]
fn form_with_an_unknown_outcome_is_not_reported_as_unchanged() {
    let database = Database::postgres();
    let url = database.create("unknown");
    let server = with_database(Directory::new(), &url, &[]);
    let root = AdminClient::set_up(&server);
    let text = policy_of_all("search", 1_000);
    assert_eq!(root.put_policy("search", 0, &text).status, 200);
    let state = || root.get("/namespaces/default/policies/search").json()["state"].clone();
    wait_until(|| state() == "published", || server.log());
    let mut browser = Browser::signed_in(&server, "root");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap();
    let connect = || runtime.block_on(PgConnection::connect(&url)).unwrap();
    let (mut other, mut observer) = (connect(), connect());
    let mut execute = |statement: &'static str| runtime.block_on(other.execute(statement)).unwrap();
    for statement in [WAIT, LATE, "SELECT pg_advisory_lock(7)"] {
        execute(statement);
    }
    std::thread::scope(|scope| {
        let changed = text.replace("1000", "2000");
        let form = scope.spawn(move || {
            let fields = [("revision", "1"), ("text", changed.as_str())];
            browser.post("/e/default/policies/search/save", &fields)
        });
        let waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND query = 'COMMIT'";
        let is_waiting = || !runtime.block_on(observer.fetch_all(waits)).unwrap().is_empty();
        wait_until(is_waiting, || server.log());
        // These requests use all connections, so others fail before the commit does.
        execute("BEGIN");
        execute("LOCK TABLE signin IN ACCESS EXCLUSIVE MODE");
        for _ in 0..16 {
            scope.spawn(|| root.page("/e/default/apps"));
        }
        let answer = form.join().unwrap();
        assert!(server.log().contains("pages are read-only"), "{}", server.log());
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(answer.body.contains("may have been saved"), "{}", answer.body);
        execute("ROLLBACK");
        execute("SELECT pg_advisory_unlock(7)");
    });
}

/// The database makes the change after the caller has stopped to wait for it.
#[test]
fn commit_without_an_answer_is_reported_as_unknown() {
    let database = Database::postgres();
    block_on(commit_without_an_answer(&database.create("unconfirmed")));
}

async fn commit_without_an_answer(url: &str) {
    let store = Store::open(url).await.unwrap();
    let mut other = PgConnection::connect(url).await.unwrap();
    for statement in [WAIT, LATE, "SELECT pg_advisory_lock(7)"] {
        other.execute(statement).await.unwrap();
    }
    let request = policy_change("search", 0, bucket("search", ""));
    let started = Instant::now();
    let error = store.save(&request, &author("ann", 1)).await.unwrap_err();
    assert!(started.elapsed() < WITHIN, "{:?}", started.elapsed());
    assert!(error.is_unconfirmed() && error.is_unavailable(), "{error:?}");
    assert!(error.to_string().contains("may have been saved"), "{error}");
    other.execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    // The connection of the commit was closed, so no later statement receives its answer.
    loop {
        let found = store
            .document("prod", DocumentKind::Policy, "search")
            .await
            .unwrap();
        if found.is_some_and(|of| of.revision == 1) {
            break;
        }
        assert!(started.elapsed() < WITHIN * 2, "the commit was not made");
        tokio::task::yield_now().await;
    }
}

/// The database makes the additions after the node has stopped to wait for them.
#[test]
fn usage_of_a_commit_without_an_answer_is_not_added_again() {
    let database = Database::postgres();
    block_on(usage_of_a_late_commit(&database.create("late_usage")));
}

async fn usage_of_a_late_commit(url: &str) {
    let store = Store::open(url).await.unwrap();
    let mut other = PgConnection::connect(url).await.unwrap();
    for statement in [
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END'",
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON usage_count DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION wait()",
        "SELECT pg_advisory_lock(7)",
    ] {
        other.execute(statement).await.unwrap();
    }
    let counts = UsageCounts::default();
    let recorder = UsageRecorder::new(NoopRecorder, counts.clone());
    let count = |policy: &'static str| {
        let labels = [("policy", policy), ("outcome", "allowed"), ("origin", "redis")];
        let labels = labels.map(|(name, value)| Label::new(name, value));
        let key = Key::from_parts("limiter_decisions_total", labels.to_vec());
        let metadata = Metadata::new("test", Level::INFO, None);
        recorder.register_counter(&key, &metadata).increment(5);
    };
    count("search");
    let fold = tokio::spawn(usage::fold(counts, store.clone(), "prod".to_owned()));
    let started = Instant::now();
    let waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND (query = 'COMMIT' OR query LIKE 'INSERT INTO usage_count%')";
    let mut observer = PgConnection::connect(url).await.unwrap();
    let mut wait_for = async |transactions: usize| {
        while observer.fetch_all(waits).await.unwrap().len() < transactions {
            assert!(started.elapsed() < WITHIN * 2, "{transactions} do not wait");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    wait_for(1).await;
    count("mail");
    // The node closes the connection of the first commit after its timeout, and goes on.
    wait_for(2).await;
    let sum = async |policy: &str| {
        let range = (0, i64::MAX);
        let found = store.usage_sum(("prod", policy), UsageKind::Policy, UsageSpan::Minute, range);
        found.await.unwrap().allowed
    };
    other.execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    while sum("mail").await == 0 {
        assert!(started.elapsed() < WITHIN * 2, "the counts were not added");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((sum("search").await, sum("mail").await), (5, 5));
    fold.abort();
}
