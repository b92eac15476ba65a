//! Tokens that administrators issue by the API: the gateway accepts them with and without the
//! database.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may panic"
)]

#[path = "issued_tokens/creators.rs"]
mod creators;
mod support;

use std::time::{Duration, Instant};

use limiter_server::settings::Settings;
use limiter_testing::{RedisServer, RespValue};
use serde_json::{Value, json};
use support::admin::{AdminClient, policy_of_all, with_sqlite};
use support::calls::post_as;
use support::databases::{Database, execute};
use support::http;
use support::server::{Directory, Server, wait_until};

const TOKENS: &str = "/namespaces/default/tokens";
/// The documented time until a revocation applies.
const WITHIN: Duration = Duration::from_secs(1);
/// A database that is not reachable.
const UNREACHABLE: &str = "postgres://user@127.0.0.1:1/none";

/// A token with its identity.
struct Issued {
    id: String,
    secret: String,
}

impl Issued {
    fn new(root: &AdminClient, path: &str, scopes: &[&str]) -> Self {
        let body = json!({ "name": "edge", "scopes": scopes });
        let created = root.send("POST", path, &[], &body);
        assert_eq!(created.status, 201, "{}", created.body);
        let created = created.json();
        Self {
            id: created["id"].as_str().unwrap().to_owned(),
            secret: created["secret"].as_str().unwrap().to_owned(),
        }
    }

    /// The status of a call of a route of the policy `search`.
    fn status(&self, server: &Server, route: &str) -> u16 {
        let body = json!({ "policy": "search", "key": "ann" });
        post_as(server, Some(&self.secret), route, &body).status
    }

    fn is_accepted(&self, server: &Server) -> bool {
        match self.status(server, "/v1/peek") {
            200 => true,
            401 => false,
            status => panic!("{status}"),
        }
    }
}

/// Saves the policy `search` and waits until it is in force.
fn with_policy(server: Server) -> (Server, AdminClient) {
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 100));
    assert_eq!(saved.status, 200, "{}", saved.body);
    wait_until(|| server.get("/readyz").status == 200, || server.log());
    (server, root)
}

/// The status of a call without a token.
fn anonymous_status(server: &Server) -> u16 {
    let body = json!({ "policy": "search", "key": "a" });
    post_as(server, None, "/v1/peek", &body).status
}

fn wait_within(time: Duration, mut is_done: impl FnMut() -> bool, server: &Server) {
    let started = Instant::now();
    wait_until(&mut is_done, || server.log());
    println!("after {:?}", started.elapsed());
    assert!(started.elapsed() < time, "{:?}", started.elapsed());
}

#[test]
fn issued_token_has_its_scopes_at_the_gateway_until_it_is_revoked() {
    let (server, root) = with_policy(with_sqlite(&[]));
    let edge = Issued::new(&root, TOKENS, &["peek:policy=search", "admin:viewer"]);
    wait_until(|| edge.is_accepted(&server), || server.log());
    assert_eq!(edge.status(&server, "/v1/check"), 403);
    // Configured clients exist now, so anonymous ones are rejected.
    assert_eq!(anonymous_status(&server), 401);
    let revoked = root.send("DELETE", &format!("{TOKENS}/{}", edge.id), &[], &Value::Null);
    assert_eq!(revoked.status, 204, "{}", revoked.body);
    wait_within(WITHIN, || !edge.is_accepted(&server), &server);
    // The listener had a client, so the end of the last one does not open it.
    assert_eq!(anonymous_status(&server), 401);
}

#[test]
fn rotated_token_ends_after_the_overlap() {
    let (server, root) = with_policy(with_sqlite(&[]));
    let old = Issued::new(&root, TOKENS, &["peek:*"]);
    wait_until(|| old.is_accepted(&server), || server.log());
    let path = format!("{TOKENS}/{}/rotate", old.id);
    let rotated = root.send("POST", &path, &[], &json!({ "overlap_seconds": 3 }));
    assert_eq!(rotated.status, 201, "{}", rotated.body);
    let secret = rotated.json()["secret"].as_str().unwrap().to_owned();
    let new = Issued {
        id: String::new(),
        secret,
    };
    wait_until(|| new.is_accepted(&server), || server.log());
    wait_until(|| !old.is_accepted(&server), || server.log());
    assert!(new.is_accepted(&server));
}

#[test]
fn killed_database_does_not_end_authentication() {
    let database = Database::postgres();
    let args = [
        "--database",
        &database.create("limiter"),
        "--admin",
        "127.0.0.1:0",
    ];
    let server = Server::start(Directory::new(), &args);
    wait_until(
        || http::get(server.admin(), "/healthz", &[]).is_ok_and(|answer| answer.status == 200),
        || server.log(),
    );
    let (server, root) = with_policy(server);
    let edge = Issued::new(&root, TOKENS, &["peek:*"]);
    wait_until(|| edge.is_accepted(&server), || server.log());
    drop(database);
    server.wait_for_log("cannot publish the tokens");
    assert!(edge.is_accepted(&server));
}

/// A token works at a gateway without the database, after the end of the node with the database,
/// and after the end of Redis.
#[test]
fn gateway_without_the_database_follows_the_tokens_in_redis() {
    let redis = RedisServer::start();
    let state = Directory::new();
    let url = redis.url();
    let shared = ["--redis", &url, "--namespace", "default"];
    let (control, root) = with_policy(with_sqlite(&shared));
    let cached = ["--state-dir", state.path().to_str().unwrap()];
    let gateway = Server::start(Directory::new(), &[&shared[..], &cached].concat());
    let [kept, revoked] = [(); 2].map(|()| Issued::new(&root, TOKENS, &["peek:*"]));
    for token in [&kept, &revoked] {
        wait_until(|| token.is_accepted(&gateway), || gateway.log());
    }
    root.send("DELETE", &format!("{TOKENS}/{}", revoked.id), &[], &Value::Null);
    wait_within(WITHIN, || !revoked.is_accepted(&gateway), &gateway);

    // Redis loses the tokens: the node with the database publishes them again.
    let tokens = "default|book|tokens";
    redis.command(&["DEL", tokens]);
    let exists = || redis.command(&["EXISTS", tokens]) == RespValue::Integer(1);
    wait_until(exists, || control.log());

    drop(control);
    let restarted = Server::start(Directory::new(), &shared);
    assert_ne!(kept.status(&restarted, "/v1/peek"), 401, "the first call");
    assert_eq!(revoked.status(&restarted, "/v1/peek"), 401);
    redis.kill();
    assert_ne!(kept.status(&gateway, "/v1/peek"), 401);
    drop(gateway);
    let unreachable = ["--database", UNREACHABLE, "--admin", "127.0.0.1:0"];
    let alone = Server::start(Directory::new(), &[&shared[..], &unreachable, &cached].concat());
    assert_ne!(kept.status(&alone, "/v1/peek"), 401, "{}", alone.log());
    assert_eq!(revoked.status(&alone, "/v1/peek"), 401);
}

/// A gateway without the database cannot read revocations while Redis is stopped: it rejects issued
/// tokens after the documented time, and accepts them when Redis answers.
#[test]
fn stopped_redis_ends_unconfirmed_tokens() {
    let redis = RedisServer::start();
    let url = redis.url();
    let shared = ["--redis", &url, "--namespace", "default"];
    let (_control, root) = with_policy(with_sqlite(&shared));
    let limited = [&shared[..], &["--unconfirmed-tokens", "3s"]].concat();
    let directory = Directory::new();
    directory.write(
        "limiter-server.toml",
        &support::access::entry("own", support::access::TOKEN, &["peek:*"]),
    );
    let gateway = Server::start(directory, &limited);
    let token = Issued::new(&root, TOKENS, &["peek:*"]);
    wait_until(|| token.is_accepted(&gateway), || gateway.log());
    redis.pause();
    let stopped = Instant::now();
    // The local share decides until the tokens end.
    let mut statuses = Vec::new();
    wait_until(
        || {
            statuses.push(token.status(&gateway, "/v1/peek"));
            statuses.last() == Some(&503)
        },
        || gateway.log(),
    );
    assert!(statuses.len() > 1, "accepted at first");
    assert!(
        stopped.elapsed() < Duration::from_secs(3) + WITHIN,
        "{:?}",
        stopped.elapsed()
    );
    gateway.wait_for_log("neither Redis nor the database confirms the issued tokens");
    let own = Issued {
        id: String::new(),
        secret: support::access::TOKEN.to_owned(),
    };
    assert_eq!(own.status(&gateway, "/v1/peek"), 200, "a configured token");
    redis.resume();
    wait_until(|| token.status(&gateway, "/v1/peek") == 200, || gateway.log());
}

#[test]
fn use_at_the_gateway_is_shown_as_last_use() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    let (used, idle) = (
        Issued::new(&root, TOKENS, &["check:*"]),
        Issued::new(&root, TOKENS, &["check:*"]),
    );
    wait_until(|| used.is_accepted(&server), || server.log());
    let day = |id: &str| {
        let list = root.get(TOKENS).json();
        let tokens = list["tokens"].as_array().unwrap().clone();
        tokens.into_iter().find(|of| of["id"] == id).unwrap()["used_day"].clone()
    };
    wait_until(|| day(&used.id).is_i64(), || server.log());
    assert_eq!(day(&idle.id), Value::Null);
}

/// A database that refuses the day of use does not delay a revocation.
#[test]
fn token_is_revoked_while_its_use_cannot_be_recorded() {
    let (server, root) = with_policy(with_sqlite(&[]));
    let database = server.directory().path().join("limiter.db");
    let trigger = "CREATE TRIGGER refused BEFORE UPDATE OF used_day ON token
        BEGIN SELECT RAISE(ABORT, 'refused'); END";
    execute(&format!("sqlite:{}", database.display()), &[trigger.to_owned()]);
    let (used, edge) = (
        Issued::new(&root, TOKENS, &["peek:*"]),
        Issued::new(&root, TOKENS, &["peek:*"]),
    );
    wait_until(
        || used.is_accepted(&server) && edge.is_accepted(&server),
        || server.log(),
    );
    server.wait_for_log("cannot publish the tokens");
    let revoked = root.send("DELETE", &format!("{TOKENS}/{}", edge.id), &[], &Value::Null);
    assert_eq!(revoked.status, 204, "{}", revoked.body);
    wait_within(WITHIN, || !edge.is_accepted(&server), &server);
    assert!(used.is_accepted(&server));
}

/// A Redis without the tokens does not confirm those of a cache, which may be revoked.
#[test]
fn empty_redis_does_not_confirm_cached_tokens() {
    let redis = RedisServer::start();
    let url = redis.url();
    let shared = ["--redis", &url, "--namespace", "default"];
    let (control, root) = with_policy(with_sqlite(&shared));
    let cache = Directory::new();
    let state_dir = cache.path().display().to_string();
    let limited = ["--state-dir", &state_dir, "--unconfirmed-tokens", "2s"];
    let limited = [&shared[..], &limited].concat();
    let gateway = Server::start(Directory::new(), &limited);
    let token = Issued::new(&root, TOKENS, &["peek:*"]);
    wait_until(|| token.is_accepted(&gateway), || gateway.log());
    wait_until(|| cache.path().join("tokens.toml").exists(), || gateway.log());
    drop((control, gateway));
    redis.command(&["FLUSHALL"]);
    let gateway = Server::start(Directory::new(), &limited);
    assert_ne!(token.status(&gateway, "/v1/peek"), 401, "the token of the cache");
    wait_until(|| token.status(&gateway, "/v1/peek") == 503, || gateway.log());
}

#[test]
fn unconfirmed_tokens_are_accepted_for_a_minute_by_default() {
    let directory = Directory::new();
    let of = |text: &str| {
        let path = directory.write("limiter-server.toml", text);
        Settings::of_file(&path).unwrap().unconfirmed_tokens
    };
    let database = "database = 'sqlite:unused.db'\n";
    assert_eq!(of(database), Duration::from_secs(60));
    let stated = format!("{database}unconfirmed_tokens = '5s'\n");
    assert_eq!(of(&stated), Duration::from_secs(5));
}

/// A Redis that was restored from an old dump has tokens that were revoked since. A gateway without
/// the database rejects them until a node with the database publishes the tokens again.
#[test]
fn restored_redis_does_not_revive_a_revoked_token() {
    let redis = RedisServer::start();
    let url = redis.url();
    let shared = ["--redis", &url, "--namespace", "default"];
    let (mut control, root) = with_policy(with_sqlite(&shared));
    let limited = [&shared[..], &["--unconfirmed-tokens", "4s"]].concat();
    let gateway = Server::start(Directory::new(), &limited);
    let [kept, revoked] = [(); 2].map(|()| Issued::new(&root, TOKENS, &["peek:*"]));
    for token in [&kept, &revoked] {
        wait_until(|| token.is_accepted(&gateway), || gateway.log());
    }
    let stored = || redis.command(&["GET", "default|book|tokens"]).text();
    let old = stored();
    let revoke = format!("{TOKENS}/{}", revoked.id);
    assert_eq!(root.send("DELETE", &revoke, &[], &Value::Null).status, 204);
    wait_until(|| !revoked.is_accepted(&gateway), || gateway.log());
    control.kill();
    redis.command(&["SET", "default|book|tokens", &old]);
    let peek = |token: &Issued| token.status(&gateway, "/v1/peek");
    let is_noticed = || {
        assert_eq!(peek(&revoked), 401, "{}", gateway.log());
        gateway
            .log()
            .contains("tokens in Redis are older than those in force")
    };
    wait_until(is_noticed, || gateway.log());
    // Redis does not confirm the other tokens either.
    let is_unconfirmed = || {
        assert_ne!(peek(&revoked), 200, "{}", gateway.log());
        peek(&kept) == 503
    };
    wait_until(is_unconfirmed, || gateway.log());

    let control = control.restart(&[&shared[..], &["--admin", "127.0.0.1:0"]].concat());
    wait_until(|| peek(&kept) == 200, || gateway.log());
    assert_eq!(peek(&revoked), 401);
    // An equal text with a lower revision is published again, too.
    let text = stored();
    let revision_of = |text: &str| {
        let line = text.lines().next().unwrap().to_owned();
        line.strip_prefix("revision = ").unwrap().parse::<u64>().unwrap()
    };
    let lowered = text.replacen(&revision_of(&text).to_string(), "1", 1);
    redis.command(&["SET", "default|book|tokens", &lowered]);
    wait_until(|| revision_of(&stored()) > revision_of(&text), || control.log());
    wait_until(|| peek(&kept) == 200, || gateway.log());
}

/// A node with the database does not know the revision that gateways have received, so it publishes
/// the tokens at its start even if Redis has an equal text.
#[test]
fn started_node_publishes_equal_tokens_with_a_higher_revision() {
    let redis = RedisServer::start();
    let url = redis.url();
    let shared = ["--redis", &url, "--namespace", "default"];
    let (mut control, root) = with_policy(with_sqlite(&shared));
    let limited = [&shared[..], &["--unconfirmed-tokens", "2s"]].concat();
    let gateway = Server::start(Directory::new(), &limited);
    let token = Issued::new(&root, TOKENS, &["peek:*"]);
    wait_until(|| token.is_accepted(&gateway), || gateway.log());
    control.kill();
    let text = redis.command(&["GET", "default|book|tokens"]).text();
    let (_, tokens) = text.split_once('\n').unwrap();
    redis.command(&["SET", "default|book|tokens", &format!("revision = 1\n{tokens}")]);
    wait_until(|| token.status(&gateway, "/v1/peek") == 503, || gateway.log());
    let _control = control.restart(&[&shared[..], &["--admin", "127.0.0.1:0"]].concat());
    wait_until(|| token.status(&gateway, "/v1/peek") == 200, || gateway.log());
}
