//! The time from a save to its enforcement: two nodes, 12 subscribers, 1,000 policies.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may panic, and reports its figures"
)]

mod support;

use std::time::{Duration, Instant};

use limiter_core::Limiter;
use limiter_testing::RedisServer;
use serde_json::json;
use support::admin::AdminClient;
use support::http;
use support::server::{Directory, Server, wait_until};

const POLICIES: usize = 1_000;
const SUBSCRIBERS: usize = 12;
const SAVES: usize = 200;
const BOUND: Duration = Duration::from_secs(1);
const IMPORT_BOUND: Duration = Duration::from_secs(30);

fn policy(number: usize, capacity: usize) -> String {
    format!("[policy.p{number}]\nalgorithm = 'token_bucket'\ncapacity = {capacity}\nrate = '1/h'\n")
}

fn limit_of(server: &Server, policy: &str) -> Option<u64> {
    let body = json!({ "policy": policy, "key": "ann" }).to_string();
    let answer = http::post(server.http(), "/v1/peek", &[], &body).ok()?;
    answer.json()["limits"][0]["limit"].as_u64()
}

/// Waits until a policy is in force. The import is one transaction.
fn wait_for_import(server: &Server, policy: &str) {
    let started = Instant::now();
    while limit_of(server, policy) != Some(5) {
        assert!(started.elapsed() < IMPORT_BOUND, "{}", server.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn save_is_enforced_at_another_node_within_a_second() {
    let redis = RedisServer::start();
    let url = redis.url();
    let directory = Directory::new();
    let database = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let texts: String = (0..POLICIES).map(|number| policy(number, 5)).collect();
    let file = directory.write("policies.toml", &texts);
    // The first start imports the file.
    let import = [
        "--database",
        &database,
        "--redis",
        &url,
        "--policies",
        file.to_str().unwrap(),
        "--admin",
        "127.0.0.1:0",
    ];
    let saving = Server::start(directory, &import);
    let last = format!("p{}", POLICIES - 1);
    wait_for_import(&saving, &last);
    let root = AdminClient::set_up(&saving);
    let args = ["--database", &database, "--redis", &url, "--admin", "127.0.0.1:0"];
    let enforcing = Server::start(Directory::new(), &args);
    wait_until(|| limit_of(&enforcing, &last) == Some(5), || enforcing.log());
    let mut subscribers = Vec::new();
    for _ in 0..SUBSCRIBERS {
        let limiter = Limiter::redis(url.as_str()).namespace("default").build().unwrap();
        let subscription = limiter.redis_registry().unwrap().follow();
        subscription.synced().await.unwrap();
        subscribers.push((limiter, subscription));
    }
    let measured = tokio::task::spawn_blocking(move || {
        let mut times = Vec::with_capacity(SAVES);
        for save in 0..SAVES {
            let (number, capacity) = (save * 5, save + 10);
            let name = format!("p{number}");
            let started = Instant::now();
            let saved = root.put_policy(&name, 1, &policy(number, capacity));
            assert_eq!(saved.status, 200, "{}", saved.body);
            let expected = u64::try_from(capacity).unwrap();
            wait_until(
                || limit_of(&enforcing, &name) == Some(expected),
                || enforcing.log(),
            );
            times.push(started.elapsed());
        }
        times
    });
    let mut times = measured.await.unwrap();
    times.sort_unstable();
    let at = |percent: usize| times[SAVES * percent / 100 - 1];
    let figures = format!("p50 {:?}, p99 {:?}, longest {:?}", at(50), at(99), at(100));
    assert!(at(99) <= BOUND, "{figures}");
    // Shown by `--nocapture`.
    eprintln!("{figures}");
    drop(subscribers);
}
