//! A program of this version on the schema of the next one: a running node continues, and a node
//! that starts later decides, shows and does not write.

use limiter_testing::RedisServer;
use serde_json::{Value, json};

use crate::support::access::bearer;
use crate::support::admin::{AdminClient, Credentials, PASSWORD, policy_of_all, with_sqlite};
use crate::support::databases;
use crate::support::http;
use crate::support::server::{Server, run, wait_until};

const SEARCH: &str = "/namespaces/default/policies/search";
const TOKENS: &str = "/namespaces/default/tokens";

fn url_of(server: &Server) -> String {
    let database = server.directory().path().join("limiter.db");
    format!("sqlite:{}", database.display())
}

fn version(server: &Server) -> i64 {
    let versions = databases::texts(
        &url_of(server),
        "SELECT CAST(MAX(version) AS TEXT) FROM schema_version",
    );
    versions[0].parse().unwrap()
}

/// Updates the schema as the next version of the program does: it adds columns and a table.
fn update_schema(server: &Server) -> i64 {
    let (url, next) = (url_of(server), version(server) + 1);
    let tables = databases::texts(
        &url,
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'",
    );
    let mut statements = vec!["CREATE TABLE addition (name TEXT NOT NULL)".to_owned()];
    for table in tables.iter().filter(|table| *table != "schema_version") {
        statements.push(format!("ALTER TABLE {table} ADD COLUMN addition TEXT"));
    }
    statements.push(format!("INSERT INTO schema_version (version) VALUES ({next})"));
    databases::execute(&url, &statements);
    next
}

fn check(server: &Server, token: Option<&str>) -> u16 {
    let token = token.map(bearer);
    let headers = token.as_deref().map(|token| ("authorization", token));
    let body = json!({ "policy": "search", "key": "ann" }).to_string();
    let answer = http::post(server.http(), "/v1/check", headers.as_slice(), &body);
    answer.map_or(0, |answer| answer.status)
}

#[test]
fn running_node_continues_on_a_newer_schema() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = with_sqlite(&["--redis", &url]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    wait_until(|| check(&server, None) == 429, || server.log());
    update_schema(&server);

    let faster = policy_of_all("search", 9).replace("1/h", "100/s");
    let saved = root.put_policy("search", 1, &faster);
    assert_eq!(saved.status, 200, "{}", saved.body);
    let state = || root.get(SEARCH).json()["state"].clone();
    wait_until(|| state() == "published", || server.log());
    wait_until(|| check(&server, None) == 200, || server.log());
    let ann = root.add_user("ann", &[("shop", "viewer")]);
    assert_eq!(ann.get("/session").status, 200);
    let body = json!({ "name": "edge", "scopes": ["check:*"] });
    let token = root.send("POST", TOKENS, &[], &body);
    assert_eq!(token.status, 201, "{}", token.body);
    let secret = token.json()["secret"].as_str().unwrap().to_owned();
    wait_until(|| check(&server, None) == 401, || server.log());
    assert_eq!(check(&server, Some(&secret)), 200);
    let status = root.get("/namespaces/default/status").json();
    assert_eq!(
        (&status["read_only"], &status["publisher_error"]),
        (&json!(false), &Value::Null)
    );
}

#[test]
fn node_started_on_a_newer_schema_decides_and_shows_without_changes() {
    let redis = RedisServer::start();
    let url = redis.url();
    let mut server = with_sqlite(&["--redis", &url]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    let body = json!({ "name": "edge", "scopes": ["check:*"] });
    let created = root.send("POST", TOKENS, &[], &body).json();
    let (id, secret) = (
        created["id"].as_str().unwrap(),
        created["secret"].as_str().unwrap(),
    );
    let body = json!({ "name": "ci", "scopes": ["admin:owner"] });
    let created = root.send("POST", TOKENS, &[], &body).json();
    let owner = Credentials::Token(created["secret"].as_str().unwrap().to_owned());
    wait_until(|| check(&server, Some(secret)) == 429, || server.log());
    server.kill();
    let newer = update_schema(&server);
    let mut server = server.restart(&["--redis", &url, "--admin", "127.0.0.1:0"]);
    let root = AdminClient::new(server.admin(), root.credentials);
    wait_until(|| root.get("/session").status == 200, || server.log());

    // Decisions and the authentication of clients.
    for path in ["/readyz", "/readyz/gateway"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!([check(&server, Some(secret)), check(&server, None)], [429, 401]);
    // Readers see the policies, and sign in and out.
    let owner = AdminClient::new(server.admin(), owner);
    for client in [&root, &owner] {
        assert_eq!(client.get(SEARCH).json()["state"], "published");
    }
    assert_eq!(root.page("/e/default/policies/search").status, 200);
    let status = root.get("/namespaces/default/status").json();
    assert_eq!(
        (&status["read_only"], &status["publisher_error"]),
        (&json!(true), &Value::Null)
    );
    let again = root.sign_in("root");
    assert_eq!(again.get(SEARCH).status, 200);
    assert_eq!(again.send("DELETE", "/session", &[], &Value::Null).status, 204);
    assert_eq!(again.get(SEARCH).status, 401);
    // Changes state the reason.
    let token = format!("{TOKENS}/{id}");
    let user = json!({ "name": "eve", "password": PASSWORD });
    let block = json!({ "key": "eve", "for_seconds": 60 });
    let text = json!({ "toml": policy_of_all("search", 2) });
    for (method, path, body) in [
        ("PUT", SEARCH, &text),
        ("DELETE", token.as_str(), &Value::Null),
        ("POST", "/users", &user),
        ("POST", "/namespaces/default/blocks", &block),
    ] {
        let refused = root.send(method, path, &[("if-match", "1")], body);
        assert_eq!(refused.status, 503, "{method} {path}: {}", refused.body);
        let reason = format!(
            "the database has schema {newer}, and this program knows schema {}",
            newer - 1
        );
        assert!(refused.body.contains(&reason), "{}", refused.body);
    }
    // The command needs Redis only. A node that may write imports it later.
    let kill = [
        "kill",
        "policy:search",
        "--enforcement",
        "off",
        "--reason",
        "a test",
        "--redis",
        &url,
    ];
    let (code, _, errors) = run(&kill);
    assert_eq!(code, Some(0), "{errors}");
    wait_until(|| check(&server, Some(secret)) == 200, || server.log());
    let published = redis.command(&["GET", "default|book"]).text();
    assert!(
        published.contains("a test"),
        "the registry in force stays: {published}"
    );
    let suspensions = root.get("/namespaces/default/suspensions").json();
    assert_eq!(suspensions["suspensions"], json!([]));
    let status = root.get("/namespaces/default/status").json();
    assert_eq!(status["publisher_error"], Value::Null);

    databases::execute(
        &url_of(&server),
        &[format!("DELETE FROM schema_version WHERE version = {newer}")],
    );
    server.kill();
    let server = server.restart(&["--redis", &url, "--admin", "127.0.0.1:0"]);
    let owner = AdminClient::new(server.admin(), owner.credentials);
    let imported = || {
        let answer = owner.get("/namespaces/default/suspensions");
        answer.status == 200 && answer.body.contains("a test")
    };
    wait_until(imported, || server.log());
}

#[test]
fn gateway_without_redis_has_the_policies_of_a_newer_schema() {
    let mut server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    server.kill();
    update_schema(&server);
    let server = server.restart(&["--admin", "127.0.0.1:0"]);
    wait_until(|| server.get("/readyz").status == 200, || server.log());
    assert_eq!([200, 429], [(); 2].map(|()| check(&server, None)));
}
