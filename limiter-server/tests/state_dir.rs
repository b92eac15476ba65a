//! A start without the sources of policies, and the roles of a process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod support;

use serde_json::json;
use support::admin::{AdminClient, policy_of_all, with_sqlite};
use support::http;
use support::server::{Directory, Server, run, wait_until};

/// A database that is not reachable.
const UNREACHABLE: &str = "postgres://user@127.0.0.1:1/none";

fn check(server: &Server) -> u16 {
    let body = json!({ "policy": "search", "key": "ann" }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

#[test]
fn node_without_its_database_starts_with_cached_policies() {
    let cache = Directory::new();
    let directory = cache.path().to_str().unwrap();
    let mut server = with_sqlite(&["--state-dir", directory]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 1));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let cached = || std::fs::read_to_string(cache.path().join("registry.toml")).unwrap_or_default();
    wait_until(|| cached().contains("search"), || server.log());
    server.kill();

    let args = [
        "--database",
        UNREACHABLE,
        "--admin",
        "127.0.0.1:0",
        "--state-dir",
        directory,
    ];
    let server = Server::start(Directory::new(), &args);
    for path in ["/readyz", "/readyz/gateway"] {
        assert_eq!(server.get(path).status, 200, "{path}: {}", server.log());
    }
    assert_eq!([200, 429], [(); 2].map(|()| check(&server)));
    let waiting = http::get(server.admin(), "/admin/v1/session", &[]).unwrap();
    assert_eq!(waiting.status, 503, "{}", waiting.body);
}

#[test]
fn node_without_policies_is_not_ready() {
    let args = ["--database", UNREACHABLE, "--admin", "127.0.0.1:0"];
    let server = Server::start(Directory::new(), &args);
    for path in ["/readyz", "/readyz/gateway"] {
        assert_eq!(server.get(path).status, 503, "{path}");
    }
    let call = json!({ "policy": "search", "key": "ann" }).to_string();
    let envoy_call = json!({ "domain": "edge", "descriptors": [{ "entries": [{ "key": "search" }] }] });
    for (path, body) in [
        ("/v1/check", &call),
        ("/v1/peek", &call),
        ("/json", &envoy_call.to_string()),
    ] {
        let answer = http::post(server.http(), path, &[], body).unwrap();
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        assert!(answer.body.contains("no policies yet"), "{}", answer.body);
    }
}

#[test]
fn second_node_without_redis_refuses_to_start() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let url = format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    );
    let listeners = [
        "--grpc",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ];
    let (code, _, errors) = run(&[&["serve", "--database", &url], &listeners[..]].concat());
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("without Redis"), "{errors}");
}
