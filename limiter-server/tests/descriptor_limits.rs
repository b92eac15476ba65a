//! Limits in descriptors: aligned periods, separate states, and names without text of clients.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::collections::BTreeSet;

use limiter_server::gateway::envoy::messages::{Code, DescriptorStatus, RateLimitRequest, Unit};
use limiter_testing::RedisServer;
use support::access::TOKEN;
use support::descriptors::{DescriptorExt as _, codes, descriptor, request};
use support::policies::search_per_hour;
use support::rls::RlsClient;
use support::server::Server;
use support::stores::PATIENT;
use support::time::now_seconds;

const DAY: i64 = 86_400;

/// A request of one descriptor with a limit of one call.
fn one_call((key, value): (&str, &str), unit: Unit, multiplier: u32) -> RateLimitRequest {
    request(&[descriptor(key, value).limit(1, unit, Some(multiplier))])
}

fn decide(client: &RlsClient, request: &RateLimitRequest) -> DescriptorStatus {
    client.decide(request).unwrap().statuses.remove(0)
}

#[test]
fn periods_are_aligned_to_utc() {
    let server = Server::with_policies(&search_per_hour(100), &["--override-domains", "edge"]);
    let client = RlsClient::connect(server.grpc());
    let monday = 4 * DAY;
    for (unit, multiplier, length, origin, expected) in [
        (Unit::Day, 1, DAY, 0, (Unit::Day, 1)),
        (Unit::Week, 1, 7 * DAY, monday, (Unit::Week, 1)),
        (Unit::Month, 1, 30 * DAY, 0, (Unit::Month, 1)),
        (Unit::Month, 2, 60 * DAY, 0, (Unit::Month, 2)),
        (Unit::Year, 1, 365 * DAY, 0, (Unit::Year, 1)),
        (Unit::Hour, 7, 7 * 3_600, 0, (Unit::Hour, 7)),
        (Unit::Day, 10, 10 * DAY, 0, (Unit::Day, 10)),
    ] {
        let request = one_call(("search", "ann"), unit, multiplier);
        let (before, status, after) = (now_seconds(), decide(&client, &request), now_seconds());
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!((limit.unit(), limit.unit_multiplier.unwrap_or(1)), expected);
        let reset = status.duration_until_reset.unwrap().seconds;
        // The time until the reset is rounded up.
        let ends = (before + reset - 1)..=(after + reset);
        let is_aligned = ends.clone().any(|end| (end - origin).rem_euclid(length) == 0);
        assert!(is_aligned, "{unit:?} x {multiplier}: {ends:?}");
        assert!((1..=length).contains(&reset), "{reset}");
        assert_eq!(decide(&client, &request).code(), Code::OverLimit, "{unit:?}");
    }
}

/// A refund never denies, and a limit without permits has none to return.
#[test]
fn refund_of_a_limit_without_permits_denies_nothing() {
    for unmatched in ["allow", "deny"] {
        let args = ["--override-domains", "edge", "--unmatched", unmatched];
        let server = Server::with_token(&search_per_hour(1), &args);
        let client = RlsClient::connect(server.grpc()).with_token(TOKEN);
        let refund = descriptor("search", "ann").negative();
        let check = descriptor("search", "bob").hits(1);
        let both = request(&[check.clone(), refund.limit(0, Unit::Hour, None)]);
        let answer = client.decide(&both).unwrap();
        assert_eq!(codes(&answer), [Code::Ok, Code::Ok], "{unmatched}");
        assert_eq!(answer.overall_code(), Code::Ok, "{unmatched}");
        let denied = client.decide(&request(&[check])).unwrap();
        assert_eq!(codes(&denied), [Code::OverLimit], "the check was charged");
    }
}

/// A server that accepts limits in descriptors, on a Redis server.
fn on(redis: &RedisServer, policies: &str) -> Server {
    let url = redis.url();
    let args = ["--override-domains", "edge", "--redis", &url];
    Server::with_policies(policies, &[&args, &PATIENT[..]].concat())
}

#[test]
fn each_multiplier_and_descriptor_has_a_separate_state() {
    let redis = RedisServer::start();
    let server = on(&redis, &search_per_hour(100));
    let client = RlsClient::connect(server.grpc());
    for entry in [
        ("search", "ann"),
        ("search", "bob"),
        ("a", "x"),
        ("b", "x"),
        ("b", "y"),
    ] {
        for multiplier in [1, 2, 3] {
            let request = one_call(entry, Unit::Day, multiplier);
            assert_eq!(
                decide(&client, &request).code(),
                Code::Ok,
                "{entry:?} {multiplier}"
            );
            let denied = decide(&client, &request);
            assert_eq!(denied.code(), Code::OverLimit, "{entry:?} {multiplier}");
        }
    }
}

/// The values of the label `policy` in all samples.
fn policy_labels(server: &Server) -> BTreeSet<String> {
    let metrics = server.get("/metrics").body;
    let labels = metrics.split("policy=\"").skip(1);
    labels
        .map(|rest| rest.split('"').next().unwrap().to_owned())
        .collect()
}

#[test]
fn names_of_clients_are_no_labels_and_no_fields() {
    let with_rules = search_per_hour(100);
    let without_rules = with_rules.split("[[rule]]").next().unwrap();
    for (rules, name) in [
        (with_rules.as_str(), "with rules"),
        (without_rules, "without rules"),
    ] {
        let redis = RedisServer::start();
        let server = on(&redis, rules);
        let client = RlsClient::connect(server.grpc());
        for number in 0..50 {
            let text = format!("client{number}");
            for entry in [("generic_key", &*text), (&*text, "a"), ("search", &*text)] {
                for multiplier in [1, 2 + number] {
                    let allowed = decide(&client, &one_call(entry, Unit::Hour, multiplier));
                    assert_eq!(allowed.code(), Code::Ok, "{entry:?}");
                }
            }
        }
        let labels = policy_labels(&server);
        let expected = ["override:hour", "override:hours"];
        let configured = [
            "override:hour:search",
            "override:hours:search",
            "search",
            "unmatched",
        ];
        assert!(
            expected.iter().all(|of| labels.contains(*of)),
            "{name}: {labels:?}"
        );
        let is_known = |of: &String| expected.contains(&of.as_str()) || configured.contains(&of.as_str());
        assert!(labels.iter().all(is_known), "{name}: {labels:?}");
        // Fields of hashes, for example those of the usage of processes.
        for key in redis.command(&["KEYS", "*"]).items() {
            let key = key.text();
            if redis.command(&["TYPE", &key]).text() == "hash" {
                let fields = redis.command(&["HKEYS", &key]);
                let is_client = fields.items().iter().any(|field| field.text().contains("client"));
                assert!(!is_client, "{name}: {key}");
            }
        }
    }
}
