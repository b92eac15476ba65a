//! Publication is blocked for fields that a process cannot read.

use limiter_server::store::{DocumentKind, OVERLAYS, RULES, SaveRequest};
use limiter_testing::RedisServer;
use serde_json::json;

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::saves::{author, policy_change};
use crate::support::server::Directory;
use crate::{bucket, in_force, open, publisher_of, save};

/// A field of format 2 of the registry.
const NEWER: &str = "deny_keys = [{ key = 'eve', until = 2100-01-01T00:00:00Z }]";

/// Registers a process that reads format 1, as the script of the library stores it.
fn register_old_process(redis: &RedisServer, namespace: &str) {
    let description = b"0.0.9\nweb-3\ncheckout";
    let mut entry = vec![1_u8];
    entry.extend(7_u64.to_le_bytes());
    entry.extend(4_000_000_000_000_000_u64.to_le_bytes());
    entry.extend(0_i64.to_le_bytes());
    entry.extend(1_u64.to_le_bytes());
    entry.extend(1_u32.to_le_bytes());
    entry.extend(u16::try_from(description.len()).unwrap().to_le_bytes());
    entry.extend(description);
    let key = format!("{namespace}|subscribers");
    redis.command(&[b"SET".to_vec(), key.into_bytes(), entry]);
}

#[tokio::test]
async fn policy_that_an_old_process_cannot_read_is_not_published() {
    let (directory, redis) = (Directory::new(), RedisServer::start());
    let store = open(&directory).await;
    let publisher = publisher_of(&store, &redis);
    for name in ["new", "old"] {
        save(&store, DocumentKind::Policy, name, 0, &bucket(name, ""), 1).await;
    }
    publisher.publish().await.unwrap();
    register_old_process(&redis, "prod");
    save(&store, DocumentKind::Policy, "new", 1, &bucket("new", NEWER), 2).await;
    let changed = bucket("old", "group = 'g'");
    save(&store, DocumentKind::Policy, "old", 1, &changed, 2).await;
    let reason = publisher.publish().await.unwrap_err();
    assert!(
        reason.contains("policy `new`") && reason.contains("web-3 (checkout, limiter-core 0.0.9)"),
        "{reason}"
    );
    let registry = in_force(&redis).await;
    assert!(registry.get("new").unwrap().policy().deny_keys().is_none());
    assert_eq!(registry.get("old").unwrap().policy().group(), Some("g"));
    assert_eq!(store.publication("prod").await.unwrap().pending, 1);

    // Lost data is published again, with the policy as it is saved.
    redis.command(&["DEL", "prod|book"]);
    publisher.publish().await.unwrap();
    assert!(in_force(&redis).await.get("new").is_some());
}

#[tokio::test]
async fn updated_process_ends_the_block() {
    let (directory, redis) = (Directory::new(), RedisServer::start());
    let store = open(&directory).await;
    let publisher = publisher_of(&store, &redis);
    save(&store, DocumentKind::Policy, "base", 0, &bucket("base", ""), 1).await;
    publisher.publish().await.unwrap();
    register_old_process(&redis, "prod");
    save(&store, DocumentKind::Policy, "new", 0, &bucket("new", NEWER), 1).await;
    publisher.publish().await.unwrap_err();
    assert!(in_force(&redis).await.get("new").is_none());
    redis.command(&["DEL", "prod|subscribers"]);
    publisher.publish().await.unwrap();
    assert!(in_force(&redis).await.get("new").is_some());
}

/// No registry accepts the rule without its policy.
#[tokio::test]
async fn rule_of_a_policy_that_is_kept_back_does_not_keep_back_the_others() {
    let (directory, redis) = (Directory::new(), RedisServer::start());
    let store = open(&directory).await;
    let publisher = publisher_of(&store, &redis);
    save(&store, DocumentKind::Policy, "old", 0, &bucket("old", ""), 1).await;
    publisher.publish().await.unwrap();
    register_old_process(&redis, "prod");
    save(&store, DocumentKind::Policy, "new", 0, &bucket("new", NEWER), 2).await;
    let rules = SaveRequest {
        kind: DocumentKind::Rules,
        ..policy_change(
            RULES,
            0,
            "[[rule]]\nmatch = ['customer']\npolicy = 'new'\n".to_owned(),
        )
    };
    store.save(&rules, &author("ann", 2)).await.unwrap();
    let changed = bucket("old", "group = 'g'");
    save(&store, DocumentKind::Policy, "old", 1, &changed, 2).await;
    for _ in 0..2 {
        let reason = publisher.publish().await.unwrap_err();
        assert!(reason.contains("policy `new`"), "{reason}");
        let registry = in_force(&redis).await;
        assert_eq!(registry.get("old").unwrap().policy().group(), Some("g"));
        assert!(registry.rules().is_empty());
    }
    redis.command(&["DEL", "prod|subscribers"]);
    publisher.publish().await.unwrap();
    assert_eq!(in_force(&redis).await.rules().len(), 1);
}

/// A suspension must reach the processes that obey it.
#[tokio::test]
async fn suspension_is_published_beside_an_old_process() {
    let (directory, redis) = (Directory::new(), RedisServer::start());
    let store = open(&directory).await;
    let publisher = publisher_of(&store, &redis);
    register_old_process(&redis, "prod");
    let text = "[[suspend]]\nscope = 'all'\nenforcement = 'off'\nuntil = 2100-01-01T00:00:00Z\n";
    save(&store, DocumentKind::Overlays, OVERLAYS, 0, text, 1).await;
    publisher.publish().await.unwrap();
    assert_eq!(in_force(&redis).await.suspensions().len(), 1);
}

#[test]
fn save_is_rejected_with_the_hosts_and_old_processes_are_listed() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = with_sqlite(&["--redis", &url, "--namespace", "prod"]);
    let root = AdminClient::set_up(&server);
    register_old_process(&redis, "prod");
    let send = |text: &str| {
        let body = json!({ "toml": text });
        let path = "/namespaces/prod/policies/new";
        root.send("PUT", path, &[("if-none-match", "*")], &body)
    };
    let rejected = send(&bucket("new", NEWER));
    assert_eq!(rejected.status, 422, "{}", rejected.body);
    assert!(rejected.body.contains("web-3"), "{}", rejected.body);
    assert_eq!(send(&bucket("new", "")).status, 200);
    let suspensions = root.get("/namespaces/prod/suspensions").json();
    let old = &suspensions["unsupported_by"][0];
    assert_eq!(
        (&old["host"], &old["version"]),
        (&json!("web-3"), &json!("0.0.9"))
    );
}

/// The process started after the proposal.
#[test]
fn approval_is_rejected_with_the_hosts() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = with_sqlite(&["--redis", &url]);
    let root = AdminClient::set_up(&server);
    let bounds = json!({ "bounds": { "max_capacity": 10 } });
    let set = root.send("PUT", "/namespaces/default/apps/shop", &[], &bounds);
    assert_eq!(set.status, 204, "{}", set.body);
    let text = |capacity: u32| policy("search", capacity, "shop") + NEWER;
    assert_eq!(root.put_policy("search", 0, &text(5)).status, 200);
    let editor = root.add_user("eve", &[("shop", "editor")]);
    let proposed = editor.put_policy("search", 1, &text(50));
    assert_eq!(proposed.status, 202, "{}", proposed.body);
    let id = proposed.json()["proposal"].as_str().unwrap().to_owned();

    register_old_process(&redis, "default");
    let approve = || {
        let path = format!("/namespaces/default/proposals/{id}/approve");
        root.send("POST", &path, &[], &json!({}))
    };
    let rejected = approve();
    assert_eq!(rejected.status, 422, "{}", rejected.body);
    assert!(rejected.body.contains("web-3"), "{}", rejected.body);
    redis.command(&["DEL", "default|subscribers"]);
    let approved = approve();
    assert_eq!(approved.status, 200, "{}", approved.body);
}

#[test]
fn old_processes_of_other_apps_are_not_listed() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = with_sqlite(&["--redis", &url]);
    let root = AdminClient::set_up(&server);
    register_old_process(&redis, "default");
    for (user, app, hosts) in [("ann", "checkout", 1), ("bob", "mobile", 0)] {
        let viewer = root.add_user(user, &[(app, "viewer")]);
        for (list, field) in [("subscribers", "subscribers"), ("suspensions", "unsupported_by")] {
            let listed = viewer.get(&format!("/namespaces/default/{list}")).json();
            let old = listed[field].as_array().unwrap().iter();
            let old = old.filter(|of| of["host"] == "web-3").count();
            assert_eq!(old, hosts, "{user}: {listed}");
        }
    }
}
