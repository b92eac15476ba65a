//! The database does not answer for one minute under load: decisions go on, saves fail with a clear
//! error, and both recover.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic"
)]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use limiter_testing::RedisServer;
use serde_json::json;
use support::admin::{AdminClient, policy_of_all};
use support::databases::Database;
use support::http;
use support::server::{Directory, Server, wait_until};

const OUTAGE: Duration = Duration::from_secs(60);
/// The pause of a client between its calls.
const PACE: Duration = Duration::from_millis(5);
const CLIENTS: usize = 2;

/// Sends calls until the end, or for a time after which the test has failed: their number by
/// status, 0 for a failed connection.
fn calls(server: &Server, ended: &AtomicBool) -> BTreeMap<u16, u64> {
    let body = json!({ "policy": "search", "key": "ann" }).to_string();
    let (mut statuses, started) = (BTreeMap::new(), Instant::now());
    while !ended.load(Ordering::Relaxed) && started.elapsed() < OUTAGE * 3 {
        let answer = http::post(server.http(), "/v1/check", &[], &body);
        let status = answer.map_or(0, |answer| answer.status);
        *statuses.entry(status).or_default() += 1;
        std::thread::sleep(PACE);
    }
    statuses
}

#[test]
fn minute_without_the_database_under_load_changes_no_decision() {
    let (redis, mut database) = (RedisServer::start(), Database::postgres());
    let (url, redis_url) = (database.create("outage"), redis.url());
    let args = [
        "--database",
        &url,
        "--redis",
        &redis_url,
        "--admin",
        "127.0.0.1:0",
    ];
    let server = Server::start(Directory::new(), &args);
    let is_alive = || http::get(server.admin(), "/healthz", &[]).is_ok_and(|of| of.status == 200);
    wait_until(is_alive, || server.log());
    let root = AdminClient::set_up(&server);
    let large = |capacity| policy_of_all("search", capacity);
    assert_eq!(root.put_policy("search", 0, &large(1_000_000)).status, 200);
    let check = || {
        let body = json!({ "policy": "search", "key": "ann" }).to_string();
        http::post(server.http(), "/v1/check", &[], &body).unwrap().status
    };
    wait_until(|| check() == 200, || server.log());

    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| calls(&server, &ended)))
            .collect();
        database.stop();
        let started = Instant::now();
        let (mut saves, mut slowest) = (0_u32, Duration::ZERO);
        while started.elapsed() < OUTAGE {
            let sent = Instant::now();
            let save = root.put_policy("search", 1, &large(1_100_000));
            slowest = slowest.max(sent.elapsed());
            assert_eq!(save.status, 503, "{}", save.body);
            let problem = save.json();
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("the database"), "{problem}");
            assert!(problem["suspend_command"].is_string(), "{problem}");
            saves += 1;
            std::thread::sleep(PACE * 40);
        }
        database.start();
        let restarted = Instant::now();
        let save = || {
            let save = root.put_policy("search", 1, &large(1_100_000));
            assert!(matches!(save.status, 200 | 503), "{}", save.body);
            save.status == 200
        };
        wait_until(save, || server.log());
        let recovered = restarted.elapsed();
        let is_in_force = || {
            let policy = root.get("/namespaces/default/policies/search").json();
            policy["state"] == "published"
        };
        wait_until(is_in_force, || server.log());
        ended.store(true, Ordering::Relaxed);
        let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
        for client in clients {
            for (status, count) in client.join().unwrap() {
                *statuses.entry(status).or_default() += count;
            }
        }
        println!(
            "calls by status {statuses:?}; {saves} rejected saves, the slowest {slowest:?}; saved {recovered:?} after the restart"
        );
        assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200]);
        assert!(statuses[&200] > 1_000, "{statuses:?}");
    });
}
