//! Pages of a server with Redis: replicas, publication, outages, nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use limiter_core::Limiter;
use limiter_server::policy_text::PolicyText;
use limiter_testing::RedisServer;
use serde_json::json;

use super::edit::{SEARCH, bucket};
use crate::support::admin::{AdminClient, policy, with_database, with_sqlite};
use crate::support::browser::Browser;
use crate::support::http;
use crate::support::server::{Directory, Server, run, wait_until};

const RUNS: u8 = 0;
const PAUSES: u8 = 1;
const PAUSED: u8 = 2;
const ENDED: u8 = 3;

/// A program that follows the registry until it is paused.
struct Replica {
    state: Arc<AtomicU8>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Replica {
    fn start(redis: &RedisServer) -> Self {
        let state = Arc::new(AtomicU8::new(RUNS));
        let (url, read) = (redis.url(), Arc::clone(&state));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let _limiter = runtime.block_on(async {
                let limiter = Limiter::redis(url)
                    .namespace("default")
                    .app("shop")
                    .build()
                    .unwrap();
                limiter.redis_registry().unwrap().follow().synced().await.unwrap();
                limiter
            });
            loop {
                match read.load(Ordering::Relaxed) {
                    ENDED => return,
                    PAUSES => read.store(PAUSED, Ordering::Relaxed),
                    // Its tasks run only while the thread drives the runtime.
                    PAUSED => std::thread::sleep(Duration::from_millis(20)),
                    _ => runtime.block_on(async { tokio::time::sleep(Duration::from_millis(20)).await }),
                }
            }
        });
        Self {
            state,
            thread: Some(thread),
        }
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Relaxed);
    }

    /// Stops the tasks of the program; later publications do not reach it.
    fn pause(&self) {
        self.set(PAUSES);
        wait_until(
            || self.state.load(Ordering::Relaxed) == PAUSED,
            || "not paused".to_owned(),
        );
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.set(ENDED);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A server with Redis and the policy `search` in force.
fn with_redis(text: &str) -> (RedisServer, Server, AdminClient) {
    let redis = RedisServer::start();
    let server = with_sqlite(&["--redis", &redis.url(), "--node", "one"]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, text);
    assert_eq!(saved.status, 200, "{}", saved.body);
    wait_until(|| root.page(SEARCH).body.contains("In force"), || server.log());
    (redis, server, root)
}

fn check(server: &Server) -> u16 {
    let body = json!({ "policy": "search", "key": "acme" }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

/// The replicas that have the policy and all replicas, as the page of the policy states them.
fn reach(root: &AdminClient) -> Option<(usize, usize)> {
    let page = root.page(SEARCH).body;
    let (_, rest) = page.split_once("In force on ")?;
    let (adopted, rest) = rest.split_once(" of ")?;
    let all = rest.split(' ').next()?;
    Some((adopted.parse().ok()?, all.parse().ok()?))
}

/// The texts of the cells of a column of the page Status.
fn cells(page: &str, label: &str) -> Vec<String> {
    let start = format!("data-label=\"{label}\">");
    let cells = page.split(&start).skip(1);
    cells
        .map(|rest| rest.split('<').next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn pages_state_the_replicas_that_have_the_policy() {
    let (redis, server, root) = with_redis(&policy("search", 5, "shop"));
    let (_first, late) = (Replica::start(&redis), Replica::start(&redis));
    let is_complete = || reach(&root).is_some_and(|(adopted, all)| adopted == all && all >= 2);
    wait_until(is_complete, || root.page(SEARCH).body);
    let (_, all) = reach(&root).unwrap();
    let mut browser = Browser::signed_in(&server, "root");
    let preview = browser.post(&format!("{SEARCH}/edit"), &bucket("1", "6")).body;
    assert!(
        preview.contains(&format!("app shop, {all} replicas")),
        "{preview}"
    );

    late.pause();
    assert_eq!(
        root.put_policy("search", 1, &policy("search", 6, "shop")).status,
        200
    );
    wait_until(|| reach(&root) == Some((all - 1, all)), || root.page(SEARCH).body);
    let status = root.page("/e/default/status").body;
    assert!(status.contains("Earlier revision"), "{status}");
    for label in ["Library", "Registry revision"] {
        let cells = cells(&status, label);
        assert!(!cells.is_empty(), "{status}");
        assert!(
            cells.iter().all(|of| of.contains(|of: char| of.is_ascii_digit())),
            "{label}: {cells:?}"
        );
    }
    for clock in cells(&status, "Clock") {
        assert!(
            ["equal", "ahead", "behind"]
                .iter()
                .any(|end| clock.ends_with(end)),
            "{clock}"
        );
    }
}

#[test]
fn change_waits_on_all_pages_until_it_is_in_force() {
    let (redis, server, root) = with_redis(&policy("search", 5, "shop"));
    redis.pause();
    let saved = root.put_policy("search", 1, &policy("search", 6, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let page = root.page(SEARCH).body;
    assert!(
        page.contains("Publishing") && page.contains("revision 2 is saved and not in force yet"),
        "{page}"
    );
    let now = root.page("/e/default/now").body;
    let (_, waiting) = now.split_once("id=\"waiting\"").unwrap();
    assert!(
        waiting.contains("<span class=\"state waiting\">Publishing</span>")
            && waiting.contains("changed by root"),
        "{now}"
    );
    let (_, health) = now.split_once("id=\"health\"").unwrap();
    let health = health.split("</span>").next().unwrap();
    assert!(
        health.contains("not in force yet") || health.contains("Cannot publish"),
        "{health}"
    );
    redis.resume();
    wait_until(
        || root.page("/e/default/now").body.contains("All changes in force"),
        || server.log(),
    );
    assert!(root.page(SEARCH).body.contains("In force"));
}

#[test]
fn explanation_states_the_outage_of_the_store() {
    let text = policy("search", 5, "shop") + "on_store_failure = 'error'\n";
    let (redis, server, root) = with_redis(&text);
    wait_until(|| check(&server) == 200, || server.log());
    redis.pause();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let at = now.unwrap().as_micros();
    for _ in 0..3 {
        assert_eq!(check(&server), 503);
    }
    redis.resume();
    // The calls may be those of the next minute.
    let explained = || {
        let pages = [at, at + 60_000_000].map(|at| format!("/e/default/explain?policy=search&at={at}"));
        pages.map(|path| root.page(&path).body).concat()
    };
    let expected = "3 calls failed, because the store did not answer";
    wait_until(|| explained().contains(expected), explained);
}

#[test]
fn ended_node_is_late_and_admin_node_states_unknown_numbers() {
    let (redis, server, root) = with_redis(&policy("search", 5, "shop"));
    let url = format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    );
    let redis_url = redis.url();
    let args = ["--redis", &redis_url, "--role", "admin", "--node", "two"];
    let mut other = with_database(Directory::new(), &url, &args);
    let status = || root.page("/e/default/status").body;
    wait_until(|| status().contains("<th scope=\"row\">two</th>"), status);
    assert!(!status().contains("Late"), "{}", status());
    let page = AdminClient::new(other.admin(), root.credentials.clone()).page("/e/default/now");
    assert!(
        page.body.contains("Not known: this node sees no requests."),
        "{}",
        page.body
    );
    other.kill();
    wait_until(
        || status().contains("<span class=\"state bad\">Late</span>"),
        status,
    );
}

#[test]
fn conflicting_edit_waits_for_its_author() {
    let (redis, mut server, root) = with_redis(&policy("search", 5, "shop"));
    let url = format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    );
    server.kill();
    let file = server
        .directory()
        .write("changed.toml", &policy("search", 6, "shop"));
    let args = [
        "policy",
        "apply",
        "-f",
        file.to_str().unwrap(),
        "--managed-by",
        "ui",
        "--database",
        &url,
    ];
    let (code, _, errors) = run(&args);
    assert_eq!(code, Some(0), "{errors}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let edited = runtime.block_on(async {
        let limiter = Limiter::redis(redis.url()).namespace("default").build().unwrap();
        let outside = PolicyText::parse("search", &policy("search", 50, "shop")).unwrap();
        let registry = limiter.redis_registry().unwrap();
        registry
            .edit(|draft| {
                outside.put_into(draft).unwrap();
                Ok(())
            })
            .await
    });
    edited.unwrap();
    let server = server.restart(&["--redis", &redis.url(), "--admin", "127.0.0.1:0"]);
    let root = AdminClient::new(server.admin(), root.credentials);
    let now = || root.page("/e/default/now").body;
    let conflict = "<span class=\"state bad\">Conflict</span>";
    wait_until(|| now().contains(conflict), now);
    let page = root.page(SEARCH).body;
    assert!(
        page.contains("Another program published a change of this policy"),
        "{page}"
    );
}
