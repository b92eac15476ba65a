//! A start without the sources of policies, and the roles of a process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use limiter_testing::RedisServer;
use serde_json::{Value, json};
use support::access::{ALL_SCOPES, TOKEN, bearer, entry};
use support::admin::{AdminClient, Credentials, policy_of_all, with_sqlite};
use support::calls::{limit, post};
use support::descriptors::{descriptor, request};
use support::http::{self, Response};
use support::resp::encode;
use support::rls::RlsClient;
use support::server::{Directory, Server, run, wait_until};
use support::sockets;

/// A database that is not reachable.
const UNREACHABLE: &str = "postgres://user@127.0.0.1:1/none";

fn check(server: &Server) -> u16 {
    let body = json!({ "policy": "search", "key": "ann" }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

#[test]
fn node_without_its_database_starts_with_cached_policies() {
    let cache = Directory::new();
    let directory = cache.path().to_str().unwrap();
    let mut server = with_sqlite(&["--state-dir", directory]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 1));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let cached = || std::fs::read_to_string(cache.path().join("registry.toml")).unwrap_or_default();
    wait_until(|| cached().contains("search"), || server.log());
    server.kill();

    let args = [
        "--database",
        UNREACHABLE,
        "--admin",
        "127.0.0.1:0",
        "--state-dir",
        directory,
    ];
    let server = Server::start(Directory::new(), &args);
    for path in ["/readyz", "/readyz/gateway"] {
        assert_eq!(server.get(path).status, 200, "{path}: {}", server.log());
    }
    assert_eq!([200, 429], [(); 2].map(|()| check(&server)));
    let waiting = http::get(server.admin(), "/admin/v1/session", &[]).unwrap();
    assert_eq!(waiting.status, 503, "{}", waiting.body);
}

#[test]
fn node_without_policies_is_not_ready() {
    let args = ["--database", UNREACHABLE, "--admin", "127.0.0.1:0"];
    let server = Server::start(Directory::new(), &args);
    for path in ["/readyz", "/readyz/gateway"] {
        assert_eq!(server.get(path).status, 503, "{path}");
    }
    let call = json!({ "policy": "search", "key": "ann" }).to_string();
    let envoy_call = json!({ "domain": "edge", "descriptors": [{ "entries": [{ "key": "search" }] }] });
    for (path, body) in [
        ("/v1/check", &call),
        ("/v1/peek", &call),
        ("/json", &envoy_call.to_string()),
    ] {
        let answer = http::post(server.http(), path, &[], body).unwrap();
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        assert!(answer.body.contains("no policies yet"), "{}", answer.body);
    }
}

/// Envoy gets UNAVAILABLE and decides by its failure mode; clients of RESP get an error.
#[test]
fn node_without_policies_allows_no_call_of_envoy_and_resp() {
    let args = [
        "--database",
        UNREACHABLE,
        "--admin",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
    ];
    let server = Server::start(Directory::new(), &args);
    let client = RlsClient::connect(server.grpc());
    let refused = client.decide(&request(&[descriptor("search", "ann")]));
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
    assert!(refused.message().contains("no policies yet"), "{refused:?}");
    assert!(!client.is_serving(""));

    let command = encode(&["CL.THROTTLE", "policy:search:ann", "0", "1", "1"]);
    let mut stream = sockets::send(server.resp(), command);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = sockets::read_to_end(&mut stream);
    assert!(
        answer.starts_with("-LOADING the server has no policies yet"),
        "{answer}"
    );
}

/// The policies and tokens in Redis are enough. The control plane joins when the database answers.
#[test]
fn node_without_the_database_follows_redis_until_the_database_answers() {
    let redis = RedisServer::start();
    let url = redis.url();
    let control = with_sqlite(&["--redis", &url]);
    let root = AdminClient::set_up(&control);
    let save = |client: &AdminClient, revision, capacity| {
        let text = policy_of_all("search", capacity);
        let text = match revision {
            0 => text,
            _ => text.replace("1/h", "100/s"),
        };
        let saved = client.put_policy("search", revision, &text);
        assert_eq!(saved.status, 200, "{}", saved.body);
    };
    save(&root, 0, 2);
    wait_until(|| check(&control) == 200, || control.log());

    let later = Directory::new();
    let link = later.path().join("later");
    let database = format!("sqlite:{}", link.join("limiter.db").display());
    let args = ["--database", &database, "--redis", &url, "--admin", "127.0.0.1:0"];
    let node = Server::start(Directory::new(), &args);
    wait_until(|| node.get("/readyz").status == 200, || node.log());
    assert_eq!(
        [200, 429],
        [(); 2].map(|()| check(&node)),
        "nodes share the limit"
    );
    save(&root, 1, 50);
    wait_until(|| check(&node) == 200, || node.log());
    let kill = [
        "kill",
        "policy:search",
        "--enforcement",
        "deny",
        "--reason",
        "a test",
        "--redis",
        &url,
    ];
    let (code, _, errors) = run(&kill);
    assert_eq!(code, Some(0), "{errors}");
    wait_until(|| check(&node) == 403, || node.log());
    let waiting = http::get(node.admin(), "/e/default/apps", &[]).unwrap();
    assert_eq!(waiting.status, 503, "{}", waiting.body);
    assert!(waiting.body.contains("limiter-server kill"), "{}", waiting.body);

    std::os::unix::fs::symlink(control.directory().path(), &link).unwrap();
    let joined = AdminClient::new(node.admin(), root.credentials);
    wait_until(|| joined.get("/session").status == 200, || node.log());
    save(&joined, 2, 60);
    let state = || joined.get("/namespaces/default/policies/search").json()["state"].clone();
    wait_until(|| state() == "published", || node.log());
}

/// The cached policies, suspensions and tokens decide, each policy by its mode for an outage.
#[test]
fn node_without_redis_and_database_decides_by_its_cache() {
    let (redis, cache) = (RedisServer::start(), Directory::new());
    let (url, directory) = (redis.url(), cache.path().to_str().unwrap().to_owned());
    let shared = ["--redis", &url, "--state-dir", &directory];
    let control = with_sqlite(&shared);
    let root = AdminClient::set_up(&control);
    for (name, more) in [
        ("local", ""),
        ("open", "on_store_failure = 'fail_open'\n"),
        ("closed", "on_store_failure = 'fail_closed'\n"),
        ("suspended", ""),
    ] {
        let saved = root.put_policy(name, 0, &format!("{}{more}", policy_of_all(name, 2)));
        assert_eq!(saved.status, 200, "{}", saved.body);
    }
    let suspension = json!({ "scope": "policy:suspended", "enforcement": "deny", "for_seconds": 600 });
    let suspended = root.send("POST", "/namespaces/default/suspensions", &[], &suspension);
    assert_eq!(suspended.status, 200, "{}", suspended.body);
    let token = json!({ "name": "edge", "scopes": ["check:*"] });
    let created = root.send("POST", "/namespaces/default/tokens", &[], &token);
    let secret = created.json()["secret"].as_str().unwrap().to_owned();
    let cached = |file: &str| std::fs::read_to_string(cache.path().join(file)).unwrap_or_default();
    let is_cached = || {
        let policies = cached("registry.toml");
        let names = ["\"local\"", "\"open\"", "\"closed\"", "policy:suspended"];
        names.iter().all(|name| policies.contains(name)) && cached("tokens.toml").contains("edge")
    };
    wait_until(is_cached, || control.log());
    drop(control);
    redis.kill();

    let unreachable = ["--database", UNREACHABLE, "--admin", "127.0.0.1:0"];
    let alone = Server::start(Directory::new(), &[&shared[..], &unreachable].concat());
    assert_eq!(alone.get("/readyz").status, 200, "{}", alone.log());
    let token = bearer(&secret);
    let call = |policy: &str, headers: &[(&str, &str)]| {
        let body = json!({ "policy": policy, "key": "ann" }).to_string();
        http::post(alone.http(), "/v1/check", headers, &body).unwrap()
    };
    let check = |policy: &str| call(policy, &[("authorization", &token)]);
    let origin = |answer: &Response| answer.json()["origin"].clone();
    for headers in [&[][..], &[("authorization", "Bearer lim_other")]] {
        assert_eq!(call("local", headers).status, 401);
    }
    let answers = [(); 3].map(|()| check("local"));
    assert_eq!(
        answers.each_ref().map(|of| of.status),
        [200, 200, 429],
        "{answers:?}"
    );
    for answer in &answers {
        assert_eq!(origin(answer), "local_fallback", "{}", answer.body);
    }
    for (policy, is_allowed, expected) in [
        ("open", true, "failed_open"),
        ("closed", false, "failed_closed"),
        ("suspended", false, "suspension"),
    ] {
        let answer = check(policy);
        let found = (answer.status == 200, origin(&answer));
        assert_eq!(
            found,
            (is_allowed, Value::from(expected)),
            "{policy}: {}",
            answer.body
        );
    }
    let anonymous = AdminClient::new(alone.admin(), Credentials::None);
    assert_eq!(anonymous.get("/session").status, 503);
}

/// The policies, the rule and the block of an earlier start.
const CACHED: &str = "# revision 5\n\
    policy.search = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n\
    policy.old = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n\
    policy.future = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n\
    [[rule]]\nmatch = ['old']\npolicy = 'old'\n[[block]]\nkey = 'eve'\n";

/// A node that starts with the policies of its cache and follows Redis.
struct CachedNode {
    server: Server,
    _cache: Directory,
}

impl CachedNode {
    fn start(redis: &RedisServer) -> Self {
        let (directory, cache) = (Directory::new(), Directory::new());
        directory.write("limiter-server.toml", &entry("test", TOKEN, &ALL_SCOPES));
        cache.write("registry.toml", CACHED);
        let state_dir = cache.path().to_str().unwrap();
        let server = Server::start(directory, &["--redis", &redis.url(), "--state-dir", state_dir]);
        Self {
            server,
            _cache: cache,
        }
    }

    fn status(&self, path: &str, policy: &str, key: &str) -> u16 {
        post(&self.server, path, &limit(policy, key, 1)).status
    }

    fn wait_for(&self, path: &str, (policy, key): (&str, &str), status: u16) {
        let found = || self.status(path, policy, key);
        let explain = || {
            format!(
                "{policy} {key}: {}, expected {status}\n{}",
                found(),
                self.server.log()
            )
        };
        wait_until(|| found() == status, explain);
    }
}

fn publish(redis: &RedisServer, revision: u64, text: &str) {
    redis.command(&["SET", "default|book", &format!("revision = {revision}\n{text}")]);
}

#[test]
fn cached_policies_end_although_a_policy_changed_its_kind() {
    let redis = RedisServer::start();
    publish(
        &redis,
        7,
        "policy.search = { algorithm = 'concurrency', max = 1 }\n",
    );
    let node = CachedNode::start(&redis);
    node.wait_for("/v1/acquire", ("search", "eve"), 200);
    node.wait_for("/v1/check", ("old", "ann"), 404);
}

/// Parts that this version cannot read keep their cached versions.
#[test]
fn cached_policies_end_although_redis_has_parts_of_a_newer_version() {
    let redis = RedisServer::start();
    let text = "policy.search = { algorithm = 'token_bucket', capacity = 9, rate = 1 }\n\
                policy.future = { algorithm = 'of_the_future' }\n";
    publish(&redis, 7, text);
    let node = CachedNode::start(&redis);
    node.wait_for("/v1/check", ("old", "ann"), 404);
    node.wait_for("/v1/check", ("search", "eve"), 200);
    assert_eq!(node.status("/v1/check", "future", "ann"), 200);
    publish(
        &redis,
        8,
        "policy.search = { algorithm = 'token_bucket', capacity = 9, rate = 1 }\n",
    );
    node.wait_for("/v1/check", ("future", "ann"), 404);
}

/// Redis has lost its data at the start, and receives the registry later.
#[test]
fn cached_policies_end_when_redis_receives_a_registry() {
    let redis = RedisServer::start();
    let node = CachedNode::start(&redis);
    assert_eq!(node.status("/v1/check", "old", "ann"), 200);
    assert_eq!(node.status("/v1/check", "search", "eve"), 403);
    node.server.wait_for_log("started with cached policies");
    // Redis has answered without a registry.
    let is_read = || {
        let stats = redis.command(&["INFO", "commandstats"]).text().to_owned();
        stats.contains("cmdstat_getrange:")
    };
    wait_until(is_read, || node.server.log());
    publish(
        &redis,
        7,
        "policy.search = { algorithm = 'token_bucket', capacity = 9, rate = 1 }\n",
    );
    node.wait_for("/v1/check", ("old", "ann"), 404);
    node.wait_for("/v1/check", ("search", "eve"), 200);
}

/// Another program removes all policies from the registry. A start during an outage must not
/// restore them.
#[test]
fn removed_policies_are_not_restored_by_the_cache() {
    let (redis, cache) = (RedisServer::start(), Directory::new());
    let (url, directory) = (redis.url(), cache.path().to_str().unwrap().to_owned());
    let args = ["--redis", &url, "--state-dir", &directory];
    publish(
        &redis,
        7,
        "policy.search = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n",
    );
    let first = Server::start(Directory::new(), &args);
    let cached = || std::fs::read_to_string(cache.path().join("registry.toml")).unwrap_or_default();
    wait_until(|| cached().contains("search"), || first.log());
    publish(&redis, 8, "");
    wait_until(
        || cached().starts_with("# revision 8\n"),
        || format!("{}{}", cached(), first.log()),
    );
    assert!(!cached().contains("search"), "{}", cached());
    drop(first);
    redis.kill();
    let second = Server::start(Directory::new(), &args);
    assert_eq!(second.get("/readyz").status, 503, "{}", second.log());
    assert_eq!(check(&second), 503);
}

#[test]
fn cache_is_written_when_its_directory_is_usable_again() {
    let redis = RedisServer::start();
    publish(
        &redis,
        7,
        "policy.search = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n",
    );
    let directory = Directory::new();
    let state_dir = directory.write("state", "a file in place of the directory");
    let args = [
        "--redis",
        &redis.url(),
        "--state-dir",
        state_dir.to_str().unwrap(),
    ];
    let server = Server::start(Directory::new(), &args);
    server.wait_for_log("cannot write the cached policies");
    std::fs::remove_file(&state_dir).unwrap();
    let cached = || std::fs::read_to_string(state_dir.join("registry.toml")).unwrap_or_default();
    wait_until(|| cached().contains("search"), || server.log());
}

/// Nodes without Redis and the database report the revision of the policies in their cache, also
/// after a second start, and later that of Redis.
#[test]
fn node_with_cached_policies_reports_their_revision() {
    let (redis, cache) = (RedisServer::start(), Directory::new());
    let (url, directory) = (redis.url(), cache.path().to_str().unwrap().to_owned());
    let shared = ["--redis", &url, "--state-dir", &directory];
    let answer = |server: &Server, path: &str| {
        let body = json!({ "policy": "search", "key": "ann" }).to_string();
        http::post(server.http(), path, &[], &body).unwrap().json()
    };
    let control = with_sqlite(&shared);
    let root = AdminClient::set_up(&control);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 10));
    assert_eq!(saved.status, 200, "{}", saved.body);
    wait_until(|| check(&control) == 200, || control.log());
    // Redis numbers a registry by its time, and a process its changes from 1.
    let revision = answer(&control, "/v1/check")["revision"].as_u64().unwrap();
    assert!(revision > 1_000, "{revision}");
    let first_line = format!("# revision {revision}\n");
    let cached = || std::fs::read_to_string(cache.path().join("registry.toml")).unwrap_or_default();
    wait_until(|| cached().starts_with(&first_line), cached);
    drop(control);
    redis.pause();

    let unreachable = ["--database", UNREACHABLE, "--admin", "127.0.0.1:0"];
    let start = || Server::start(Directory::new(), &[&shared[..], &unreachable].concat());
    for _ in 0..2 {
        let alone = start();
        let found = answer(&alone, "/v1/check");
        assert_eq!(
            (&found["revision"], &found["allowed"]),
            (&json!(revision), &json!(true))
        );
        assert_eq!(found["origin"], "local_fallback", "{found}");
        assert!(cached().starts_with(&first_line), "{}", cached());
    }
    let alone = start();
    redis.resume();
    let kill = [
        "kill",
        "policy:other",
        "--enforcement",
        "off",
        "--reason",
        "a test",
    ];
    let (code, _, errors) = run(&[&kill[..], &["--redis", &url]].concat());
    assert_eq!(code, Some(0), "{errors}");
    wait_until(
        || answer(&alone, "/v1/peek")["revision"].as_u64() > Some(revision),
        || alone.log(),
    );
}

#[test]
fn standalone_node_counts_beside_another_one() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 1));
    assert_eq!(saved.status, 200, "{}", saved.body);
    wait_until(|| check(&server) == 200, || server.log());
    assert_eq!(check(&server), 429);
    let database = server.directory().path().join("limiter.db");
    let url = format!("sqlite:{}", database.display());
    let args = ["--database", &url, "--admin", "127.0.0.1:0", "--standalone"];
    let second = Server::start(Directory::new(), &args);
    wait_until(|| second.get("/readyz").status == 200, || second.log());
    assert_eq!([200, 429], [(); 2].map(|()| check(&second)));
    assert_eq!(check(&server), 429, "the first node continues");
}

#[test]
fn second_node_without_redis_refuses_to_start() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let url = format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    );
    let listeners = [
        "--grpc",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ];
    let (code, _, errors) = run(&[&["serve", "--database", &url], &listeners[..]].concat());
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("without Redis"), "{errors}");
}
