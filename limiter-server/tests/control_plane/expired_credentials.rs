//! Tokens and sessions that have expired.

use serde_json::json;

use crate::support::admin::{AdminClient, Credentials, policy_of_all, with_sqlite};
use crate::support::calls::post_as;
use crate::support::databases::execute;
use crate::support::server::wait_until;

const SESSION: &str = "/session";

#[test]
fn expired_tokens_and_sessions_are_rejected() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 9)).status,
        200
    );
    let body = json!({ "name": "ci", "scopes": ["admin:viewer", "peek:*"] });
    let created = root.send("POST", "/namespaces/default/tokens", &[], &body);
    assert_eq!(created.status, 201, "{}", created.body);
    let secret = created.json()["secret"].as_str().unwrap().to_owned();
    let token = AdminClient::new(server.admin(), Credentials::Token(secret.clone()));
    let policies = || token.get("/namespaces/default/policies").status;
    let peek = || {
        let body = json!({ "policy": "search", "key": "ann" });
        post_as(&server, Some(&secret), "/v1/peek", &body).status
    };
    assert_eq!((policies(), root.get(SESSION).status), (200, 200));
    wait_until(|| peek() == 200, || server.log());

    let database = server.directory().path().join("limiter.db");
    let url = format!("sqlite:{}", database.display());
    execute(&url, &["UPDATE token SET expires_at = 1".to_owned()]);
    assert_eq!((policies(), root.get(SESSION).status), (401, 200));
    wait_until(|| peek() == 401, || server.log());
    execute(&url, &["UPDATE signin SET expires_at = 1".to_owned()]);
    assert_eq!(root.get(SESSION).status, 401);
    assert_ne!(root.page("/e/default/apps").status, 200);
    assert_eq!(root.sign_in("root").get(SESSION).status, 200);
}
