//! Calls of the JSON interface.

use serde_json::{Value, json};

use super::access;
use super::http::{self, Response};
use super::server::Server;

/// Sends a request with a token, or without one.
pub(crate) fn post_as(server: &Server, token: Option<&str>, path: &str, body: &Value) -> Response {
    let token = token.map(access::bearer);
    let header = token.as_deref().map(|token| ("authorization", token));
    http::post(server.http(), path, header.as_slice(), &body.to_string()).expect("an answer")
}

/// Sends a request with the token of all scopes.
pub(crate) fn post(server: &Server, path: &str, body: &Value) -> Response {
    post_as(server, Some(access::TOKEN), path, body)
}

/// Sends a request with the token of all scopes, which must succeed: the body of the answer.
pub(crate) fn succeed(server: &Server, path: &str, body: &Value) -> Value {
    let answer = post(server, path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
    answer.json()
}

/// One limit of a request.
pub(crate) fn limit(policy: &str, key: &str, cost: u64) -> Value {
    json!({"policy": policy, "key": key, "cost": cost})
}

/// The remaining permits of a key.
pub(crate) fn remaining(server: &Server, policy: &str, key: &str) -> u64 {
    let peeked = succeed(server, "/v1/peek", &limit(policy, key, 0));
    peeked["limits"][0]["remaining"].as_u64().expect("a number")
}
