//! Crashes, concurrent editors and a lost database.

use std::time::{Duration, Instant};

use limiter_testing::RedisServer;
use serde_json::json;

use crate::support::admin::{AdminClient, Credentials, policy_of_all, with_database, with_sqlite};
use crate::support::databases::Database;
use crate::support::http;
use crate::support::server::{Directory, Server, run, wait_until};

const EDITORS: i64 = 100;

fn limit_of(server: &Server, policy: &str) -> Option<u64> {
    let body = json!({ "policy": policy, "key": "ann" }).to_string();
    let answer = http::post(server.http(), "/v1/peek", &[], &body).ok()?;
    answer.json()["limits"][0]["limit"].as_u64()
}

fn check(server: &Server, policy: &str) -> u16 {
    let body = json!({ "policy": policy, "key": "ann" }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).map_or(0, |answer| answer.status)
}

/// A server that was killed after a save and before its publication, and its directory.
fn killed_before_publication(redis: &RedisServer) -> Server {
    let url = redis.url();
    let mut server = with_sqlite(&["--redis", &url]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 5)).status,
        200
    );
    wait_until(|| limit_of(&server, "search") == Some(5), || server.log());
    redis.pause();
    assert_eq!(
        root.put_policy("search", 1, &policy_of_all("search", 6)).status,
        200
    );
    server.kill();
    redis.resume();
    server
}

fn published(redis: &RedisServer) -> String {
    String::from_utf8(redis.command(&["GET", "default|book"]).bytes().to_vec()).unwrap()
}

#[test]
fn restarted_server_publishes_the_save_of_a_killed_one() {
    let redis = RedisServer::start();
    let server = killed_before_publication(&redis);
    assert!(
        published(&redis).contains("capacity = 5"),
        "{}",
        published(&redis)
    );
    let url = redis.url();
    let server = server.restart(&["--redis", &url, "--admin", "127.0.0.1:0"]);
    wait_until(|| limit_of(&server, "search") == Some(6), || server.log());
}

#[test]
fn other_node_publishes_the_save_of_a_killed_one() {
    let redis = RedisServer::start();
    let killed = killed_before_publication(&redis);
    let database = killed.directory().path().join("limiter.db");
    let (database, url) = (format!("sqlite:{}", database.display()), redis.url());
    let args = ["--database", &database, "--redis", &url, "--role", "gateway"];
    let other = Server::start(Directory::new(), &args);
    wait_until(|| limit_of(&other, "search") == Some(6), || other.log());
}

/// Each editor reads the policy and adds one to its capacity, again after each conflict.
#[test]
fn hundred_concurrent_editors_lose_no_update() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    let edit = || {
        loop {
            let read = root.get("/namespaces/default/policies/search").json();
            let revision = read["revision"].as_i64().unwrap();
            let text = read["toml"].as_str().unwrap();
            let (_, rest) = text.split_once("capacity = ").unwrap();
            let capacity: u32 = rest.lines().next().unwrap().parse().unwrap();
            let saved = root.put_policy("search", revision, &policy_of_all("search", capacity + 1));
            match saved.status {
                200 => return,
                409 => {}
                other => panic!("{other}: {}", saved.body),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..EDITORS {
            scope.spawn(edit);
        }
    });
    let read = root.get("/namespaces/default/policies/search").json();
    assert_eq!(read["revision"], EDITORS + 1);
    assert!(
        read["toml"].as_str().unwrap().contains("capacity = 101"),
        "{read}"
    );
    wait_until(|| limit_of(&server, "search") == Some(101), || server.log());
}

#[test]
fn suspension_by_command_applies_within_a_second_without_the_database() {
    let (redis, database) = (RedisServer::start(), Database::postgres());
    let (url, redis_url) = (database.create("outage"), redis.url());
    let server = with_database(Directory::new(), &url, &["--redis", &redis_url]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    wait_until(|| check(&server, "search") == 429, || server.log());
    drop(database);
    wait_until(
        || root.page("/e/default/apps").body.contains("Read-only"),
        || server.log(),
    );
    let page = AdminClient::new(server.admin(), Credentials::None).page("/");
    assert_eq!(page.status, 503, "{}", page.body);
    assert!(
        page.body.contains("limiter-server kill policy:NAME"),
        "{}",
        page.body
    );
    let problem = root.get("/namespaces/default/policies");
    assert_eq!(problem.status, 503, "{}", problem.body);
    assert!(problem.json()["suspend_command"].is_string(), "{}", problem.body);
    let kill = |args: &[&str]| {
        let started = Instant::now();
        let (code, _, errors) = run(&[&["kill", "policy:search", "--redis", &redis_url], args].concat());
        assert_eq!(code, Some(0), "{errors}");
        started
    };
    let times = (0..5).map(|_| {
        let started = kill(&["--enforcement", "off", "--reason", "a test"]);
        wait_until(|| check(&server, "search") == 200, || server.log());
        let time = started.elapsed();
        kill(&["--end"]);
        wait_until(|| check(&server, "search") == 429, || server.log());
        time
    });
    let times: Vec<Duration> = times.collect();
    assert!(
        times.iter().all(|time| *time <= Duration::from_secs(1)),
        "{times:?}"
    );
}
