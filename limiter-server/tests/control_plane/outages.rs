//! Crashes, concurrent editors and a lost database.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use limiter_testing::RedisServer;
use serde_json::json;

use crate::support::admin::{AdminClient, Credentials, policy_of_all, with_database, with_sqlite};
use crate::support::databases::Database;
use crate::support::http;
use crate::support::server::{Directory, Server, run, wait_until};

const EDITORS: usize = 100;
/// The number of editors that repeat their edits at the same time.
const QUEUES: usize = 8;

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

/// All editors read one revision and save at once, and each adds one to the capacity that it read.
/// An editor with a conflict reads and saves again, beside those of other queues: if all of them
/// did so at once, most of some 5,000 saves would be conflicts again.
#[test]
fn hundred_concurrent_editors_lose_no_update() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    let read = || {
        let read = root.get("/namespaces/default/policies/search").json();
        let (_, rest) = read["toml"].as_str().unwrap().split_once("capacity = ").unwrap();
        let capacity: u32 = rest.lines().next().unwrap().parse().unwrap();
        (read["revision"].as_i64().unwrap(), capacity)
    };
    let is_saved = |(revision, capacity): (i64, u32)| {
        let saved = root.put_policy("search", revision, &policy_of_all("search", capacity + 1));
        match saved.status {
            200 => true,
            409 => false,
            other => panic!("{other}: {}", saved.body),
        }
    };
    let all_have_read = Barrier::new(EDITORS);
    let queues = [(); QUEUES].map(|()| Mutex::new(()));
    let at_first = AtomicUsize::new(0);
    let edit = |editor: usize| {
        let first = read();
        all_have_read.wait();
        if is_saved(first) {
            at_first.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let _turn = queues[editor % QUEUES].lock();
        while !is_saved(read()) {}
    };
    std::thread::scope(|scope| {
        let edit = &edit;
        for editor in 0..EDITORS {
            scope.spawn(move || edit(editor));
        }
    });
    assert_eq!(
        at_first.into_inner(),
        1,
        "one of the saves of a revision succeeds"
    );
    assert_eq!(read(), (101, 101));
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

/// A server that gets a Redis later has published nothing there before.
#[test]
fn first_redis_of_a_server_has_lost_nothing() {
    let mut server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 5));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let state = |root: &AdminClient| root.get("/namespaces/default/policies/search").json()["state"].clone();
    wait_until(|| state(&root) == "published", || server.log());
    server.kill();
    let redis = RedisServer::start();
    let server = server.restart(&["--admin", "127.0.0.1:0", "--redis", &redis.url()]);
    let root = AdminClient::new(server.admin(), root.credentials);
    wait_until(
        || root.get("/namespaces/default/status").status == 200 && limit_of(&server, "search") == Some(5),
        || server.log(),
    );
    let status = root.get("/namespaces/default/status").json();
    assert_eq!(status["alerts"], json!([]), "{status}");
}
