//! The messages of the quota service against the crate `envoy-types`, which is generated from the
//! files of Envoy.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use envoy_types::pb::envoy::service::rate_limit_quota::v3 as theirs;
use limiter_server::gateway::quota::messages::{
    Abandon, BlanketRule, BucketAction, BucketId, BucketUsage, QuotaAction, QuotaAssignment, QuotaResponse,
    RequestsPerUnit, Strategy, StrategyKind, TokenBucket, UsageReports,
};
use prost::Message;
use prost_types::Duration;

fn bucket_id() -> Option<BucketId> {
    let entries = [("route", "login"), ("remote_address", "1.2.3.4")];
    let entries = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Some(BucketId {
        entries: entries.into(),
    })
}

#[test]
fn usage_reports_keep_every_field() {
    let ours = UsageReports {
        domain: "edge".to_owned(),
        usages: vec![BucketUsage {
            bucket_id: bucket_id(),
            time_elapsed: Some(Duration { seconds: 5, nanos: 0 }),
            allowed: 7,
            denied: 9,
        }],
    };
    let theirs = theirs::RateLimitQuotaUsageReports::decode(&*ours.encode_to_vec()).unwrap();
    let usage = theirs.bucket_quota_usages.first().unwrap();
    assert_eq!(
        (
            &*theirs.domain,
            usage.num_requests_allowed,
            usage.num_requests_denied
        ),
        ("edge", 7, 9)
    );
    assert_eq!(
        usage.bucket_id.as_ref().unwrap().bucket.get("route").unwrap(),
        "login"
    );
    assert_eq!(usage.time_elapsed.as_ref().unwrap().seconds, 5);
    assert_eq!(UsageReports::decode(&*theirs.encode_to_vec()).unwrap(), ours);
}

#[test]
fn responses_keep_every_field() {
    let assign = |kind| {
        Some(QuotaAction::Assign(QuotaAssignment {
            time_to_live: Some(Duration {
                seconds: 20,
                nanos: 3,
            }),
            strategy: Some(Strategy { kind: Some(kind) }),
        }))
    };
    let bucket = TokenBucket {
        max_tokens: 10,
        tokens_per_fill: Some(5),
        fill_interval: Some(Duration { seconds: 1, nanos: 0 }),
    };
    let per_unit = RequestsPerUnit { requests: 8, unit: 2 };
    let actions = [
        assign(StrategyKind::TokenBucket(bucket)),
        assign(StrategyKind::Blanket(BlanketRule::DenyAll.into())),
        assign(StrategyKind::PerUnit(per_unit)),
        Some(QuotaAction::Abandon(Abandon {})),
    ];
    let actions = actions.map(|action| BucketAction {
        bucket_id: bucket_id(),
        action,
    });
    let ours = QuotaResponse {
        actions: actions.to_vec(),
    };
    let theirs = theirs::RateLimitQuotaResponse::decode(&*ours.encode_to_vec()).unwrap();
    assert_eq!(theirs.bucket_action.len(), 4);
    let text = format!("{theirs:?}");
    for expected in [
        "max_tokens: 10",
        "DenyAll",
        "requests_per_time_unit: 8",
        "AbandonAction",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert_eq!(QuotaResponse::decode(&*theirs.encode_to_vec()).unwrap(), ours);
}
