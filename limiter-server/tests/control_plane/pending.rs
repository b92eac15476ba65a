//! Changes while Redis is unavailable: saved, shown as not in force, published when it answers.

use limiter_testing::RedisServer;
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy_of_all, with_sqlite};
use crate::support::server::wait_until;

const SEARCH: &str = "/namespaces/default/policies/search";
const PAGE: &str = "/e/default/policies/search";

#[test]
fn change_without_redis_is_shown_as_not_in_force_until_redis_answers() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = with_sqlite(&["--redis", &url]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 5));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let state = || root.get(SEARCH).json()["state"].clone();
    wait_until(|| state() == "published", || server.log());
    let page = root.page(PAGE).body;
    assert!(
        page.contains(">In force") && !page.contains("not in force yet"),
        "{page}"
    );

    redis.kill();
    let saved = root.put_policy("search", 1, &policy_of_all("search", 6));
    assert_eq!(
        (saved.status, &saved.json()["state"]),
        (200, &json!("pending")),
        "{}",
        saved.body
    );
    // The publisher has failed and will try again.
    let status = || root.get("/namespaces/default/status").json();
    wait_until(|| status()["publisher_error"].is_string(), || server.log());
    let shown = status();
    assert_eq!(
        (&shown["redis"], &shown["pending"]),
        (&json!("unavailable"), &json!(1))
    );
    assert_eq!(state(), "pending");
    let page = root.page(PAGE).body;
    assert!(
        page.contains(">Publishing") && page.contains("revision 2 is saved and not in force yet"),
        "{page}"
    );
    assert!(!page.contains(">In force"), "{page}");
    let block = json!({ "key": "eve", "for_seconds": 600 });
    let blocked = root.send("POST", "/namespaces/default/blocks", &[], &block);
    assert_eq!(
        (blocked.status, &blocked.json()["state"]),
        (200, &json!("pending")),
        "{}",
        blocked.body
    );

    redis.restart();
    wait_until(|| state() == "published", || server.log());
    wait_until(|| status()["pending"] == 0, || server.log());
    let shown = status();
    assert_eq!(
        (&shown["redis"], &shown["publisher_error"]),
        (&json!("available"), &Value::Null)
    );
    let published = redis.command(&["GET", "default|book"]).text();
    assert!(
        published.contains("capacity = 6") && published.contains("eve"),
        "{published}"
    );
    assert!(root.page(PAGE).body.contains(">In force"));
}

/// The error can name policies of a text that another program has written.
#[test]
fn error_of_the_publication_is_shown_to_readers_of_all_policies_only() {
    let redis = RedisServer::start();
    let server = with_sqlite(&["--redis", &redis.url()]);
    let root = AdminClient::set_up(&server);
    let viewer = root.add_user("viewer", &[("shop", "viewer")]);
    let text = "revision = 9007199254740000\n[policy.secret]\nalgorithm = 'unknown'\n";
    redis.command(&["SET", "default|book", text]);
    let error = |client: &AdminClient| {
        let status = client.get("/namespaces/default/status").json();
        status["publisher_error"].as_str().unwrap_or_default().to_owned()
    };
    wait_until(|| error(&root).contains("secret"), || server.log());
    let shown = error(&viewer);
    assert!(shown.contains("ask an administrator"), "{shown}");
    let page = viewer.page("/e/default/status").body;
    assert!(
        page.contains("ask an administrator") && !page.contains("secret"),
        "{page}"
    );
}
