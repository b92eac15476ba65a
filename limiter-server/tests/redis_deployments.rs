//! Servers on Redis Cluster, behind Sentinel, and on one Redis whose replies are lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use limiter_server::gateway::envoy::messages::Code;
use limiter_testing::{Proxy, RedisCluster, RedisSentinel, RedisServer, RespValue};
use serde_json::json;
use support::access::TOKEN;
use support::calls::{limit, post, remaining, succeed};
use support::descriptors::{DescriptorExt as _, codes, descriptor, request};
use support::rls::RlsClient;
use support::server::{Server, wait_until};
use support::stores::redis_args;

/// A loaded machine must not decide the outcome of a test, so the deadlines are long.
const POLICIES: &str = r#"
[policy.search]
algorithm = "sliding_window"
limit = 10
window = "1h"
deadline = "30s"

[policy.other]
algorithm = "sliding_window"
limit = 100
window = "1h"
deadline = "30s"

[policy.short]
algorithm = "token_bucket"
capacity = 100
rate = "1/h"
deadline = "500ms"

[[rule]]
match = ["search"]
policy = "search"

[[rule]]
match = ["other"]
policy = "other"
"#;

#[test]
fn two_servers_on_a_cluster_share_limits() {
    let cluster = RedisCluster::start();
    let urls = cluster.urls().join(",");
    let servers = [(); 2].map(|()| Server::with_token(POLICIES, &["--redis-cluster", &urls]));
    for user in 0..6 {
        let call = limit("search", &format!("user-{user}"), 1);
        let allowed = (0..20).filter(|number| {
            let answer = post(&servers[number % 2], "/v1/check", &call);
            assert!(answer.json()["origin"].is_string(), "{}", answer.body);
            answer.status == 200
        });
        assert_eq!(allowed.count(), 10, "user {user}");
    }
    let used = cluster.nodes().iter().filter(|node| holds(node, "user-")).count();
    assert!(used > 1, "the keys are on {used} nodes");
}

/// Returns whether a key of a Redis server contains a text.
fn holds(node: &RedisServer, text: &str) -> bool {
    match node.command(&["KEYS", &format!("*{text}*")]) {
        RespValue::Array(keys) => !keys.is_empty(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn killed_node_of_a_cluster_affects_its_keys_only() {
    let cluster = RedisCluster::start();
    let urls = cluster.urls().join(",");
    let server = Server::with_token(POLICIES, &["--redis-cluster", &urls]);
    let users: Vec<String> = (0..30).map(|number| format!("user-{number}-")).collect();
    let origin = |user: &str| {
        let body = succeed(&server, "/v1/check", &limit("short", user, 1));
        body["origin"].as_str().unwrap().to_owned()
    };
    wait_until(|| origin("first") == "redis", || server.log());
    for user in &users {
        wait_until(|| origin(user) == "redis", || server.log());
    }
    let (lost, kept): (Vec<&String>, Vec<&String>) =
        users.iter().partition(|user| holds(cluster.node(1), user));
    assert!(lost.len() > 2 && kept.len() > 2, "{} keys", lost.len());
    let before: Vec<u64> = kept
        .iter()
        .map(|user| remaining(&server, "short", user))
        .collect();
    cluster.node(1).kill();
    for round in 1..4 {
        for user in &lost {
            assert_eq!(origin(user), "local_fallback", "{user}");
        }
        for (user, before) in kept.iter().zip(&before) {
            assert_eq!(origin(user), "redis", "{user}: {}", server.log());
            assert_eq!(remaining(&server, "short", user), before - round, "{user}");
        }
    }
    assert_eq!(server.get("/readyz").status, 200);
}

/// The failure modes, each the name of a policy, with the status and the origin of their answers
/// over HTTP without Redis.
const MODES: [(&str, &str); 4] = [
    ("local", "200 local_fallback"),
    ("fail_open", "200 failed_open"),
    ("fail_closed", "503 failed_closed"),
    ("error", "503 "),
];
const DECIDED: &str = "200 redis";
/// A multiple of the deadline of the policies, for a loaded machine. Without one, a call hangs.
const LONGEST: Duration = Duration::from_secs(10);

fn policies_of_modes() -> String {
    let policies = MODES.map(|(mode, _)| {
        format!(
            "[policy.{mode}]\nalgorithm = 'token_bucket'\ncapacity = 1000000\nrate = '1/s'\n\
             deadline = '1s'\non_store_failure = '{mode}'\n\
             [[rule]]\nmatch = ['{mode}']\npolicy = '{mode}'\n"
        )
    });
    policies.concat()
}

/// The status and the origin of an answer.
fn answer_of(server: &Server, mode: &str, user: &str) -> String {
    let answer = post(server, "/v1/check", &limit(mode, user, 1));
    let body = answer.json();
    format!(
        "{} {}",
        answer.status,
        body["origin"].as_str().unwrap_or_default()
    )
}

/// Ends the load, also after a panic of the test.
struct LoadEnd<'a>(&'a AtomicBool);

impl Drop for LoadEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls of the rate limit service for each user in turn.
fn send_envoy_calls(server: &Server, users: &[String], ended: &AtomicBool) {
    let client = RlsClient::connect(server.grpc()).with_token(TOKEN);
    for user in users
        .iter()
        .cycle()
        .take_while(|_| !ended.load(Ordering::Relaxed))
    {
        for (mode, _) in MODES {
            let begun = Instant::now();
            let answer = client.decide(&request(&[descriptor(mode, user)]));
            assert!(begun.elapsed() < LONGEST, "{:?}: {answer:?}", begun.elapsed());
            match (mode, answer) {
                ("error", Err(status)) => assert_eq!(status.code(), tonic::Code::Unavailable),
                (_, answer) => assert!(answer.is_ok(), "{mode}: {answer:?}"),
            }
        }
    }
}

/// Node 1 of a cluster fails under load, and the cluster recovers.
fn outage_of_a_node(
    cluster: &RedisCluster,
    fail: impl FnOnce(&RedisServer),
    recover: impl FnOnce(&RedisServer),
) {
    let (urls, node) = (cluster.urls().join(","), cluster.node(1));
    let server = &Server::with_token(&policies_of_modes(), &["--redis-cluster", &urls]);
    let users: Vec<String> = (0..24).map(|number| format!("user-{number}-")).collect();
    let wait_for_redis = || {
        for (mode, user) in users.iter().flat_map(|user| MODES.map(|(mode, _)| (mode, user))) {
            wait_until(|| answer_of(server, mode, user) == DECIDED, || server.log());
        }
    };
    wait_for_redis();
    let lost: BTreeSet<&str> = users
        .iter()
        .map(String::as_str)
        .filter(|user| holds(node, user))
        .collect();
    assert!(
        lost.len() > 2 && lost.len() < users.len() - 2,
        "{} keys",
        lost.len()
    );
    let (ended, answers) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
    thread::scope(|scope| {
        let (ended, answers, users) = (&ended, &answers, &users);
        let _end = LoadEnd(ended);
        scope.spawn(|| send_envoy_calls(server, users, ended));
        for (mode, _) in MODES {
            scope.spawn(move || {
                for user in users
                    .iter()
                    .cycle()
                    .take_while(|_| !ended.load(Ordering::Relaxed))
                {
                    let begun = Instant::now();
                    let answer = answer_of(server, mode, user);
                    assert!(begun.elapsed() < LONGEST, "{:?}: {answer}", begun.elapsed());
                    answers.lock().unwrap().insert((mode, user.as_str(), answer));
                }
            });
        }
        fail(node);
        let follows = |(mode, expected): (&str, &str)| {
            let answers = answers.lock().unwrap();
            answers
                .iter()
                .any(|(of, _, answer)| *of == mode && answer == expected)
        };
        wait_until(|| MODES.into_iter().all(follows), || server.log());
        recover(node);
        wait_for_redis();
    });
    for (mode, user, answer) in answers.into_inner().unwrap() {
        let (_, without_redis) = MODES.into_iter().find(|(of, _)| *of == mode).unwrap();
        let is_expected = answer == DECIDED || (answer == without_redis && lost.contains(user));
        assert!(is_expected, "{mode} {user}: {answer}: {}", server.log());
    }
}

/// The nodes with slots that are available serve them, as docs/operations.md requires.
fn cluster_with_replicas(replicas: usize) -> RedisCluster {
    let cluster = RedisCluster::builder().replicas(replicas);
    cluster.arg("cluster-require-full-coverage", "no").start()
}

#[test]
fn replica_replaces_a_primary_that_is_killed_under_load() {
    let cluster = cluster_with_replicas(1);
    outage_of_a_node(&cluster, RedisServer::kill, |old| {
        cluster.await_fail_over(1, old);
    });
}

#[test]
fn node_that_is_killed_under_load_serves_after_its_restart() {
    outage_of_a_node(&cluster_with_replicas(0), RedisServer::kill, RedisServer::restart);
}

#[test]
fn node_that_stops_under_load_serves_after_it_resumes() {
    outage_of_a_node(&cluster_with_replicas(0), RedisServer::pause, RedisServer::resume);
}

#[test]
fn server_follows_a_failover_of_sentinel() {
    let sentinel = RedisSentinel::start();
    let urls = sentinel.urls().join(",");
    let primary = sentinel.primary_url();
    let args = ["--redis-sentinel", &urls, "--sentinel-master", &primary];
    let server = Server::with_token(POLICIES, &args);
    let call = limit("search", "ann", 1);
    let origin = || {
        let answer = post(&server, "/v1/check", &call);
        answer.json()["origin"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(origin(), "redis");
    succeed(&server, "/v1/check", &limit("search", "bob", 4));
    let promoted = sentinel.fail_over();
    wait_until(|| origin() == "redis", || server.log());
    let bob = || remaining(&server, "search", "bob");
    assert_eq!(bob(), 6, "the replica has the usage");
    succeed(&server, "/v1/check", &limit("search", "bob", 6));
    assert_eq!(post(&server, "/v1/check", &limit("search", "bob", 1)).status, 429);
    assert!(holds(promoted, "bob"));
}

#[test]
fn name_of_the_primary_alone_selects_it() {
    let sentinel = RedisSentinel::start();
    let urls = sentinel.urls().join(",");
    // The user of the sentinels' URLs is not that of the primary: the default user has no
    // password here.
    let name = sentinel.primary_name();
    let args = ["--redis-sentinel", &urls, "--sentinel-master", name];
    let server = Server::with_token(POLICIES, &args);
    let checked = succeed(&server, "/v1/check", &limit("search", "ann", 1));
    assert_eq!(checked["origin"], "redis", "{}", server.log());
}

/// The limits have no common tag, so the server decides them in order.
#[test]
fn denial_refunds_limits_of_other_tags_in_redis() {
    let redis = RedisServer::start();
    let url = redis.url();
    let args = redis_args(&url);
    let server = Server::with_token(POLICIES, &args);
    let client = RlsClient::connect(server.grpc()).with_token(TOKEN);
    succeed(&server, "/v1/check", &limit("search", "b", 10));

    let mixed = request(&[
        descriptor("other", "a").hits(1),
        descriptor("search", "b").hits(1),
        descriptor("other", "c").hits(2),
    ]);
    let denied = client.decide(&mixed).unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(codes(&denied), [Code::Ok, Code::OverLimit, Code::Ok]);
    for key in ["a", "c"] {
        let peek = client.decide(&request(&[descriptor("other", key).hits(0)]));
        let peek = peek.unwrap();
        assert_eq!(peek.statuses[0].limit_remaining, 100, "{key}");
    }
    let limits = json!({"limits": [
        limit("other", "d", 5), limit("search", "b", 1), limit("other", "e", 5),
    ]});
    let refused = post(&server, "/v1/check", &limits);
    assert_eq!(
        (refused.status, &refused.json()["policy"]),
        (429, &json!("search")),
        "{}",
        refused.body
    );
    for key in ["d", "e"] {
        assert_eq!(remaining(&server, "other", key), 100, "{key}");
    }
    assert_eq!(server.metric("limiter_server_failed_refunds_total "), 0.0);
}

#[test]
fn failed_refund_is_counted() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let url = proxy.url();
    let args = redis_args(&url);
    let server = Server::with_token(POLICIES, &args);
    succeed(&server, "/v1/check", &limit("search", "b", 10));
    let failed = || server.metric("limiter_server_failed_refunds_total ");
    assert_eq!(failed(), 0.0);
    let limits = json!({"limits": [limit("short", "a", 1), limit("search", "b", 1)]});
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let _ = post(&server, "/v1/check", &limits);
            }
        });
        // Some of the lost replies are those of refunds.
        let is_counted = || {
            proxy.cut_replies(1);
            failed() > 0.0
        };
        wait_until(is_counted, || {
            ended.store(true, Ordering::Relaxed);
            server.log()
        });
        ended.store(true, Ordering::Relaxed);
    });
    assert!(server.log().contains("refund failed"), "{}", server.log());
}
