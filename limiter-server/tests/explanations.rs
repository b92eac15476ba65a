//! Explanations of denials: one revision and one fingerprint of a key in all places, and a link to
//! the page that explains the denial.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use limiter_testing::RedisServer;
use prost_types::value::Kind;
use serde_json::{Value, json};
use support::access::{self, TOKEN};
use support::admin::{AdminClient, policy_of_all, with_sqlite};
use support::calls::{limit, post_as};
use support::descriptors::{all_metadata, descriptor_of, request};
use support::http::Response;
use support::rls::RlsClient;
use support::server::{Directory, Server, wait_until};
use support::stores::PATIENT;

const POLICIES: &str = r#"
[policy.search]
algorithm = "sliding_window"
limit = 1
window = "1h"

[policy.daily]
algorithm = "sliding_window"
limit = 3
window = "1d"
"#;

fn check(server: &Server, token: Option<&str>, body: &Value) -> Response {
    post_as(server, token, "/v1/check", body)
}

/// The metadata of a denied request of Envoy: the default mapping, with a key of one value.
fn metadata(client: &RlsClient, policy: &str, value: &str) -> Option<Value> {
    let descriptor = descriptor_of(&[("generic_key", policy), ("user", value)]);
    let response = client.decide(&request(&[descriptor])).unwrap();
    let texts = all_metadata(&response)?
        .iter()
        .filter_map(|(name, value)| match value.kind.as_ref()? {
            Kind::StringValue(text) => Some((name.clone(), json!(text))),
            _ => None,
        });
    Some(Value::Object(texts.collect()))
}

#[test]
fn cost_above_the_capacity_has_origin_and_numbers() {
    let server = Server::with_policies(POLICIES, &["--node", "n1"]);
    let body = json!({"limits": [
        limit("search", "ann", 2),
        {"policy": "daily", "key": "ann"},
    ]});
    let denied = check(&server, None, &body);
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    let problem = denied.json();
    assert_eq!(
        (&problem["policy"], &problem["origin"]),
        (&json!("search"), &json!("memory"))
    );
    assert_eq!(
        (&problem["node"], &problem["revision"]),
        (&json!("n1"), &json!(1))
    );
    let limits = problem["limits"].as_array().unwrap();
    let limits = limits
        .iter()
        .map(|of| (&of["policy"], &of["allowed"], &of["remaining"]));
    assert_eq!(
        limits.collect::<Vec<_>>(),
        [
            (&json!("search"), &json!(false), &json!(1)),
            (&json!("daily"), &json!(true), &json!(3)),
        ]
    );
    let alone = check(&server, None, &limit("search", "ann", 2));
    assert_eq!(alone.status, 429);
    assert_eq!(alone.json()["limits"][0]["allowed"], false, "{}", alone.body);
    // Nothing was charged.
    assert_eq!(
        check(&server, None, &json!({"policy": "search", "key": "ann"})).status,
        200
    );
}

#[test]
fn key_is_in_the_body_only_where_configured() {
    let two = json!({"limits": [
        {"policy": "daily", "key": "other"},
        {"policy": "search", "key": ["tenant", "a:b"]},
    ]});
    for (form, expected) in [
        ("omit", None),
        ("plain", Some("tenant / a:b")),
        ("hashed", Some("48ea21d85b1a")),
    ] {
        let directory = Directory::new();
        let policies = directory.write("policies.toml", POLICIES);
        let secret = directory.write("secret", "not a real secret\n");
        let paths = [&policies, &secret].map(|path| path.to_str().unwrap().to_owned());
        let args = [
            "--policies",
            &paths[0],
            "--key-in-metadata",
            form,
            "--key-secret-file",
            &paths[1],
            "--public-url",
            "https://limits.example.com/",
        ];
        let server = Server::start(directory, &args);
        assert_eq!(check(&server, None, &two).status, 200);
        let denied = check(&server, None, &two).json();
        assert_eq!(denied["policy"], "search");
        assert_eq!(denied["key"].as_str(), expected, "{denied}");
        let link = denied["instance"].as_str().unwrap();
        let start = "https://limits.example.com/e/default/explain?policy=search";
        let rest = link.strip_prefix(start).unwrap_or_else(|| panic!("{link}"));
        let key = match form {
            "omit" => "",
            "plain" => "&key=tenant%20%2F%20a%3Ab",
            _ => "&key=48ea21d85b1a",
        };
        let at = rest.strip_prefix(key).and_then(|rest| rest.strip_prefix("&at="));
        let at: u64 = at.unwrap_or_else(|| panic!("{link}")).parse().unwrap();
        assert!(at > 1_600_000_000_000_000, "{link}");
    }
}

#[test]
fn invalid_public_url_is_rejected() {
    let (code, _, errors) =
        support::server::run(&["serve", "--example", "--public-url", "limits.example.com"]);
    assert_ne!(code, Some(0));
    assert!(errors.contains("public_url"), "{errors}");
}

/// Two nodes on one Redis: a control plane, and a gateway without the database.
fn nodes(redis: &RedisServer) -> (Server, AdminClient, Server) {
    let url = redis.url();
    let public = "https://limits.example.com";
    let args = [
        "--key-in-metadata",
        "hashed",
        "--public-url",
        public,
        "--redis",
        &url,
    ];
    let args = [&args, &PATIENT[..]].concat();
    let control = with_sqlite(&args);
    let root = AdminClient::set_up(&control);
    // The second edit: the number of changes of a process differs from the published revision.
    for (expected, capacity) in [(0, 1), (1, 2)] {
        let saved = root.put_policy("search", expected, &policy_of_all("search", capacity));
        assert_eq!(saved.status, 200, "{}", saved.body);
    }
    let directory = Directory::new();
    directory.write(
        "limiter-server.toml",
        &access::entry("test", TOKEN, &access::ALL_SCOPES),
    );
    let gateway = Server::start(directory, &args);
    (control, root, gateway)
}

#[test]
fn revision_and_fingerprint_are_equal_in_all_places() {
    let redis = RedisServer::start();
    let (control, root, gateway) = nodes(&redis);
    let body = json!({"policy": "search", "key": ["edge", "ann"], "cost": 1_000});
    let denied = || check(&gateway, Some(TOKEN), &body).json();
    let is_known = || denied()["key"].is_string() && denied()["limits"][0]["limit"] == 2;
    wait_until(is_known, || format!("{}: {}", denied(), gateway.log()));
    let of_http = denied();

    let client = RlsClient::connect(gateway.grpc()).with_token(TOKEN);
    let of_envoy = (0..10).find_map(|_| metadata(&client, "search", "ann")).unwrap();
    let revision = of_http["revision"].as_u64().unwrap().to_string();
    assert_eq!(of_envoy["revision"], json!(revision));
    assert_eq!(of_envoy["key"], of_http["key"]);
    let text = redis.command(&["GET", "default|book"]).text();
    assert!(text.contains(&format!("revision = {revision}")), "{text}");

    // The other node, and an audited read of the key.
    let key = of_http["key"].as_str().unwrap();
    let own = || root.get("/namespaces/default/keys?key=edge%20%2F%20ann").json();
    wait_until(
        || own()["fingerprint"] == key,
        || format!("{}: {}", own(), control.log()),
    );
    let audit = root.get("/namespaces/default/audit").body;
    assert!(audit.contains(&format!("key {key}")), "{audit}");
    let page = root.page("/e/default/customers?key=edge%20%2F%20ann").body;
    assert!(page.contains(key), "{page}");

    // The page of a link with the fingerprint finds the key among the denials.
    let one = json!({"policy": "search", "key": ["edge", "ann"]});
    let denied = (0..10)
        .map(|_| check(&control, None, &one))
        .find(|of| of.status == 429);
    let denied = denied.unwrap().json();
    assert_eq!(denied["key"], key);
    let link = denied["instance"].as_str().unwrap();
    let path = link.strip_prefix("https://limits.example.com").unwrap();
    assert!(path.contains(key), "{path}");
    let page = root.page(path).body;
    assert!(
        page.contains("value=\"edge / ann\"") && page.contains(key),
        "{page}"
    );
}

/// Two keys of one policy in one set: only the limit whose cost exceeds the capacity denies.
#[test]
fn cost_above_the_capacity_denies_only_its_own_key() {
    let grouped = POLICIES.replacen("limit = 1\n", "limit = 1\ngroup = \"tenant\"\n", 1);
    let server = Server::with_policies(&grouped, &[]);
    let body = json!({"limits": [
        limit("search", "ann", 1),
        limit("search", "bob", 2),
    ]});
    let denied = check(&server, None, &body);
    let problem = denied.json();
    assert_eq!(denied.status, 429, "{}", denied.body);
    let limits = problem["limits"].as_array().unwrap().iter();
    let allowed: Vec<_> = limits.map(|of| &of["allowed"]).collect();
    assert_eq!(allowed, [true, false], "{}", denied.body);
}
