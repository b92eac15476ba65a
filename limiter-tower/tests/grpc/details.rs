//! The details of a denial for gRPC clients, read by an independent decoder.
#![expect(clippy::indexing_slicing, reason = "a test ends that way")]

use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};
use limiter_core::{Limiter, Policy};
use limiter_tower::{RateLimitLayer, ResponseConfig, key};
use tonic::{Code, Status};
use tonic_types::{ErrorDetail, StatusExt};
use tower::{Layer, ServiceExt};

use crate::support::{Strict, at_most, limiter};

fn layer(limits: &Limiter, policy: Policy) -> RateLimitLayer<limiter_tower::typestate::WithKey<key::Global>> {
    RateLimitLayer::new(limits, policy).key(key::global())
}

async fn answer<K>(layer: &RateLimitLayer<K>) -> HeaderMap
where
    K: limiter_tower::typestate::HasKey + Clone,
    K::Extractor: key::KeyExtractor<String>,
{
    let request = crate::grpc_request("application/grpc", None);
    let service = layer.clone().layer(Strict::default());
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response.headers().clone()
}

fn status(headers: &HeaderMap) -> Status {
    Status::from_header_map(headers).unwrap()
}

#[tokio::test]
async fn denial_has_retry_delay_quota_and_reason() {
    let (limits, clock) = limiter();
    let policy = at_most(2);
    let layer = layer(&limits, policy).responses(&ResponseConfig::new().grpc_domain("shop.example.com"));
    for _ in 0..2 {
        assert!(Status::from_header_map(&answer(&layer).await).is_none());
    }
    clock.advance(Duration::from_micros(1_234_567));
    let headers = answer(&layer).await;
    let details = status(&headers).get_error_details_vec();
    assert_eq!(details.len(), 3);

    let status = status(&headers);
    assert_eq!(status.code(), Code::ResourceExhausted);
    let wait = Duration::from_micros(58_765_433);
    assert_eq!(
        status.get_details_retry_info().unwrap().retry_delay,
        Some(wait),
        "exact"
    );
    assert_eq!(headers["grpc-retry-pushback-ms"], "58766", "never early");
    let quota = status.get_details_quota_failure().unwrap();
    assert_eq!(quota.violations.len(), 1);
    assert_eq!(
        (&*quota.violations[0].quota_id, quota.violations[0].quota_value),
        ("at-most", 2)
    );
    assert_eq!(
        quota.violations[0].description,
        "rate limit reached, retry after 59 seconds"
    );
    let why = status.get_details_error_info().unwrap();
    assert_eq!(
        (&*why.reason, &*why.domain),
        ("RATE_LIMIT_EXCEEDED", "shop.example.com")
    );
}

#[tokio::test]
async fn cost_above_quota_has_no_retry_delay() {
    let (limits, _clock) = limiter();
    let headers = answer(&layer(&limits, at_most(2)).cost(3)).await;
    assert_eq!(headers["grpc-retry-pushback-ms"], "-1");
    let details = status(&headers).get_error_details_vec();
    assert!(
        !details
            .iter()
            .any(|detail| matches!(detail, ErrorDetail::RetryInfo(_)))
    );
    let status = status(&headers);
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.get_details_error_info().unwrap().reason,
        "COST_EXCEEDS_QUOTA"
    );
    assert_eq!(
        status.get_details_quota_failure().unwrap().violations[0].quota_id,
        "at-most"
    );
}

#[tokio::test]
async fn store_outage_has_no_retry_delay() {
    let (limits, _clock) = limiter();
    limits.shutdown(Duration::ZERO).await;
    let headers = answer(&layer(&limits, at_most(2))).await;
    assert!(!headers.contains_key("grpc-retry-pushback-ms"));
    let status = status(&headers);
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.get_details_retry_info().is_none() && status.get_details_quota_failure().is_none());
    let why = status.get_details_error_info().unwrap();
    assert_eq!(
        (&*why.reason, &*why.domain),
        ("RATE_LIMITER_UNAVAILABLE", "limiter")
    );
}

/// A custom response's headers reach a gRPC client, and cannot change the gRPC status.
#[tokio::test]
async fn custom_response_keeps_grpc_status() {
    let (limits, _clock) = limiter();
    let layer = layer(&limits, at_most(1)).responses(&ResponseConfig::new().respond_with(|_, _| {
        let response = Response::builder().status(418).header("x-hint", "later");
        let response = response
            .header("content-type", "text/html")
            .header("grpc-status", "0");
        response.body("<p>later</p>").unwrap()
    }));
    let _ = answer(&layer).await;
    let denied = answer(&layer).await;
    assert_eq!(denied["content-type"], "application/grpc");
    assert_eq!(denied["x-hint"], "later");
    assert_eq!(status(&denied).code(), Code::ResourceExhausted);
    assert!(status(&denied).get_details_retry_info().is_some());
}

/// A handler that calls the limiter sends the same details as the layer.
#[cfg(feature = "tonic")]
#[tokio::test]
async fn rejection_status_has_details_of_layer() {
    let (limits, _clock) = limiter();
    let policy = at_most(1);
    let _ = limits.check(&policy, "ann").await.unwrap();
    let denied = limits.check(&policy, "ann").await.unwrap().require().unwrap_err();
    let own = Status::from(denied);

    let layer = layer(&limits, policy);
    let _ = answer(&layer).await;
    let layers = status(&answer(&layer).await);
    assert_eq!(own.details(), layers.details());
    assert_eq!(own.get_error_details_vec().len(), 3);
    assert_eq!((own.code(), own.message()), (layers.code(), layers.message()));
    assert_eq!(own.metadata().get("grpc-retry-pushback-ms").unwrap(), "60000");
}

#[tokio::test]
async fn custom_response_omits_headers_of_dropped_body() {
    let (limits, _clock) = limiter();
    let layer = layer(&limits, at_most(1)).responses(&ResponseConfig::new().respond_with(|_, _| {
        let answer = Response::builder().header("content-length", "4");
        let answer = answer.header("content-encoding", "br").header("x-own", "yes");
        answer.body("body").unwrap()
    }));
    drop(answer(&layer).await);
    let headers = answer(&layer).await;
    assert_eq!(headers["x-own"], "yes");
    assert_eq!(headers["grpc-status"], "8");
    for name in ["content-length", "content-encoding"] {
        assert!(!headers.contains_key(name), "{name}");
    }
}
