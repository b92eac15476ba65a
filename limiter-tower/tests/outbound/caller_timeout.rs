//! The wait of a request with a timeout of its caller.

use std::time::Duration;

use http::Request;
use limiter_core::{OnDenial, Policy, Rejection};
use limiter_tower::key;
use limiter_tower::{RateLimitLayer, outbound::OutboundLayer};
use tower::{Layer, ServiceExt};

use crate::support::{Strict, limiter, one_a_minute};
use crate::{Peer, rejection};

const SECOND: Duration = Duration::from_secs(1);

/// A request of a tonic client with a timeout.
fn with_short_timeout() -> Request<String> {
    let request = Request::builder().header("grpc-timeout", "2S");
    request.body(String::new()).unwrap()
}

#[tokio::test]
async fn wait_ends_at_caller_timeout() {
    let (limits, clock) = limiter();
    let patient = || one_a_minute_with(OnDenial::Reject);
    let waits = RateLimitLayer::outbound(&limits, patient()).max_wait(100 * SECOND);
    let by_later = waits.clone().key(key::from_async(async |_| ""));
    let by_policy = RateLimitLayer::outbound(&limits, one_a_minute_with(OnDenial::Wait(100 * SECOND)));
    let first = waits.layer(Strict::default()).oneshot(with_short_timeout()).await;
    assert!(first.is_ok());
    for waiting in [
        Box::pin(waits.layer(Strict::default()).oneshot(with_short_timeout()))
            as std::pin::Pin<Box<dyn Future<Output = _>>>,
        Box::pin(by_later.layer(Strict::default()).oneshot(with_short_timeout())),
        Box::pin(by_policy.layer(Strict::default()).oneshot(with_short_timeout())),
    ] {
        let mut waiting = waiting;
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
        clock.advance(2 * SECOND);
        let result = tokio::time::timeout(5 * SECOND, waiting).await;
        let result = rejection(result.unwrap());
        assert!(
            matches!(result, Rejection::TimedOut { limit, .. } if limit == 2 * SECOND),
            "{result:?}"
        );
    }
}

#[tokio::test]
async fn pause_above_caller_timeout_rejects_at_once() {
    let (limits, clock) = limiter();
    let peer = Peer::new(&clock);
    let layer: OutboundLayer = RateLimitLayer::outbound(&limits, one_a_minute());
    let service = layer.max_wait(100 * SECOND).layer(peer.clone());
    peer.answers(429, [("retry-after", "5")]);
    assert!(service.clone().oneshot(with_short_timeout()).await.is_ok());
    let result = tokio::time::timeout(5 * SECOND, service.oneshot(with_short_timeout())).await;
    let result = rejection(result.unwrap());
    assert!(matches!(result, Rejection::Paused { retry_after } if retry_after == 5 * SECOND));
}

fn one_a_minute_with(on_denial: OnDenial) -> Policy {
    let policy = Policy::sliding_window("one-a-minute").limit(1).window("1m");
    policy.on_denial(on_denial).build().unwrap()
}
