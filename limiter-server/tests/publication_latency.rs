//! The time from a save, a block or a suspension to its enforcement at another node, with 1,000
//! policies.
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
use support::admin::{AdminClient, with_database};
use support::browser::Browser;
use support::http;
use support::server::{Directory, Server, wait_until};
use tokio::sync::Mutex;

const POLICIES: usize = 1_000;
const SUBSCRIBERS: usize = 12;
const SAVES: usize = 200;
/// The number of blocks, and of suspensions, that are measured.
const SUBMISSIONS: usize = 40;
const BOUND: Duration = Duration::from_secs(1);
const IMPORT_BOUND: Duration = Duration::from_secs(30);

/// The tests measure times, so they run one after the other.
static ALONE: Mutex<()> = Mutex::const_new(());

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

/// Two nodes with the policies in force. The first one has an administrator.
struct Nodes {
    redis: RedisServer,
    saving: Server,
    enforcing: Server,
    root: AdminClient,
}

fn start_nodes() -> Nodes {
    let redis = RedisServer::start();
    let url = redis.url();
    let directory = Directory::new();
    let database = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let texts: String = (0..POLICIES).map(|number| policy(number, 5)).collect();
    let file = directory.write("policies.toml", &texts);
    // The first start imports the file.
    let import = ["--redis", &url, "--policies", file.to_str().unwrap()];
    let saving = with_database(directory, &database, &import);
    let last = format!("p{}", POLICIES - 1);
    wait_for_import(&saving, &last);
    let root = AdminClient::set_up(&saving);
    let enforcing = with_database(Directory::new(), &database, &["--redis", &url]);
    wait_until(|| limit_of(&enforcing, &last) == Some(5), || enforcing.log());
    Nodes {
        redis,
        saving,
        enforcing,
        root,
    }
}

/// Fails if more than one in a hundred times is above the bound.
fn require_within_bound(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1];
    let figures = format!(
        "{name}: p50 {:?}, p99 {:?}, longest {:?}",
        at(50),
        at(99),
        at(100)
    );
    assert!(at(99) <= BOUND, "{figures}");
    // Shown by `--nocapture`.
    eprintln!("{figures}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn save_is_enforced_at_another_node_within_a_second() {
    let _alone = ALONE.lock().await;
    let nodes = start_nodes();
    let url = nodes.redis.url();
    let mut subscribers = Vec::new();
    for _ in 0..SUBSCRIBERS {
        let limiter = Limiter::redis(url.as_str()).namespace("default").build().unwrap();
        let subscription = limiter.redis_registry().unwrap().follow();
        subscription.synced().await.unwrap();
        subscribers.push((limiter, subscription));
    }
    let measured = tokio::task::spawn_blocking(move || {
        let Nodes { enforcing, root, .. } = &nodes;
        let mut times = Vec::with_capacity(SAVES);
        for save in 0..SAVES {
            let (number, capacity) = (save * 5, save + 10);
            let name = format!("p{number}");
            let started = Instant::now();
            let saved = root.put_policy(&name, 1, &policy(number, capacity));
            assert_eq!(saved.status, 200, "{}", saved.body);
            let expected = u64::try_from(capacity).unwrap();
            wait_until(
                || limit_of(enforcing, &name) == Some(expected),
                || enforcing.log(),
            );
            times.push(started.elapsed());
        }
        times
    });
    require_within_bound("save", measured.await.unwrap());
    drop(subscribers);
}

/// The status of a call at the gateway of a node.
fn check(server: &Server, key: &str) -> u16 {
    let body = json!({ "policy": "p0", "key": key }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

/// Submits a form and returns the time from then to the first denied call at a node.
fn time_to_denial(server: &Server, key: &str, submit: impl FnOnce() -> u16) -> Duration {
    assert_eq!(check(server, key), 200, "{key}");
    let started = Instant::now();
    assert_eq!(submit(), 303);
    wait_until(|| check(server, key) == 403, || server.log());
    started.elapsed()
}

#[test]
fn form_of_a_block_and_of_a_suspension_denies_at_another_node_within_a_second() {
    let _alone = ALONE.blocking_lock();
    let nodes = start_nodes();
    let enforcing = &nodes.enforcing;
    let mut browser = Browser::signed_in(&nodes.saving, "root");
    let blocks = (0..SUBMISSIONS).map(|number| {
        let key = format!("blocked{number}");
        let fields = [
            ("kind", "key"),
            ("key", &*key),
            ("app", ""),
            ("until", ""),
            ("reason", "abuse"),
        ];
        time_to_denial(enforcing, &key, || {
            browser.post("/e/default/blocks", &fields).status
        })
    });
    let blocks = blocks.collect();
    let suspensions = (0..SUBMISSIONS).map(|number| {
        let scope = "scope=policy:p0&enforcement=deny&hours=1";
        let page = browser.get(&format!("/e/default/suspended/confirm?{scope}")).body;
        let (_, until) = page.split_once("name=\"until\" value=\"").unwrap();
        let until = until.split('"').next().unwrap();
        let fields = [("scope", "policy:p0"), ("enforcement", "deny"), ("until", until)];
        let key = format!("suspended{number}");
        let time = time_to_denial(enforcing, &key, || {
            browser.post("/e/default/suspended", &fields).status
        });
        // The next suspension is the only one again.
        let page = browser.get("/e/default/suspended").body;
        let (before, _) = page.split_once("/end\"").unwrap();
        let (_, end) = before.rsplit_once("action=\"").unwrap();
        assert_eq!(browser.post(&format!("{end}/end"), &[]).status, 303);
        wait_until(|| check(enforcing, &key) != 403, || enforcing.log());
        time
    });
    let suspensions = suspensions.collect();
    require_within_bound("block", blocks);
    require_within_bound("suspension", suspensions);
}
