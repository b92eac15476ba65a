//! Names of policies that a database cannot store, in the registry of another program, and names
//! that no address of a page can contain.

use limiter_core::Policy;
use limiter_server::store::{DocumentKind, Store};
use limiter_testing::RedisServer;
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy_of_all, with_sqlite};
use crate::support::databases::Database;
use crate::{bucket, in_force, publisher_of, registry_of, save};

/// PostgreSQL stores no NUL. The policy stays in force, and other changes are published.
async fn publish_beside_a_name_with_nul(url: &str) {
    let (redis, store) = (RedisServer::start(), Store::open(url).await.unwrap());
    let publisher = publisher_of(&store, &redis);
    let policy = DocumentKind::Policy;
    save(&store, policy, "search", 0, &bucket("search", ""), 1).await;
    publisher.publish().await.unwrap();
    let registry = registry_of(&redis);
    let edited = registry.edit(|draft| {
        draft.set(Policy::sliding_window("a\0b").limit(5).window("1m").build()?);
        draft.set(Policy::sliding_window("mail").limit(5).window("1m").build()?);
        Ok(())
    });
    edited.await.unwrap();
    save(&store, policy, "login", 0, &bucket("login", ""), 2).await;
    publisher.publish().await.unwrap();
    let mail = store.document("prod", policy, "mail").await.unwrap();
    assert!(mail.is_some_and(|of| of.published == 1), "it is imported");
    let in_force = in_force(&redis).await;
    for name in ["search", "a\0b", "mail", "login"] {
        assert!(in_force.get(name).is_some(), "{name:?}");
    }
}

#[test]
fn name_with_nul_in_redis_delays_no_publication() {
    let database = Database::postgres();
    let url = database.create("unstorable_names");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.unwrap().block_on(publish_beside_a_name_with_nul(&url));
}

/// Browsers remove the segments `.` and `..` from the address of a page, also in their encoded
/// form.
#[test]
fn names_of_relative_segments_are_rejected() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    for (name, segment) in [(".", "%2E"), ("..", "%2E%2E")] {
        let rejected = |method: &str, path: &str, body: &Value| {
            let answer = root.send(method, path, &[("if-none-match", "*")], body);
            assert_eq!(answer.status, 422, "{path}: {}", answer.body);
            assert!(
                answer.body.contains(&format!("`{name}`")),
                "{path}: {}",
                answer.body
            );
        };
        let of_namespace = |path: &str| format!("/namespaces/default/{path}");
        let text = json!({ "toml": policy_of_all(&format!("{name:?}"), 5) });
        rejected("PUT", &of_namespace(&format!("policies/{segment}")), &text);
        rejected("PUT", &of_namespace(&format!("apps/{segment}")), &json!({}));
        let grant = of_namespace(&format!("grants/user/{segment}/shop"));
        rejected("PUT", &grant, &json!({ "role": "viewer" }));
        rejected("POST", "/users", &json!({ "name": name }));
    }
}
