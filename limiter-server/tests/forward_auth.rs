//! `/forward-auth`, `/json` and `/v1/unmatched` of real server processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use serde_json::{Value, json};
use support::http::{self, Response};
use support::server::{Server, run};

const POLICIES: &str = r#"
[policy.edge]
algorithm = "sliding_window"
limit = 2
window = "1h"

[policy.listed]
algorithm = "sliding_window"
limit = 2
window = "1h"
deny_keys = ["eve"]

[[rule]]
match = ["user"]
policy = "edge"
"#;

fn forward_auth(server: &Server, query: &str, headers: &[(&str, &str)]) -> Response {
    let headers = [&[("host", "localhost")], headers].concat();
    http::get(server.http(), &format!("/forward-auth?{query}"), &headers).expect("an answer")
}

fn behind_trusted_proxy() -> Server {
    Server::with_policies(POLICIES, &["--trusted-proxies", "127.0.0.0/8,10.0.7.0/24"])
}

#[test]
fn forward_auth_limits_each_client_of_a_trusted_proxy() {
    let server = behind_trusted_proxy();
    let from = |client: &str| forward_auth(&server, "policy=edge", &[("x-forwarded-for", client)]);
    let allowed = from("192.0.2.1");
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    assert!(allowed.header("ratelimit").unwrap().starts_with(r#""edge";r=1;"#));
    // The client cannot choose its key by a forged address, also behind a second proxy.
    assert_eq!(from("203.0.113.9, 192.0.2.1, 10.0.7.3").status, 200);
    let denied = from("192.0.2.1");
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").is_some());
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(from("192.0.2.2").status, 200);
}

/// A denial without its key is in no list of denied keys.
#[test]
fn denial_names_the_client_behind_several_proxies() {
    let args = [
        "--trusted-proxies",
        "127.0.0.0/8,10.0.7.0/24",
        "--key-in-metadata",
        "plain",
    ];
    let server = Server::with_policies(POLICIES, &args);
    for (forwarded, key) in [
        ("192.0.2.3", "192.0.2.3 / a"),
        ("203.0.113.9, 192.0.2.1, 10.0.7.3", "192.0.2.1 / a"),
        ("2001:db8::7", "2001:db8::/64 / a"),
        ("::ffff:192.0.2.4, 10.0.7.3", "192.0.2.4 / a"),
    ] {
        let query = "policy=edge&key=client_ip&key=text:a";
        let call = || forward_auth(&server, query, &[("x-forwarded-for", forwarded)]);
        assert_eq!((call().status, call().status), (200, 200), "{forwarded}");
        let denied = call();
        assert_eq!((denied.status, &denied.json()["key"]), (429, &json!(key)));
    }
}

#[test]
fn key_has_the_parts_of_the_query() {
    let server = behind_trusted_proxy();
    let send = |uri: &str, user: &str| {
        forward_auth(
            &server,
            "policy=edge&key=path&key=method&key=host&key=header:X-User&key=text:v1&cost=2&deny_status=403",
            &[
                ("x-forwarded-uri", uri),
                ("x-forwarded-method", "POST"),
                ("x-forwarded-host", "example.org"),
                ("x-user", user),
            ],
        )
    };
    assert_eq!(send("/a?x=1", "ann").status, 200);
    let denied = send("/a?x=2", "ann");
    assert_eq!(denied.status, 403, "{}", denied.body);
    assert!(denied.header("retry-after").is_some());
    assert_eq!(send("/b", "ann").status, 200);
    assert_eq!(send("/a", "bob").status, 200);
}

/// Otherwise the client could choose among many keys of one host.
#[test]
fn spellings_of_a_host_have_one_key() {
    let server = behind_trusted_proxy();
    let send = |host: &str| {
        let headers = [("x-forwarded-host", host)];
        forward_auth(&server, "policy=edge&key=host", &headers).status
    };
    let spellings = [
        "example.org",
        "EXAMPLE.org",
        "example.org:8443",
        "Example.org.",
        "example.org.:80",
    ];
    assert_eq!(spellings.map(send), [200, 200, 429, 429, 429]);
    assert_eq!(send("other.example.org"), 200);
    assert_eq!(
        ["[2001:DB8::1]:80", "[2001:db8::1]", "[2001:db8::1]"].map(send),
        [200, 200, 429]
    );
}

/// A value that is no ASCII is a key of its own, and a repeated header names no key.
#[test]
fn header_of_the_key_is_any_text_and_given_once() {
    let server = Server::with_policies(POLICIES, &[]);
    let send = |users: &[&str]| {
        let headers: Vec<_> = users.iter().map(|user| ("x-user", *user)).collect();
        forward_auth(&server, "policy=edge&key=header:x-user", &headers)
    };
    for users in [&["zoë"][..], &["josé"], &["ann"], &[]] {
        for status in [200, 200, 429] {
            let answer = send(users);
            assert_eq!(answer.status, status, "{users:?}: {}", answer.body);
        }
    }
    let repeated = send(&["bob", "bob"]);
    assert_eq!(repeated.status, 400, "{}", repeated.body);
    assert!(repeated.body.contains("x-user"), "{}", repeated.body);
}

/// A proxy forwards the path as its client sent it, also with bytes that are no ASCII.
#[test]
fn path_of_the_key_is_any_text() {
    let server = behind_trusted_proxy();
    let send = |uri: &str| forward_auth(&server, "policy=edge&key=path", &[("x-forwarded-uri", uri)]);
    for uri in ["/zoë?x=1", "/josé", "/ann"] {
        for status in [200, 200, 429] {
            let answer = send(uri);
            assert_eq!(answer.status, status, "{uri}: {}", answer.body);
        }
    }
    let twice = [("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/b")];
    let repeated = forward_auth(&server, "policy=edge&key=path", &twice);
    assert_eq!(repeated.status, 400, "{}", repeated.body);
    assert!(
        repeated.body.contains("x-forwarded-uri is repeated"),
        "{}",
        repeated.body
    );
}

#[test]
fn forwarded_headers_of_other_peers_are_not_read() {
    let server = Server::with_policies(POLICIES, &["--trusted-proxies", "10.0.7.1"]);
    let answer = forward_auth(&server, "policy=edge", &[("x-forwarded-for", "192.0.2.1")]);
    assert_eq!(answer.status, 400);
    assert!(
        answer.body.contains("add the address to trusted_proxies"),
        "{}",
        answer.body
    );
    let answer = forward_auth(&server, "policy=edge&key=path", &[("x-forwarded-uri", "/a")]);
    assert_eq!(answer.status, 400);
    assert_eq!(forward_auth(&server, "policy=edge&key=text:all", &[]).status, 200);
    let (code, _, errors) = run(&["serve", "--example", "--trusted-proxies", "10.0.7.1/8"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("trusted_proxies is `10.0.7.1/8`"), "{errors}");
}

#[test]
fn forward_auth_explains_errors() {
    let server = behind_trusted_proxy();
    for (query, status, expected) in [
        ("", 400, "`policy` is missing"),
        (
            "policy=edge&key=cookie",
            400,
            "`key` is `cookie`, expected client_ip",
        ),
        ("policy=edge", 400, "expected the header x-forwarded-for"),
        (
            "policy=edge&cost=1&cost=2",
            400,
            "`query` is `cost=2`, expected one",
        ),
        ("policy=edge&deny_status=403&deny_status=429", 400, "expected one"),
        ("policy=nope&key=text:a", 404, "no policy `nope`"),
        ("policy=edge&key=text:a&cost=3", 429, "more than is ever admitted"),
        ("policy=listed&key=header:x-user", 403, ""),
    ] {
        let answer = forward_auth(&server, query, &[("x-user", "eve")]);
        assert_eq!(answer.status, status, "{query}: {}", answer.body);
        assert!(answer.body.contains(expected), "{query}: {}", answer.body);
        // A key list has no quota, and no retry succeeds.
        let has_quota = ["ratelimit", "ratelimit-policy"].map(|name| answer.header(name).is_some());
        assert_eq!(has_quota, [status == 429; 2], "{query}: {answer:?}");
    }
}

fn post_json(server: &Server, headers: &[(&str, &str)], body: &Value) -> Response {
    http::post(server.http(), "/json", headers, &body.to_string()).expect("an answer")
}

#[test]
fn json_endpoint_matches_reference_implementation() {
    let server = Server::with_policies(POLICIES, &["--key-in-metadata", "plain"]);
    let request = json!({"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]});
    // The content type of `curl --data`.
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let allowed = post_json(&server, &form, &request);
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    let answer = allowed.json();
    assert_eq!(answer["overallCode"], "OK");
    let status = &answer["statuses"][0];
    assert_eq!(
        (&status["code"], &status["limitRemaining"]),
        (&json!("OK"), &json!(1))
    );
    assert_eq!(
        status["currentLimit"],
        json!({"requestsPerUnit": 2, "unit": "HOUR", "name": "edge"})
    );
    assert_eq!(status["durationUntilReset"], "3600s");

    post_json(&server, &form, &request);
    let denied = post_json(&server, &[], &request);
    assert_eq!(denied.status, 429);
    let answer = denied.json();
    assert_eq!(answer["overallCode"], "OVER_LIMIT");
    assert_eq!(answer["statuses"][0]["code"], "OVER_LIMIT");
    assert_eq!(answer["responseHeadersToAdd"][0]["key"], "retry-after");
    assert!(answer["dynamicMetadata"].is_object(), "{answer}");

    assert_eq!(post_json(&server, &[], &json!({"domain": "edge"})).status, 400);
    assert_eq!(post_json(&server, &[], &json!({"domain": 7})).status, 400);
}

#[test]
fn web_pages_cannot_send_json_without_its_content_type() {
    let server = Server::with_policies(POLICIES, &[]);
    let request = json!({"domain": "edge", "descriptors": [{"entries": [{"key": "user"}]}]});
    for browser in [
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let answer = post_json(&server, &[("content-type", "text/plain"), browser], &request);
        assert_eq!(answer.status, 400, "{}", answer.body);
    }
}

#[test]
fn descriptors_without_a_rule_are_listed() {
    let server = Server::with_policies(POLICIES, &[]);
    let unmatched =
        json!({"domain": "edge", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}]}]});
    assert_eq!(post_json(&server, &[], &unmatched).status, 200);
    let listed = http::get(server.http(), "/v1/unmatched", &[("host", "localhost")]).unwrap();
    assert_eq!(listed.status, 200);
    assert_eq!(listed.body, r#"{"unmatched":["edge tenant=acme"]}"#);
}
