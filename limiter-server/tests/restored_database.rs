//! A database that is restored from an older copy: its sessions end and its tokens wait for
//! confirmation, also after a crash and without a publication since the copy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::path::{Path, PathBuf};

use limiter_core::Limiter;
use limiter_server::policy_text::PolicyText;
use limiter_server::publish::{PublicationTarget, Publisher};
use limiter_server::store::{DocumentKind, NewAccount, NewStoredToken, Store};
use limiter_testing::{RedisServer, RespValue};
use serde_json::{Value, json};
use support::admin::{AdminClient, policy_of_all, with_database};
use support::calls::post_as;
use support::databases::block_on;
use support::saves::{author, policy_change};
use support::server::{Directory, Server, run, wait_until};

/// Runs statements on an SQLite file.
async fn execute(path: &Path, statements: &[&str]) {
    let url = format!("sqlite:{}", path.display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    for statement in statements {
        let statement = sqlx::AssertSqlSafe((*statement).to_owned());
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    pool.close().await;
}

/// Writes a copy of an SQLite file, as a backup does.
async fn copy(from: &Path, to: &Path) {
    execute(from, &[&format!("VACUUM INTO '{}'", to.display())]).await;
}

/// Starts a server with the database of a directory.
fn start(directory: Directory, redis: &RedisServer) -> Server {
    let database = format!("sqlite:{}", directory.path().join("limiter.db").display());
    with_database(directory, &database, &["--redis", &redis.url()])
}

async fn open(path: &Path) -> Store {
    Store::open(&format!("sqlite:{}", path.display())).await.unwrap()
}

fn publisher(store: &Store, redis: &RedisServer) -> Publisher {
    let limiter = Limiter::redis(redis.url()).namespace("prod").build().unwrap();
    let target = PublicationTarget::Redis(limiter.redis_registry().unwrap());
    Publisher::new("prod", store.clone(), target)
}

async fn save(store: &Store, expected: i64, capacity: u32) {
    let text = PolicyText::parse("a", &policy_of_all("a", capacity)).unwrap();
    let request = policy_change("a", expected, text.to_toml());
    store.save(&request, &author("ann", 1)).await.unwrap();
}

/// Adds a session and a token.
async fn add_credentials(store: &Store) {
    let account = NewAccount {
        name: "root".to_owned(),
        password: None,
        is_admin: true,
    };
    store.add_account(&account, "setup", 1).await.unwrap();
    let root = store.account("root").await.unwrap().unwrap();
    store.start_signin("session", &root, 1, i64::MAX).await.unwrap();
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
    store.add_token(&token, None).await.unwrap();
}

/// The database fails after the import and before the end of the sessions, as a crash of the node
/// between the two. The next pass finds the restoration again.
#[tokio::test]
async fn interrupted_import_of_a_restored_copy_is_repeated() {
    let (directory, redis) = (Directory::new(), RedisServer::start());
    let (live, restored) = (directory.path().join("live.db"), directory.path().join("copy.db"));
    let store = open(&live).await;
    save(&store, 0, 5).await;
    add_credentials(&store).await;
    publisher(&store, &redis).publish().await.unwrap();
    copy(&live, &restored).await;
    save(&store, 1, 6).await;
    publisher(&store, &redis).publish().await.unwrap();

    let crash = "CREATE TRIGGER crash BEFORE DELETE ON signin BEGIN SELECT RAISE(ABORT, 'crash'); END";
    execute(&restored, &[crash]).await;
    let copy = open(&restored).await;
    let error = publisher(&copy, &redis).publish().await.unwrap_err();
    assert!(error.contains("crash"), "{error}");
    execute(&restored, &["DROP TRIGGER crash"]).await;

    publisher(&copy, &redis).publish().await.unwrap();
    assert!(copy.signin("session", 2).await.unwrap().is_none());
    let token = copy.token("prod", "t").await.unwrap().unwrap();
    assert!(token.is_suspended && !token.is_valid_at(2));
    let alerts = copy.alerts("prod").await.unwrap();
    let details: Vec<&str> = alerts.iter().map(|of| of.detail.as_str()).collect();
    assert!(
        details.iter().any(|of| of.contains("policy `a` differs")),
        "{details:?}"
    );
    let found = copy.document("prod", DocumentKind::Policy, "a").await.unwrap();
    assert_eq!(found.unwrap().revision, 2, "the change is imported once");
}

fn file_of(server: &Server) -> PathBuf {
    server.directory().path().join("limiter.db")
}

/// Nothing is published between the copy and the revocation, so the registry does not differ.
#[test]
fn copy_from_before_a_revocation_does_not_revive_the_token() {
    let redis = RedisServer::start();
    let control = start(Directory::new(), &redis);
    let root = AdminClient::set_up(&control);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 100)).status,
        200
    );
    let body = json!({ "name": "edge", "scopes": ["peek:*"] });
    let created = root.send("POST", "/namespaces/default/tokens", &[], &body).json();
    let (id, secret) = (
        created["id"].as_str().unwrap(),
        created["secret"].as_str().unwrap(),
    );
    let status = |server: &Server| {
        let body = json!({ "policy": "search", "key": "ann" });
        post_as(server, Some(secret), "/v1/peek", &body).status
    };
    wait_until(|| status(&control) == 200, || control.log());

    let restored = Directory::new();
    block_on(copy(&file_of(&control), &restored.path().join("limiter.db")));
    let path = format!("/namespaces/default/tokens/{id}");
    assert_eq!(root.send("DELETE", &path, &[], &Value::Null).status, 204);
    wait_until(|| status(&control) == 401, || control.log());
    // The revocation is the newest change.
    let newest = block_on(async {
        let store = open(&file_of(&control)).await;
        let newest = store.newest_mark().await.unwrap();
        store.close().await;
        newest
    });
    let mark = || redis.command(&["GET", "default|book|database"]).text();
    wait_until(|| mark().ends_with(&newest.to_string()), mark);
    drop(control);

    let server = start(restored, &redis);
    assert_eq!(status(&server), 401, "{}", server.log());
    let stale = AdminClient::new(server.admin(), root.credentials.clone());
    assert_eq!(stale.get("/session").status, 401, "sessions have ended");
    let root = stale.sign_in("root");
    let tokens = root.get("/namespaces/default/tokens").json();
    assert_eq!(tokens["tokens"][0]["state"], "suspended", "{tokens}");
    let alerts = root.get("/namespaces/default/status").json();
    assert_eq!(alerts["alerts"][0]["kind"], "database_restored", "{alerts}");
    assert_eq!(status(&server), 401);
    // An administrator accepts it again.
    let confirmed = root.send("POST", &format!("{path}/confirm"), &[], &Value::Null);
    assert_eq!(confirmed.status, 204, "{}", confirmed.body);
    wait_until(|| status(&server) == 200, || server.log());
}

/// A suspension from outside replaces the registry without its mark. The differences are found by
/// the change that Redis names beside it, also if Redis answers after the start of the node only.
#[test]
fn differences_of_a_restored_copy_are_reported_after_a_suspension_from_outside() {
    for is_late in [false, true] {
        let redis = RedisServer::start();
        let control = start(Directory::new(), &redis);
        let root = AdminClient::set_up(&control);
        let save = |revision, capacity| {
            let saved = root.put_policy("search", revision, &policy_of_all("search", capacity));
            assert_eq!(saved.status, 200, "{}", saved.body);
            let text = format!("capacity = {capacity}");
            let published = || match redis.command(&["GET", "default|book"]) {
                RespValue::Nil => false,
                stored => stored.text().contains(&text),
            };
            wait_until(published, || control.log());
        };
        save(0, 5);
        let restored = Directory::new();
        block_on(copy(&file_of(&control), &restored.path().join("limiter.db")));
        save(1, 6);
        let newest = block_on(async {
            let store = open(&file_of(&control)).await;
            let newest = store.newest_mark().await.unwrap();
            store.close().await;
            newest
        });
        let mark = || redis.command(&["GET", "default|book|database"]).text();
        wait_until(|| mark().ends_with(&newest.to_string()), mark);
        drop(control);
        let kill = ["kill", "all", "--enforcement", "off", "--reason", "a test"];
        let (code, _, errors) = run(&[&kill[..], &["--redis", &redis.url()]].concat());
        assert_eq!(code, Some(0), "{errors}");

        if is_late {
            redis.pause();
        }
        let server = start(restored, &redis);
        if is_late {
            redis.resume();
        }
        let client = AdminClient::new(server.admin(), root.credentials.clone());
        wait_until(|| client.get("/session").status == 401, || server.log());
        let root = client.sign_in("root");
        let status = || root.get("/namespaces/default/status").json();
        let has_detail = |text: &str| {
            let status = status();
            let mut alerts = status["alerts"].as_array().unwrap().iter();
            alerts.any(|of| of["detail"].as_str().unwrap().contains(text))
        };
        let is_reported = || has_detail("policy `search` differs") && has_detail("tokens wait");
        wait_until(is_reported, || format!("{}\n{}", status(), server.log()));
        let found = root.get("/namespaces/default/policies/search").json()["toml"].to_string();
        assert!(found.contains("capacity = 6"), "{found}");
        // The mark is that of the restored database now.
        wait_until(|| !mark().ends_with(&newest.to_string()), mark);
    }
}
