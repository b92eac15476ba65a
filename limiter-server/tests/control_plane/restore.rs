//! An older copy of the database is restored: limits in force stay, and credentials wait for an
//! administrator.

use limiter_testing::RedisServer;
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, Credentials, policy_of_all, with_sqlite};
use crate::support::calls::post_as;
use crate::support::databases;
use crate::support::http;
use crate::support::server::{Directory, Server, wait_until};

const POLICIES: &str = "/namespaces/default/policies";
const TOKENS: &str = "/namespaces/default/tokens";

/// An issued token: its identity and its secret.
type Issued = (String, String);

fn issue(root: &AdminClient, scope: &str) -> Issued {
    let created = root.send("POST", TOKENS, &[], &json!({ "name": "edge", "scopes": [scope] }));
    assert_eq!(created.status, 201, "{}", created.body);
    let created = created.json();
    let text = |field: &str| created[field].as_str().unwrap().to_owned();
    (text("id"), text("secret"))
}

/// The status and the limit of a policy for a client of the gateway.
fn peek(server: &Server, (_, secret): &Issued, policy: &str) -> (u16, Option<u64>) {
    let body = json!({ "policy": policy, "key": "ann" });
    let answer = post_as(server, Some(secret), "/v1/peek", &body);
    (answer.status, answer.json()["limits"][0]["limit"].as_u64())
}

fn save(root: &AdminClient, policies: &[(&str, i64, u32)]) {
    for (name, revision, capacity) in policies {
        let saved = root.put_policy(name, *revision, &policy_of_all(name, *capacity));
        assert_eq!(saved.status, 200, "{}", saved.body);
    }
    let is_published = || {
        let list = root.get(POLICIES).json();
        let mut policies = list["policies"].as_array().unwrap().iter();
        policies.all(|of| of["state"] == "published")
    };
    wait_until(is_published, || "the policies are not published".to_owned());
}

#[test]
fn restored_database_keeps_limits_and_suspends_credentials_until_confirmation() {
    let redis = RedisServer::start();
    let url = redis.url();
    let mut server = with_sqlite(&["--redis", &url]);
    let root = AdminClient::set_up(&server);
    save(&root, &[("a", 0, 5), ("b", 0, 5), ("same", 0, 5)]);
    let [kept, other, revoked] = [(); 3].map(|()| issue(&root, "peek:*"));
    let viewer = issue(&root, "admin:viewer");
    for token in [&kept, &other, &revoked] {
        wait_until(|| peek(&server, token, "a") == (200, Some(5)), || server.log());
    }

    let copy = Directory::new();
    let copied = copy.path().join("limiter.db");
    let source = format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    );
    databases::execute(&source, &[format!("VACUUM INTO '{}'", copied.display())]);
    let answer = root.send("DELETE", &format!("{TOKENS}/{}", revoked.0), &[], &Value::Null);
    assert_eq!(answer.status, 204, "{}", answer.body);
    wait_until(|| peek(&server, &revoked, "a").0 == 401, || server.log());
    save(&root, &[("a", 1, 6), ("b", 1, 7), ("new", 0, 8)]);
    server.kill();

    let restored = format!("sqlite:{}", copied.display());
    let arguments = ["--database", &restored, "--redis", &url, "--admin", "127.0.0.1:0"];
    let server = Server::start(copy, &arguments);
    let is_suspended = || {
        // The copy contains the token as it was before its revocation.
        assert_eq!(peek(&server, &revoked, "a").0, 401, "{}", server.log());
        [&kept, &other]
            .iter()
            .all(|token| peek(&server, token, "a").0 == 401)
    };
    wait_until(is_suspended, || server.log());
    let is_serving = || http::get(server.admin(), "/healthz", &[]).is_ok_and(|answer| answer.status == 200);
    wait_until(is_serving, || server.log());
    // Neither sessions nor tokens of the admin part work.
    let session = AdminClient::new(server.admin(), root.credentials.clone());
    let token = AdminClient::new(server.admin(), Credentials::Token(viewer.1.clone()));
    for client in [&session, &token] {
        assert_eq!(client.get(POLICIES).status, 401);
    }

    let root = session.sign_in("root");
    let status = root.get("/namespaces/default/status").json();
    let alerts = status["alerts"].as_array().unwrap();
    let details: Vec<&str> = alerts.iter().map(|of| of["detail"].as_str().unwrap()).collect();
    for name in ["a", "b", "new"] {
        let text = format!("policy `{name}` differs");
        assert!(
            details.iter().any(|detail| detail.contains(&text)),
            "{name}: {details:?}"
        );
    }
    assert!(
        !details.iter().any(|detail| detail.contains("`same`")),
        "{details:?}"
    );
    assert!(
        details.iter().any(|detail| detail.contains("tokens wait")),
        "{details:?}"
    );
    for (name, capacity) in [("a", 6), ("b", 7), ("new", 8), ("same", 5)] {
        let text = root.get(&format!("{POLICIES}/{name}")).json()["toml"].to_string();
        assert!(text.contains(&format!("capacity = {capacity}")), "{name}: {text}");
    }

    let states = || {
        let list = root.get(TOKENS).json();
        let tokens = list["tokens"].as_array().unwrap().clone();
        let state = |(id, _): &Issued| tokens.iter().find(|of| of["id"] == *id).unwrap()["state"].clone();
        [&kept, &other, &viewer].map(state)
    };
    assert_eq!(states(), ["suspended"; 3]);
    let confirm = |(id, _): &Issued| {
        let path = format!("{TOKENS}/{id}/confirm");
        root.send("POST", &path, &[], &Value::Null).status
    };
    assert_eq!([confirm(&kept), confirm(&viewer)], [204, 204]);
    assert_eq!(confirm(&kept), 404, "the token is not suspended any more");
    wait_until(|| peek(&server, &kept, "a") == (200, Some(6)), || server.log());
    assert_eq!(peek(&server, &kept, "new"), (200, Some(8)));
    for token in [&other, &revoked] {
        assert_eq!(peek(&server, token, "a").0, 401);
    }
    assert_eq!(token.get(POLICIES).status, 200);
    assert_eq!(states(), ["valid", "suspended", "valid"]);
}
