//! Policies of rules that another program has ended.

use limiter_core::{Limiter, Timestamp};
use limiter_testing::RedisServer;
use serde_json::json;

use crate::support::admin::{AdminClient, policy_of_all, with_sqlite};
use crate::support::server::{run, wait_until};

#[test]
fn policy_of_a_rule_that_ends_outside_blocks_no_other_edit() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = with_sqlite(&["--redis", &url]);
    let root = AdminClient::set_up(&server);
    for name in ["search", "mail"] {
        assert_eq!(root.put_policy(name, 0, &policy_of_all(name, 5)).status, 200);
    }
    let body = json!({ "toml": "[[rule]]\nmatch = ['route=a']\npolicy = 'search'\n" });
    let path = "/namespaces/default/rules";
    let saved = root.send("PUT", path, &[("if-none-match", "*")], &body);
    assert_eq!(saved.status, 200, "{}", saved.body);
    let state = || root.get(path).json()["state"].clone();
    wait_until(|| state() == "published", || server.log());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter = Limiter::redis(redis.url()).namespace("default").build().unwrap();
        let registry = limiter.redis_registry().unwrap();
        let edited = registry.edit(|draft| {
            let entry = (*draft.get("search").unwrap()).clone();
            draft.set(entry.until(Timestamp::from_micros(1_000_000)));
            Ok(())
        });
        edited.await.unwrap();
    });
    let search = || root.get("/namespaces/default/policies/search").status;
    wait_until(|| search() == 404, || server.log());
    let saved = root.put_policy("mail", 1, &policy_of_all("mail", 6));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let mail = || root.get("/namespaces/default/policies/mail").json();
    wait_until(|| mail()["state"] == "published", || server.log());
    // New rules do not name the policy.
    let refused = root.send("PUT", path, &[("if-match", "1")], &body);
    assert_eq!(refused.status, 422, "{}", refused.body);
    // The exported file is valid, and applies without changes.
    let directory = server.directory();
    let database = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let (code, exported, errors) = run(&["policy", "export", "--database", &database]);
    assert_eq!(code, Some(0), "{errors}");
    directory.write("exported.toml", &exported);
    let file = directory.path().join("exported.toml").display().to_string();
    let (code, output, errors) = run(&["policy", "diff", "-f", &file, "--database", &database]);
    assert_eq!((code, output.as_str()), (Some(0), "no changes\n"), "{errors}");
}
