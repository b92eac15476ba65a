//! The calls that streams of the quota service report are counted once, by the mode of the policy,
//! and the queries of the service for the mode are not counted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a test may panic"
)]

mod support;

use std::collections::BTreeMap;

use limiter_server::gateway::quota::messages::{BlanketRule, BucketId, StrategyKind};
use serde_json::{Value, json};
use support::admin::{AdminClient, with_sqlite};
use support::browser::Browser;
use support::quota::{QuotaClient, bucket_id, calls, rate};
use support::server::{Server, wait_until};

const SUSPENSIONS: &str = "/namespaces/default/suspensions";
const BLOCKS: &str = "/namespaces/default/blocks";
const ASSIGNMENTS: &str = "/namespaces/default/quota-assignments";
const ALLOW: StrategyKind = StrategyKind::Blanket(BlanketRule::AllowAll as i32);
const DENY: StrategyKind = StrategyKind::Blanket(BlanketRule::DenyAll as i32);

const POLICIES: &str = r#"
[policy.api]
algorithm = "token_bucket"
capacity = 200
rate = "200/s"
deny_keys = ["edge:mallory"]
allow_keys = ["edge:root"]
trial = { capacity = 10, rate = "10/s", until = 2100-01-01T00:00:00Z }

[policy.trial]
algorithm = "token_bucket"
capacity = 200
rate = "200/s"
enforcement = "shadow"
deny_keys = ["edge:mallory"]

[policy.off]
algorithm = "token_bucket"
capacity = 200
rate = "200/s"
enforcement = "off"
"#;

/// The bucket of a policy in the default mapping, with the key `edge:value`.
fn bucket_of(policy: &str, value: &str) -> BucketId {
    bucket_id(&[(policy, value)])
}

/// The decisions of a policy, by outcome and origin.
fn decisions(server: &Server, policy: &str) -> BTreeMap<String, u64> {
    let metrics = server.get("/metrics").body;
    let label = format!("policy=\"{policy}\"");
    let of_policy = metrics
        .lines()
        .filter(|line| line.starts_with("limiter_decisions_total{") && line.contains(&label));
    let label_of = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let counts = of_policy.map(|line| {
        let name = format!("{} {}", label_of(line, "outcome"), label_of(line, "origin"));
        let (_, count) = line.rsplit_once(' ').unwrap();
        (name, count.parse().unwrap())
    });
    counts.collect()
}

fn counts<const N: usize>(expected: [(&str, u64); N]) -> BTreeMap<String, u64> {
    expected
        .into_iter()
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

/// Reads two assignments: the task of the budget has executed at least two steps then.
fn read_renewals(client: &mut QuotaClient) {
    for _ in 0..2 {
        client.strategy();
    }
}

#[track_caller]
fn assert_counted(server: &Server, policy: &str, expected: &BTreeMap<String, u64>) {
    wait_until(
        || decisions(server, policy) == *expected,
        || format!("{:?}, expected {expected:?}", decisions(server, policy)),
    );
}

#[test]
fn reported_calls_of_enforced_policy_are_counted_once() {
    let server = Server::with_policies(POLICIES, &[]);
    let mut client = QuotaClient::open(server.grpc(), None, calls(bucket_of("api", "ann"), 100, 50)).unwrap();
    read_renewals(&mut client);
    let mut expected = counts([("allowed lease", 100), ("denied lease", 50)]);
    assert_counted(&server, "api", &expected);
    let trials = server.metric("limiter_trial_decisions_total{policy=\"api\",outcome=\"denied\"}");
    assert_eq!(trials, 0.0, "the queries for the mode are no calls");
    client.report(calls(bucket_of("api", "ann"), 900, 300));
    expected.insert("allowed lease".to_owned(), 1_000);
    expected.insert("denied lease".to_owned(), 350);
    assert_counted(&server, "api", &expected);
    // The last report of a stream is counted after its end.
    client.report(calls(bucket_of("api", "ann"), 10, 1));
    let reports = || server.metric("limiter_server_quota_reports_total ");
    wait_until(|| reports() == 3.0, || reports().to_string());
    drop(client);
    expected.insert("allowed lease".to_owned(), 1_010);
    expected.insert("denied lease".to_owned(), 351);
    assert_counted(&server, "api", &expected);
}

#[test]
fn shadow_mode_counts_calls_above_share() {
    let server = Server::with_policies(POLICIES, &[]);
    let mut client = QuotaClient::open(server.grpc(), None, calls(bucket_of("trial", "ann"), 10, 0)).unwrap();
    assert!(client.strategy() == ALLOW);
    let of = |outcome: &str| {
        decisions(&server, "trial")
            .get(outcome)
            .copied()
            .unwrap_or_default()
    };
    assert_counted(&server, "trial", &counts([("allowed lease", 10)]));
    // A new share starts with a full bucket.
    let mut reported = 10;
    while of("shadow_denied lease") == 0 {
        client.report(calls(bucket_of("trial", "ann"), 2_000, 0));
        reported += 2_000;
        wait_until(
            || of("allowed lease") + of("shadow_denied lease") == reported,
            || server.log(),
        );
        assert!(reported < 100_000, "no call is above the share");
    }
    let before = of("shadow_denied lease");
    client.report(calls(bucket_of("trial", "ann"), 2_000, 0));
    reported += 2_000;
    wait_until(
        || of("allowed lease") + of("shadow_denied lease") == reported,
        || server.log(),
    );
    // Five seconds of fifteen sixteenths of the rate, and a full bucket if the share has changed.
    let above = of("shadow_denied lease") - before;
    assert!((960..=1_100).contains(&above), "{above}");
    let known = decisions(&server, "trial");
    assert_eq!(known.len(), 2, "{known:?}");
    read_renewals(&mut client);
    assert_eq!(decisions(&server, "trial"), known, "the queries are not counted");
    assert!(client.strategy() == ALLOW, "no share is sent");
}

#[test]
fn calls_of_lists_and_of_policies_that_are_off_have_their_origin() {
    let server = Server::with_policies(POLICIES, &[]);
    for (policy, value, rule, expected) in [
        ("api", "mallory", DENY, counts([("denied key_list", 70)])),
        (
            "api",
            "root",
            ALLOW,
            counts([("denied key_list", 70), ("allowed key_list", 70)]),
        ),
        ("off", "ann", ALLOW, counts([("allowed off", 70)])),
        (
            "trial",
            "mallory",
            ALLOW,
            counts([("shadow_denied key_list", 70)]),
        ),
    ] {
        let (allowed, denied) = if rule == ALLOW { (70, 0) } else { (0, 70) };
        let first = calls(bucket_of(policy, value), allowed, denied);
        let mut client = QuotaClient::open(server.grpc(), None, first).unwrap();
        assert!(client.strategy() == rule, "{policy} {value}");
        read_renewals(&mut client);
        assert_counted(&server, policy, &expected);
    }
}

/// The policy `api` with this capacity and rate.
fn policy_of(number: u64) -> String {
    format!("[policy.api]\nalgorithm = 'token_bucket'\ncapacity = {number}\nrate = '{number}/s'\n")
}

/// A server with the policy `api` in force, and a stream with a share of it.
fn with_stream() -> (Server, AdminClient, QuotaClient) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("api", 0, &policy_of(200));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let is_in_force = || {
        let body = json!({ "policy": "api", "key": "first" }).to_string();
        let answer = support::http::post(server.http(), "/v1/check", &[], &body);
        answer.unwrap().status == 200
    };
    wait_until(is_in_force, || server.log());
    let mut client =
        QuotaClient::open(server.grpc(), None, calls(bucket_of("api", "ann"), 2_000, 0)).unwrap();
    client.token_bucket();
    (server, root, client)
}

/// Creates an overlay and returns its path.
fn create(root: &AdminClient, path: &str, body: &Value) -> String {
    let created = root.send("POST", path, &[], body);
    assert_eq!(created.status, 200, "{}", created.body);
    format!("{path}/{}", created.json()["id"].as_str().unwrap())
}

/// While an overlay applies, an open stream has its rule and the reports have its origin.
/// Afterwards the stream has a share again.
fn overlay_applies_to_open_stream(
    (path, body): (&str, &Value),
    rule: &StrategyKind,
    (calls_of, expected): ((u64, u64), &str),
) {
    let (server, root, mut client) = with_stream();
    let before = decisions(&server, "api");
    let overlay = create(&root, path, body);
    client.wait_for(|of| of == rule);
    let rows = root.get(ASSIGNMENTS).json();
    let state = if *rule == ALLOW { "allow_all" } else { "deny_all" };
    assert_eq!(rows["assignments"][0]["state"], state, "{rows}");
    client.report(calls(bucket_of("api", "ann"), calls_of.0, calls_of.1));
    let mut all = before.clone();
    all.insert(expected.to_owned(), calls_of.0 + calls_of.1);
    assert_counted(&server, "api", &all);
    assert_eq!(root.send("DELETE", &overlay, &[], &Value::Null).status, 204);
    // The share before the overlay counts until its time to live ends.
    let share = client.wait_for(|of| matches!(of, StrategyKind::TokenBucket(bucket) if rate(bucket) > 150.0));
    assert!(matches!(share, StrategyKind::TokenBucket(bucket) if rate(&bucket) <= 187.6));
}

fn suspension(enforcement: &str) -> Value {
    json!({ "scope": "policy:api", "enforcement": enforcement, "for_seconds": 600, "reason": "a test" })
}

#[test]
fn suspension_that_denies_ends_share_of_open_stream() {
    let overlay = (SUSPENSIONS, &suspension("deny"));
    overlay_applies_to_open_stream(overlay, &DENY, ((0, 300), "denied suspension"));
}

#[test]
fn suspension_that_is_off_ends_share_of_open_stream() {
    let overlay = (SUSPENSIONS, &suspension("off"));
    overlay_applies_to_open_stream(overlay, &ALLOW, ((300, 0), "allowed off"));
}

#[test]
fn block_ends_share_of_open_stream() {
    let block = json!({ "key": "edge:ann", "reason": "a test" });
    overlay_applies_to_open_stream((BLOCKS, &block), &DENY, ((0, 300), "denied block"));
}

#[test]
fn suspension_in_shadow_keeps_share_of_open_stream() {
    let (server, root, mut client) = with_stream();
    let before = decisions(&server, "api");
    let suspended = create(&root, SUSPENSIONS, &suspension("shadow"));
    client.wait_for(|of| *of == ALLOW);
    let rows = root.get(ASSIGNMENTS).json();
    assert_eq!(rows["assignments"][0]["state"], "shadow", "{rows}");
    client.report(calls(bucket_of("api", "ann"), 2_000, 0));
    let above = || decisions(&server, "api").get("shadow_denied lease").copied();
    wait_until(
        || above().is_some(),
        || format!("{:?}", decisions(&server, "api")),
    );
    assert!(above().unwrap() >= 900, "{:?}", above());
    let after = decisions(&server, "api");
    let allowed = |of: &BTreeMap<String, u64>| of["allowed lease"];
    assert_eq!(allowed(&after) + above().unwrap(), allowed(&before) + 2_000);
    assert_eq!(root.send("DELETE", &suspended, &[], &Value::Null).status, 204);
    // The share was kept, so that it is sent with the next renewal and not after its end.
    let started = std::time::Instant::now();
    client.wait_for(|of| matches!(of, StrategyKind::TokenBucket(bucket) if rate(bucket) > 150.0));
    let took = started.elapsed();
    assert!(took.as_secs() < 9, "{took:?}");
}

#[test]
fn lowered_limit_applies_to_open_stream() {
    let (server, root, mut client) = with_stream();
    let row = || root.get(ASSIGNMENTS).json()["assignments"][0].clone();
    wait_until(
        || row()["rate_thousandths"].as_u64() > Some(180_000),
        || row().to_string(),
    );
    let saved = root.put_policy("api", 1, &policy_of(50));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let started = std::time::Instant::now();
    let share = client.wait_for(|of| matches!(of, StrategyKind::TokenBucket(bucket) if rate(bucket) <= 50.0));
    let StrategyKind::TokenBucket(share) = share else {
        unreachable!("the condition is a bucket");
    };
    assert!(rate(&share) >= 40.0, "{share:?}");
    // The old bucket is replaced, and does not end first.
    assert!(started.elapsed().as_secs() < 9, "{:?}", started.elapsed());
    let is_lower = || (40_000..=50_000).contains(&row()["rate_thousandths"].as_u64().unwrap_or(0));
    wait_until(is_lower, || format!("{} {}", row(), server.log()));
}

#[test]
fn checks_are_allowed_beside_an_open_stream() {
    let server = Server::with_policies(POLICIES, &[]);
    let first = calls(bucket_of("api", "ann"), 2_000, 0);
    let mut client = QuotaClient::open(server.grpc(), None, first).unwrap();
    let body = json!({ "policy": "api", "key": ["edge", "ann"] }).to_string();
    // Twelve calls with each renewal are five in a second.
    for _ in 0..4 {
        client.token_bucket();
        for number in 0..12 {
            let answer = support::http::post(server.http(), "/v1/check", &[], &body).unwrap();
            assert_eq!(answer.status, 200, "{number}: {}", answer.body);
            let remaining = answer.json()["limits"][0]["remaining"].as_f64().unwrap();
            assert!(remaining < 110.0, "the key is that of the stream: {remaining}");
        }
    }
}

#[test]
fn changed_rule_moves_open_bucket_to_another_policy() {
    let rule = |policy: &str| format!("{POLICIES}\n[[rule]]\nmatch = ['route=api']\npolicy = '{policy}'\n");
    let server = Server::with_policies(&rule("api"), &[]);
    let id = || bucket_id(&[("route", "api")]);
    let mut client = QuotaClient::open(server.grpc(), None, calls(id(), 100, 0)).unwrap();
    client.token_bucket();
    server.directory().write("policies.toml", &rule("off"));
    server.signal("HUP");
    let moved = || {
        client.report(calls(id(), 100, 0));
        decisions(&server, "off").contains_key("allowed off")
    };
    wait_until(moved, || server.log());
    client.wait_for(|of| *of == ALLOW);
}

#[test]
fn assignments_are_in_the_api_and_on_the_status_page() {
    let (server, root, _client) = with_stream();
    let rows = root.get(ASSIGNMENTS).json();
    let row = &rows["assignments"][0];
    assert_eq!(rows["assignments"].as_array().unwrap().len(), 1, "{rows}");
    assert_eq!(
        (&row["domain"], &row["bucket"], &row["policy"], &row["state"]),
        (
            &json!("edge"),
            &json!(["api=ann"]),
            &json!("api"),
            &json!("divided")
        )
    );
    let rate = row["rate_thousandths"].as_u64().unwrap();
    assert!((180_000..=187_600).contains(&rate), "{row}");
    assert!((1..=100).contains(&row["permits"].as_u64().unwrap()), "{row}");
    assert_eq!(row["demand_thousandths"], 400_000);
    let peer = row["peer"].as_str().unwrap();
    assert!(peer.starts_with("127.0.0.1:"), "{row}");

    let page = Browser::signed_in(&server, "root").get("/e/default/status").body;
    let (_, section) = page.split_once("id=\"quota-streams\"").unwrap();
    let (section, _) = section.split_once("</table>").unwrap();
    let rate = format!("{}.{}/s", rate / 1_000, rate / 100 % 10);
    for shown in ["edge: api=ann", "Assigned", "400.0/s", peer, &rate] {
        assert!(section.contains(shown), "{shown} in {section}");
    }

    // Keys of clients are shown to administrators only.
    let owner = root.add_user("owner", &[("checkout", "owner")]);
    assert_ne!(owner.get(ASSIGNMENTS).status, 200);
    let page = Browser::signed_in(&server, "owner").get("/e/default/status").body;
    assert!(page.contains("Status") && !page.contains("api=ann"), "{page}");
}
