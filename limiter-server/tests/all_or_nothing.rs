//! A denied request changes no limit, independent of the denying limit, and a request without an
//! answer keeps no charge. Limits that share a tag need one script.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::time::Duration;

use limiter_server::gateway::envoy::messages::{Code, RateLimitDescriptor, Unit};
use limiter_testing::{Proxy, RedisServer};
use serde_json::json;
use support::access::TOKEN;
use support::calls::{limit, post, remaining};
use support::descriptors::{DescriptorExt as _, codes, descriptor, request};
use support::rls::RlsClient;
use support::server::{Server, wait_until};
use support::stores::{in_process, on_each_store, on_redis, redis_args};

const POLICIES: &str = r#"
[policy.calls]
algorithm = "sliding_window"
limit = 10
window = "1h"

[policy.tokens]
algorithm = "sliding_window"
limit = 10
window = "1h"

[policy.narrow]
algorithm = "sliding_window"
limit = 1
window = "1h"

[[rule]]
match = ["calls"]
policy = "calls"

[[rule]]
match = ["tokens"]
policy = "tokens"
settle = true

[[rule]]
match = ["narrow"]
policy = "narrow"
"#;

/// The largest number of limits of one atomic decision.
const ATOMIC: usize = 16;

/// The policies `limit0` to `limit15`. The descriptors `grouped0` to `grouped15` share a tag; those
/// of `separate0` to `separate15` have a tag for each value.
fn numbered_policies() -> String {
    let policies = (0..ATOMIC).map(|number| {
        format!(
            "[policy.limit{number}]\nalgorithm = 'sliding_window'\nlimit = 10\nwindow = '1h'\n\
             [[rule]]\nmatch = ['grouped{number}']\npolicy = 'limit{number}'\ngroup = 'all'\n\
             [[rule]]\nmatch = ['separate{number}']\npolicy = 'limit{number}'\n"
        )
    });
    policies.collect()
}

/// A server with the arguments of a store.
fn start(store: &[&str]) -> Server {
    let args = ["--unmatched", "deny", "--override-domains", "edge"];
    let policies = format!("{POLICIES}{}", numbered_policies());
    Server::with_token(&policies, &[&args[..], store].concat())
}

/// A descriptor for each numbered policy.
fn numbered(kind: &str, count: usize, value: &str) -> Vec<RateLimitDescriptor> {
    let each = (0..count).map(|number| descriptor(&format!("{kind}{number}"), &format!("{value}-{number}")));
    each.collect()
}

/// A client of a server whose store answers.
fn client_of(server: &Server) -> RlsClient {
    let client = RlsClient::connect(server.grpc()).with_token(TOKEN);
    let first = request(&[descriptor("calls", "first").hits(0)]);
    wait_until(|| client.decide(&first).is_ok(), || server.log());
    client
}

/// The permits that are left.
fn left(client: &RlsClient, key: &str, value: &str) -> u32 {
    let answer = client
        .decide(&request(&[descriptor(key, value).hits(0)]))
        .unwrap();
    answer.statuses[0].limit_remaining
}

fn codes_of(client: &RlsClient, descriptors: &[RateLimitDescriptor]) -> Vec<Code> {
    let answer = client.decide(&request(descriptors)).unwrap();
    let codes = codes(&answer);
    let denies = codes.contains(&Code::OverLimit);
    assert_eq!(answer.overall_code() == Code::OverLimit, denies, "{answer:?}");
    codes
}

/// Every kind of denial beside checks, a settlement and a refund.
fn denied_request_changes_nothing(server: &Server) {
    let client = client_of(server);
    client
        .decide(&request(&[descriptor("narrow", "used").hits(1)]))
        .unwrap();
    let denials = [
        ("unmatched", descriptor("nothing", "ann")),
        ("zero", descriptor("calls", "zero").limit(0, Unit::Hour, None)),
        ("limit", descriptor("narrow", "used")),
        ("peek", descriptor("narrow", "used").hits(0)),
        ("capacity", descriptor("calls", "large").hits(11)),
    ];
    for (name, denial) in denials {
        let (charged, settled, refunded) = ("charged", "settled", "refunded");
        client
            .decide(&request(&[descriptor("calls", name).hits(4)]))
            .unwrap();
        let others = [
            descriptor("calls", charged),
            descriptor("tokens", settled).hits(5),
            descriptor("calls", name).hits(3).negative(),
        ];
        // The position of the denial does not matter.
        for at in 0..=others.len() {
            let mut descriptors = others.to_vec();
            descriptors.insert(at, denial.clone());
            let mut expected = vec![Code::Ok; others.len()];
            expected.insert(at, Code::OverLimit);
            assert_eq!(codes_of(&client, &descriptors), expected, "{name} at {at}");
            assert_eq!(left(&client, "calls", charged), 10, "{name} at {at}");
            assert_eq!(left(&client, "tokens", settled), 10, "{name} at {at}");
            assert_eq!(left(&client, "calls", name), 6, "{name} at {at}: {refunded}");
        }
        // The same request without the denial takes effect.
        assert_eq!(codes_of(&client, &others), [Code::Ok; 3], "{name}");
        assert_eq!(left(&client, "calls", charged), 9, "{name}");
        assert_eq!(left(&client, "tokens", settled), 5, "{name}");
        assert_eq!(left(&client, "calls", name), 9, "{name}");
        let undo = [
            descriptor("calls", charged).hits(1).negative(),
            descriptor("tokens", settled).hits(5).negative(),
        ];
        assert_eq!(codes_of(&client, &undo), [Code::Ok; 2]);
    }
    assert_eq!(server.metric("limiter_server_failed_refunds_total "), 0.0);
}

#[test]
fn denied_request_changes_nothing_in_process() {
    in_process(start, denied_request_changes_nothing);
}

#[test]
fn denied_request_changes_nothing_on_redis() {
    on_redis(start, denied_request_changes_nothing);
}

/// The settlement of a key whose value in Redis is of another type fails, after the checks and the
/// first settlement were charged.
#[test]
fn failed_settlement_refunds_the_charges() {
    let redis = RedisServer::start();
    let server = start(&redis_args(&redis.url()));
    let client = client_of(&server);
    client
        .decide(&request(&[descriptor("tokens", "broken").hits(1)]))
        .unwrap();
    let keys = redis.command(&["KEYS", "*tokens*broken*"]);
    let key = keys.items().first().expect("a key").text();
    redis.command(&["DEL", &key]);
    redis.command(&["LPUSH", &key, "x"]);
    let mixed = request(&[
        descriptor("calls", "a").hits(2),
        descriptor("tokens", "settled").hits(5),
        descriptor("tokens", "broken").hits(1),
        descriptor("calls", "b").hits(3),
    ]);
    let status = client.decide(&mixed).unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    let lefts = || {
        let limits = [("calls", "a"), ("calls", "b"), ("tokens", "settled")];
        limits.map(|(key, value)| left(&client, key, value))
    };
    // The refund goes on after the answer.
    wait_until(
        || lefts() == [10; 3],
        || format!("{:?}: {}", lefts(), server.log()),
    );
}

/// A request that is denied by one descriptor is denied also if the store does not return the
/// numbers of another one: Envoy may admit a request without a decision.
#[test]
fn denial_without_the_store_is_answered_during_an_outage() {
    let redis = RedisServer::start();
    let strict = POLICIES.replace("window = \"1h\"", "window = \"1h\"\non_store_failure = \"error\"");
    let url = redis.url();
    let args = [
        "--redis",
        &*url,
        "--unmatched",
        "deny",
        "--override-domains",
        "edge",
    ];
    let server = Server::with_token(&strict, &args);
    let client = client_of(&server);
    redis.kill();
    let check = descriptor("calls", "ann");
    let undecided = client.decide(&request(std::slice::from_ref(&check))).unwrap_err();
    assert_eq!(undecided.code(), tonic::Code::Unavailable, "{undecided:?}");
    let zero = descriptor("calls", "zero").limit(0, Unit::Hour, None);
    for denial in [descriptor("nothing", "ann"), zero] {
        let codes = codes_of(&client, &[check.clone(), denial]);
        assert_eq!(codes, [Code::Ok, Code::OverLimit]);
    }
}

/// The refunds of a denied request end after its deadline: the denial is answered before it.
#[test]
fn denial_is_answered_before_late_refunds() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let patient = POLICIES.replace("window = \"1h\"", "window = \"1h\"\ndeadline = \"30s\"");
    let url = proxy.url();
    let server = Server::with_token(&patient, &["--redis", &*url, "--decision-deadline", "2s"]);
    let client = client_of(&server);
    assert_eq!(codes_of(&client, &[descriptor("narrow", "used")]), [Code::Ok]);
    // Two charges, and perhaps a denial, take at most 1.8 s, and two refunds take 1.2 s.
    proxy.set_delay(Duration::from_millis(300));
    let mixed = [
        descriptor("calls", "a"),
        descriptor("calls", "b"),
        descriptor("narrow", "used"),
    ];
    assert_eq!(
        codes_of(&client, &mixed),
        [Code::Ok, Code::Ok, Code::OverLimit],
        "{}",
        server.log()
    );
    proxy.set_delay(Duration::ZERO);
    let lefts = || ["a", "b"].map(|value| left(&client, "calls", value));
    wait_until(
        || lefts() == [10; 2],
        || format!("{:?}: {}", lefts(), server.log()),
    );
}

/// One after another, 32 changes and 32 reads of their numbers would exceed the deadline.
#[test]
fn changes_of_a_request_are_sent_together() {
    const KEYS: usize = 16;
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let patient = POLICIES.replace("window = \"1h\"", "window = \"1h\"\ndeadline = \"30s\"");
    let url = proxy.url();
    let server = Server::with_token(&patient, &["--redis", &*url, "--decision-deadline", "3s"]);
    let client = client_of(&server);
    let keys: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
    let used = keys.iter().map(|key| descriptor("calls", key).hits(4));
    let used: Vec<RateLimitDescriptor> = used.collect();
    assert_eq!(codes_of(&client, &used), [Code::Ok; KEYS]);
    let settled = keys.iter().map(|key| descriptor("tokens", key).hits(3));
    let refunded = keys.iter().map(|key| descriptor("calls", key).hits(3).negative());
    let changes: Vec<RateLimitDescriptor> = settled.chain(refunded).collect();
    proxy.set_delay(Duration::from_millis(60));
    let answer = client.decide(&request(&changes));
    proxy.set_delay(Duration::ZERO);
    let answer = answer.unwrap_or_else(|status| panic!("{status:?}: {}", server.log()));
    assert_eq!(codes(&answer), [Code::Ok; 2 * KEYS]);
    let numbers = answer.statuses.iter().map(|status| status.limit_remaining);
    assert_eq!(numbers.collect::<Vec<_>>(), [[7; KEYS], [9; KEYS]].concat());
}

#[test]
fn denied_limit_of_sixteen_changes_no_other_limit() {
    on_each_store(start, |server| {
        let client = client_of(server);
        for (kind, denied) in [("grouped", 0), ("grouped", 15), ("separate", 0), ("separate", 7)] {
            let value = format!("after-{denied}");
            let descriptors = numbered(kind, ATOMIC, &value);
            let used = descriptors[denied].clone().hits(10);
            assert_eq!(codes_of(&client, &[used]), [Code::Ok]);
            let mut expected = [Code::Ok; ATOMIC];
            expected[denied] = Code::OverLimit;
            assert_eq!(codes_of(&client, &descriptors), expected, "{kind} {denied}");
            for number in (0..ATOMIC).filter(|number| *number != denied) {
                let (key, value) = (format!("{kind}{number}"), format!("{value}-{number}"));
                assert_eq!(left(&client, &key, &value), 10, "{kind} {denied}: {number}");
            }
        }
        // Over HTTP, limits with one key are an atomic set.
        for (name, denied) in [("one", 15), ("several", 7)] {
            let key = |number: usize| match name {
                "one" => name.to_owned(),
                _ => format!("{name}-{number}"),
            };
            let policy = |number| format!("limit{number}");
            let used = post(server, "/v1/check", &limit(&policy(denied), &key(denied), 10));
            assert_eq!(used.status, 200, "{}", used.body);
            let limits: Vec<_> = (0..ATOMIC)
                .map(|number| limit(&policy(number), &key(number), 1))
                .collect();
            let refused = post(server, "/v1/check", &json!({ "limits": limits }));
            assert_eq!(refused.status, 429, "{}", refused.body);
            assert_eq!(refused.json()["policy"], policy(denied), "{}", refused.body);
            for number in (0..ATOMIC).filter(|number| *number != denied) {
                let left = remaining(server, &policy(number), &key(number));
                assert_eq!(left, 10, "{name} {denied}: {number}");
            }
        }
    });
}

/// The number of scripts that Redis has executed.
fn scripts(redis: &RedisServer) -> u64 {
    let statistics = redis.command(&["INFO", "commandstats"]).text();
    let calls = statistics.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_script = ["eval", "evalsha", "fcall"].contains(&command);
        let (calls, _) = rest.split_once(',')?;
        is_script.then(|| calls.parse::<u64>().expect("a number"))
    });
    calls.sum()
}

#[test]
fn limits_with_one_tag_need_one_script() {
    const CALLS: u64 = 20;
    const LIMITS: usize = 8;
    let redis = RedisServer::start();
    let server = start(&redis_args(&redis.url()));
    let client = client_of(&server);
    let scripts_of = |kind: &str| {
        let before = scripts(&redis);
        for call in 0..CALLS {
            let descriptors = numbered(kind, LIMITS, &call.to_string());
            assert_eq!(codes_of(&client, &descriptors), [Code::Ok; LIMITS]);
        }
        scripts(&redis) - before
    };
    let (grouped, separate) = (scripts_of("grouped"), scripts_of("separate"));
    // The server can execute further scripts in the background.
    assert!((CALLS..2 * CALLS).contains(&grouped), "{grouped} scripts");
    let each = CALLS * u64::try_from(LIMITS).unwrap();
    assert!((each..each + CALLS).contains(&separate), "{separate} scripts");
}
