//! The messages of the rate limit service against the crate `envoy-types`, which is generated from
//! the files of Envoy.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use envoy_types::pb::envoy::service::ratelimit::v3 as theirs;
use limiter_server::gateway::envoy::messages::{
    Code, CurrentLimit, DescriptorStatus, Entry, HeaderValue, LimitOverride, Quota, RateLimitDescriptor,
    RateLimitRequest, RateLimitResponse, Unit,
};
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Duration, Struct, Timestamp, Value};

#[test]
fn request_keeps_every_field() {
    let ours = RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry {
                key: "route".to_owned(),
                value: "login".to_owned(),
            }],
            limit: Some(LimitOverride {
                requests_per_unit: 7,
                unit: Unit::Year.into(),
                unit_multiplier: Some(3),
            }),
            hits_addend: Some(0),
            is_negative_hits: true,
        }],
        hits_addend: 9,
    };
    let theirs = theirs::RateLimitRequest::decode(&*ours.encode_to_vec()).unwrap();
    let descriptor = theirs.descriptors.first().unwrap();
    assert_eq!((&*theirs.domain, theirs.hits_addend), ("edge", 9));
    assert!(descriptor.is_negative_hits);
    assert_eq!(descriptor.hits_addend.as_ref().unwrap().value, 0);
    let limit = descriptor.limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (7, 6));
    let mut expected = ours;
    for limit in expected.descriptors.iter_mut().filter_map(|of| of.limit.as_mut()) {
        // These files of Envoy are older than the field; `units_have_multipliers` encodes it.
        limit.unit_multiplier = None;
    }
    assert_eq!(
        RateLimitRequest::decode(&*theirs.encode_to_vec()).unwrap(),
        expected
    );
}

/// The fields that are newer than the files of the crate, by their numbers in Envoy 1.40. A real
/// Envoy reads that of the response in `tests/envoy_multiplier.rs`.
#[test]
fn units_have_multipliers() {
    let limit = LimitOverride {
        unit_multiplier: Some(5),
        ..LimitOverride::default()
    };
    // Field 3: a message whose field 1 is a varint.
    assert_eq!(limit.encode_to_vec(), [3 << 3 | 2, 2, 1 << 3, 5]);
    assert_eq!(LimitOverride::decode(&*limit.encode_to_vec()).unwrap(), limit);
    let limit = CurrentLimit {
        unit_multiplier: Some(7),
        ..CurrentLimit::default()
    };
    // Field 4: the same.
    assert_eq!(limit.encode_to_vec(), [4 << 3 | 2, 2, 1 << 3, 7]);
    assert_eq!(CurrentLimit::decode(&*limit.encode_to_vec()).unwrap(), limit);
}

#[test]
fn response_keeps_every_field() {
    let quota = || Quota {
        requests: 4,
        valid_until: Some(Timestamp { seconds: 5, nanos: 6 }),
        id: "q".to_owned(),
    };
    let header = |key: &str, raw_value: &[u8]| HeaderValue {
        key: key.to_owned(),
        value: "v".to_owned(),
        raw_value: raw_value.to_vec(),
    };
    let text = Value {
        kind: Some(Kind::StringValue("search".to_owned())),
    };
    let ours = RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(CurrentLimit {
                requests_per_unit: 3,
                unit: Unit::Week.into(),
                name: "search".to_owned(),
                unit_multiplier: Some(2),
            }),
            limit_remaining: u32::MAX,
            duration_until_reset: Some(Duration { seconds: 8, nanos: 9 }),
            quota: Some(quota()),
        }],
        response_headers_to_add: vec![header("retry-after", b"")],
        request_headers_to_add: vec![header("x", &[0xff])],
        raw_body: vec![1, 2],
        dynamic_metadata: Some(Struct {
            fields: [("policy".to_owned(), text)].into(),
        }),
        quota: Some(quota()),
    };
    let theirs = theirs::RateLimitResponse::decode(&*ours.encode_to_vec()).unwrap();
    let status = theirs.statuses.first().unwrap();
    assert_eq!(
        (theirs.overall_code, status.code, status.limit_remaining),
        (2, 2, u32::MAX)
    );
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!(
        (limit.requests_per_unit, limit.unit, &*limit.name),
        (3, 7, "search")
    );
    assert_eq!(theirs.response_headers_to_add.first().unwrap().key, "retry-after");
    let mut expected = ours;
    for limit in expected
        .statuses
        .iter_mut()
        .filter_map(|status| status.current_limit.as_mut())
    {
        // These files of Envoy are older than the field.
        limit.unit_multiplier = None;
    }
    assert_eq!(
        RateLimitResponse::decode(&*theirs.encode_to_vec()).unwrap(),
        expected
    );
}
