//! The quota service over gRPC: assignments, modes, access and the end of streams.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a test may panic"
)]

mod support;

use std::collections::BTreeSet;

use limiter_server::gateway::quota::messages::{
    BlanketRule, BucketId, BucketUsage, QuotaAction, StrategyKind, UsageReports,
};
use limiter_testing::RedisServer;
use support::access::TOKEN;
use support::quota::{POLICIES, QuotaClient, bucket_id, calls, rate};
use support::server::{Server, wait_until};
use tonic::Code;

const MORE: &str = r#"
[policy.trial]
algorithm = "token_bucket"
capacity = 5
rate = "1/s"
enforcement = "shadow"

[policy.off]
algorithm = "token_bucket"
capacity = 5
rate = "1/s"
enforcement = "off"

[policy.forbidden]
algorithm = "token_bucket"
capacity = 5
rate = "1/s"
deny_keys = ["mallory"]

[policy.daily]
algorithm = "fixed_window"
limit = 5
window = "1d"

[[rule]]
match = ["trial"]
policy = "trial"

[[rule]]
match = ["off"]
policy = "off"

[[rule]]
match = ["forbidden"]
policy = "forbidden"

[[rule]]
match = ["daily"]
policy = "daily"
"#;

fn policies() -> String {
    format!("{POLICIES}{MORE}")
}

fn api() -> BucketId {
    bucket_id(&[("route", "api")])
}

fn report(id: BucketId, requests: u64) -> UsageReports {
    calls(id, requests, 0)
}

#[test]
fn bucket_is_assigned_and_abandoned_after_two_reports_without_demand() {
    let server = Server::with_policies(&policies(), &[]);
    let mut client = QuotaClient::open(server.grpc(), None, report(api(), 2_000)).unwrap();
    let (id, _) = {
        let bucket = client.token_bucket();
        assert!((180.0..=187.6).contains(&rate(&bucket)), "{bucket:?}");
        assert!((1..=100).contains(&bucket.max_tokens), "{bucket:?}");
        (api(), bucket)
    };
    assert_eq!(server.metric("limiter_server_quota_streams "), 1.0);
    client.report(report(api(), 0));
    client.report(report(api(), 0));
    loop {
        let (abandoned, action) = client.action();
        assert_eq!(abandoned, id);
        if matches!(action, QuotaAction::Abandon(_)) {
            break;
        }
    }
    drop(client);
    wait_until(
        || server.metric("limiter_server_quota_streams ") == 0.0,
        || server.log(),
    );
}

#[test]
fn policies_without_enforcement_allow_all() {
    let server = Server::with_policies(&policies(), &[]);
    for name in ["trial", "off"] {
        let first = report(bucket_id(&[(name, "x")]), 100);
        let mut client = QuotaClient::open(server.grpc(), None, first).unwrap();
        let allow = StrategyKind::Blanket(BlanketRule::AllowAll.into());
        assert!(client.strategy() == allow, "{name}");
    }
}

#[test]
fn denied_key_denies_all() {
    let server = Server::with_policies(&policies(), &[]);
    let denied = report(bucket_id(&[("forbidden", "mallory")]), 100);
    let mut client = QuotaClient::open(server.grpc(), None, denied).unwrap();
    assert!(client.strategy() == StrategyKind::Blanket(BlanketRule::DenyAll.into()));
    let other = report(bucket_id(&[("forbidden", "ann")]), 100);
    let mut client = QuotaClient::open(server.grpc(), None, other).unwrap();
    client.token_bucket();
}

#[test]
fn buckets_without_policy_or_tokens_get_no_assignment() {
    let server = Server::with_policies(&policies(), &[]);
    for name in ["unknown", "daily"] {
        let first = report(bucket_id(&[(name, "x")]), 100);
        let mut client = QuotaClient::open(server.grpc(), None, first).unwrap();
        // The reports of a stream are applied in order.
        client.report(report(api(), 100));
        assert_eq!(client.action().0, api(), "{name}");
    }
}

#[test]
fn buckets_above_the_maximum_of_a_stream_are_counted_and_others_are_served() {
    let server = Server::with_policies(&policies(), &[]);
    let name = |number: u32| bucket_id(&[("forbidden", &number.to_string())]);
    let mut first = report(name(0), 100);
    let usage = first.usages[0].clone();
    first.usages.extend((1..=1_000).map(|number| BucketUsage {
        bucket_id: Some(name(number)),
        ..usage.clone()
    }));
    let mut client = QuotaClient::open(server.grpc(), None, first).unwrap();
    let too_many = || server.metric("limiter_server_quota_actions_total{kind=\"too_many\"}");
    wait_until(|| too_many() == 1.0, || server.log());
    let mut served = BTreeSet::new();
    while served.len() < 1_000 {
        served.insert(client.action().0.entries["forbidden"].clone());
    }
    assert!(!served.contains("1000"), "the last bucket is above the maximum");
}

/// Actions of a stream that does not read keep the ids of ended buckets.
#[test]
fn unread_actions_have_bounded_memory() {
    let server = Server::with_policies(&policies(), &[]);
    let client = QuotaClient::open(server.grpc(), None, report(api(), 1)).unwrap();
    let large = "x".repeat(60_000);
    // A bucket is abandoned after two reports without demand.
    let mut reports = (0..1_000).map(|number| {
        let id = bucket_id(&[("forbidden", &format!("{number}{large}"))]);
        let mut reports = report(id.clone(), 1);
        let idle = report(id, 0).usages.remove(0);
        reports.usages.extend([idle.clone(), idle]);
        reports
    });
    let undelivered = "limiter_server_quota_actions_total{kind=\"undelivered\"} ";
    let is_limited = || {
        reports
            .next()
            .into_iter()
            .for_each(|report| client.try_report(report));
        server.metric(undelivered) > 0.0
    };
    wait_until(is_limited, || server.log());
    // The other streams receive their actions.
    let mut other = QuotaClient::open(server.grpc(), None, report(api(), 1)).unwrap();
    other.token_bucket();
}

#[test]
fn malformed_reports_and_clients_without_token_are_refused() {
    let server = Server::with_token(&policies(), &[]);
    let refused = |token, first: UsageReports| {
        let opened = QuotaClient::open(server.grpc(), token, first);
        opened
            .and_then(|mut client| client.response())
            .map(|_| ())
            .unwrap_err()
    };
    assert_eq!(refused(None, report(api(), 1)).code(), Code::Unauthenticated);
    let no_domain = UsageReports {
        domain: String::new(),
        ..report(api(), 1)
    };
    assert_eq!(refused(Some(TOKEN), no_domain).code(), Code::InvalidArgument);
    let no_bucket = report(BucketId::default(), 1);
    assert_eq!(refused(Some(TOKEN), no_bucket).code(), Code::InvalidArgument);
    let mut client = QuotaClient::open(server.grpc(), Some(TOKEN), report(api(), 1)).unwrap();
    client.token_bucket();
}

#[test]
fn two_nodes_divide_one_budget() {
    let redis = RedisServer::start();
    let url = redis.url();
    let args = ["--redis", &*url];
    let nodes = [(); 2].map(|()| Server::with_policies(&policies(), &args));
    let mut clients: Vec<QuotaClient> = nodes
        .iter()
        .map(|node| QuotaClient::open(node.grpc(), None, report(api(), 2_000)).unwrap())
        .collect();
    // The first stream gives up a half when the second has reported.
    let mut last = [f64::INFINITY; 2];
    for _ in 0..20 {
        for (client, last) in clients.iter_mut().zip(&mut last) {
            *last = rate(&client.token_bucket());
        }
        if last.iter().all(|rate| (80.0..=100.0).contains(rate)) {
            break;
        }
    }
    assert!(last.iter().all(|rate| (80.0..=100.0).contains(rate)), "{last:?}");
}

#[test]
fn streams_end_when_the_server_shuts_down() {
    let server = Server::with_policies(&policies(), &["--drain", "5s"]);
    let mut client = QuotaClient::open(server.grpc(), None, report(api(), 100)).unwrap();
    client.token_bucket();
    let stopped = std::thread::spawn(move || server.stop());
    let ended = loop {
        if let Err(status) = client.response() {
            break status;
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended:?}");
    drop(client);
    let (status, log) = stopped.join().unwrap();
    assert!(status.success(), "{log}");
}
