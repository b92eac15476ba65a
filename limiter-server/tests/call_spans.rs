//! Spans of calls: one line per call at the level debug, and none at the default level.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use support::descriptors::{descriptor_of, request};
use support::policies::SEARCH;
use support::rls::RlsClient;
use support::server::{Directory, Server};

const SECRET: &str = "203.0.113.77";

fn call(server: &Server) {
    let descriptor = descriptor_of(&[("generic_key", "search"), ("remote_address", SECRET)]);
    RlsClient::connect(server.grpc())
        .decide(&request(&[descriptor]))
        .unwrap();
    let body = format!(r#"{{"policy":"search","key":"{SECRET}"}}"#);
    let answer = support::http::post(server.http(), "/v1/check", &[], &body).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn call_has_one_line_without_keys_at_level_debug() {
    let directory = Directory::new();
    let policies = directory.write("policies.toml", SEARCH);
    let filter = ("RUST_LOG", "info,limiter_server::call=debug");
    let server = Server::start_with_variable(directory, filter, &["--policies", policies.to_str().unwrap()]);
    call(&server);
    for expected in [
        r#"protocol="grpc" method=POST path="/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" domain="edge" code=Ok status=200"#,
        r#"protocol="http" method=POST path="/v1/check" status=200"#,
    ] {
        server.wait_for_log(expected);
    }
    assert!(server.log().contains("time.busy"), "{}", server.log());
    assert!(!server.log().contains(SECRET), "{}", server.log());
}

#[test]
fn default_level_has_no_spans() {
    let server = Server::with_policies(SEARCH, &[]);
    call(&server);
    assert!(!server.log().contains("protocol=\"grpc\""), "{}", server.log());
}
