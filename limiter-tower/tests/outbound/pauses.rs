//! Pauses that the peer requests.

use std::pin::pin;
use std::time::Duration;

use limiter_core::{Inheritance, Key, Limiter, ManualClock, OnDenial, Policy, Rejection};
use limiter_tower::outbound::{Outbound, OutboundLayer};
use limiter_tower::{RateLimitLayer, key};
use tower::{Layer, ServiceExt};

use crate::support::{at_most, limiter, request};
use crate::{Peer, Slow, rejection};

const SECOND: Duration = Duration::from_secs(1);

/// A client with a limit of a hundred per minute, its peer, and their clock.
fn client(layer: impl Fn(OutboundLayer) -> OutboundLayer) -> (Outbound<Peer>, Peer, Limiter, ManualClock) {
    let (limits, clock) = limiter();
    let peer = Peer::new(&clock);
    let service = layer(RateLimitLayer::outbound(&limits, at_most(100))).layer(peer.clone());
    (service, peer, limits, clock)
}

async fn remaining(limits: &Limiter) -> u64 {
    limits
        .peek(&at_most(100), Key::global())
        .await
        .unwrap()
        .remaining()
}

/// The pause that a rejected request receives.
async fn retry_after(service: &Outbound<Peer>) -> Option<Duration> {
    match service.clone().oneshot(request("ann")).await {
        Ok(_) => None,
        Err(error) => match rejection(Err::<http::Response<()>, _>(error)) {
            Rejection::Paused { retry_after } => Some(retry_after),
            other => panic!("{other}"),
        },
    }
}

#[tokio::test]
async fn pause_is_never_shortened_and_charges_nothing() {
    for (status, fields) in [
        (429, ("retry-after", "5")),
        (503, ("retry-after", "5")),
        (200, ("ratelimit", r#""burst";r=0;t=5"#)),
    ] {
        let (service, peer, limits, clock) = client(|layer| layer);
        peer.answers(status, [fields]);
        assert_eq!(retry_after(&service).await, None);
        peer.answers(200, []);
        assert_eq!(retry_after(&service).await, Some(5 * SECOND));
        clock.advance(5 * SECOND - Duration::from_micros(1));
        assert_eq!(retry_after(&service).await, Some(Duration::from_micros(1)));
        assert_eq!((remaining(&limits).await, peer.received_at().len()), (99, 1));
        clock.advance(Duration::from_micros(1));
        assert_eq!(retry_after(&service).await, None);
        assert_eq!((remaining(&limits).await, peer.received_at().len()), (98, 2));
    }
}

#[tokio::test]
async fn fields_without_meaning_cause_no_pause() {
    let (service, peer, _limits, _clock) = client(|layer| layer);
    for fields in [
        ("retry-after", "soon"),
        ("retry-after", "0"),
        ("ratelimit", r#""burst";r=0;t=-5"#),
        ("ratelimit", "\"burst"),
        ("x-ratelimit-reset", "5"),
    ] {
        peer.answers(429, [fields]);
        assert_eq!(retry_after(&service).await, None, "{fields:?}");
        assert_eq!(retry_after(&service).await, None, "{fields:?}");
    }
}

#[tokio::test]
async fn keys_pause_separately_and_clones_share_pauses() {
    let (limits, clock) = limiter();
    let peer = Peer::new(&clock);
    let layer = RateLimitLayer::outbound(&limits, at_most(100)).key(key::header("x-api-key"));
    let (one, other) = (layer.layer(peer.clone()), layer.clone().layer(peer.clone()));

    peer.answers(429, [("retry-after", "5")]);
    assert!(one.clone().oneshot(request("ann")).await.is_ok());
    assert!(rejection(one.clone().oneshot(request("ann")).await).is_limited());
    assert!(rejection(other.clone().oneshot(request("ann")).await).is_limited());
    assert!(one.clone().oneshot(request("bob")).await.is_ok());
    clock.advance(5 * SECOND);
    assert!(other.oneshot(request("ann")).await.is_ok());
}

#[tokio::test]
async fn hostile_pause_is_bounded() {
    let (service, peer, _limits, clock) = client(|layer| layer);
    peer.answers(429, [("retry-after", "99999999999999")]);
    assert_eq!(retry_after(&service).await, None);
    assert_eq!(
        retry_after(&service).await,
        Some(OutboundLayer::DEFAULT_MAX_PAUSE)
    );
    clock.advance(OutboundLayer::DEFAULT_MAX_PAUSE);
    assert_eq!(retry_after(&service).await, None);

    let (service, peer, _limits, _clock) = client(|layer| layer.max_pause(2 * SECOND));
    peer.answers(429, [("retry-after", "60")]);
    assert_eq!(retry_after(&service).await, None);
    assert_eq!(retry_after(&service).await, Some(2 * SECOND));

    let (service, peer, _limits, _clock) = client(|layer| layer.max_pause(Duration::ZERO));
    peer.answers(429, [("retry-after", "60")]);
    assert_eq!(retry_after(&service).await, None);
    assert_eq!(retry_after(&service).await, None, "pauses are ignored");
}

#[tokio::test]
async fn later_response_extends_pause_and_never_shortens_it() {
    let (limits, clock) = limiter();
    let peer = Peer::new(&clock);
    let slow = Slow::new(&peer);
    let service = RateLimitLayer::outbound(&limits, at_most(100)).layer(slow.clone());
    // All requests are sent before the first response.
    let mut sent = Vec::new();
    for seconds in ["5", "2", "9"] {
        peer.answers(429, [("retry-after", seconds)]);
        let mut request = Box::pin(service.clone().oneshot(request("ann")));
        assert!(tokio::time::timeout(Duration::ZERO, &mut request).await.is_err());
        sent.push(request);
    }
    for (response, left) in sent.into_iter().zip([5, 5, 9]) {
        slow.let_through();
        assert!(response.await.is_ok());
        let denied = rejection(service.clone().oneshot(request("ann")).await);
        assert_eq!(denied.retry_after(), Some(left * SECOND));
    }
}

#[tokio::test]
async fn request_waits_for_end_of_pause_within_its_timeout() {
    let (service, peer, limits, clock) = client(|layer| layer.max_wait(5 * SECOND));
    peer.answers(429, [("retry-after", "5")]);
    assert!(service.clone().oneshot(request("ann")).await.is_ok());
    peer.answers(200, []);
    let start = clock.now();

    let mut waiting = pin!(service.clone().oneshot(request("ann")));
    for _ in 0..5 {
        assert!(
            tokio::time::timeout(Duration::from_millis(5), &mut waiting)
                .await
                .is_err()
        );
        assert_eq!(remaining(&limits).await, 99, "it is charged when it is sent");
        clock.advance(SECOND);
    }
    assert_eq!(waiting.await.unwrap().status(), 200);
    assert_eq!(peer.received_at(), [start, start.after(5 * SECOND)]);

    peer.answers(429, [("retry-after", "6")]);
    assert!(service.clone().oneshot(request("ann")).await.is_ok());
    assert_eq!(
        retry_after(&service).await,
        Some(6 * SECOND),
        "the pause exceeds the wait, so the request fails at once"
    );
}

#[tokio::test]
async fn extended_pause_rejects_waiters_without_time() {
    let (limits, clock) = limiter();
    let peer = Peer::new(&clock);
    let layer = RateLimitLayer::outbound(&limits, at_most(100));
    let (patient, brisk) = (layer.clone().max_wait(5 * SECOND), layer);
    let slow = Slow::new(&peer);
    let (patient, brisk) = (patient.layer(peer.clone()), brisk.layer(slow.clone()));
    // On its way before the pause.
    peer.answers(429, [("retry-after", "9")]);
    let mut late = pin!(brisk.oneshot(request("ann")));
    assert!(tokio::time::timeout(Duration::ZERO, &mut late).await.is_err());

    peer.answers(429, [("retry-after", "5")]);
    assert!(patient.clone().oneshot(request("ann")).await.is_ok());
    let mut waiting = pin!(patient.oneshot(request("ann")));
    assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
    slow.let_through();
    assert!(late.await.is_ok());
    let retry_after = tokio::time::timeout(5 * SECOND, waiting).await.unwrap();
    assert!(matches!(rejection(retry_after), Rejection::Paused { retry_after } if retry_after == 9 * SECOND));
}

#[tokio::test]
async fn pause_removes_permit_waiters_from_queue() {
    let (limits, clock) = limiter();
    let peer = Peer::new(&clock);
    let policy = Policy::token_bucket("two")
        .capacity(2)
        .rate("1/s")
        .build()
        .unwrap();
    let layer = RateLimitLayer::outbound(&limits, policy.clone()).max_wait(5 * SECOND);
    let slow = Slow::new(&peer);
    let (service, late) = (layer.layer(peer.clone()), layer.layer(slow.clone()));

    peer.answers(429, [("retry-after", "60")]);
    let mut late = pin!(late.oneshot(request("ann")));
    assert!(tokio::time::timeout(Duration::ZERO, &mut late).await.is_err());
    peer.answers(200, []);
    assert!(service.clone().oneshot(request("ann")).await.is_ok());
    let mut waiting = pin!(service.oneshot(request("ann")));
    assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
    slow.let_through();
    assert!(late.await.is_ok());
    let retry_after = tokio::time::timeout(5 * SECOND, waiting).await.unwrap();
    assert!(matches!(rejection(retry_after), Rejection::Paused { .. }));
    clock.advance(SECOND);
    assert_eq!(limits.peek(&policy, Key::global()).await.unwrap().remaining(), 1);
}

#[tokio::test]
async fn permit_taken_during_pause_start_is_refunded() {
    let (limits, clock) = limiter();
    let peer = Peer::new(&clock);
    let policy = Policy::token_bucket("two").capacity(2).rate("1/s");
    let policy = policy.on_denial(OnDenial::Wait(5 * SECOND)).build().unwrap();
    let layer = RateLimitLayer::outbound(&limits, policy.clone());
    let slow = Slow::new(&peer);
    let (service, late) = (layer.layer(peer.clone()), layer.layer(slow.clone()));

    peer.answers(429, [("retry-after", "60")]);
    let mut late = pin!(late.oneshot(request("ann")));
    assert!(tokio::time::timeout(Duration::ZERO, &mut late).await.is_err());
    peer.answers(200, []);
    assert!(service.clone().oneshot(request("ann")).await.is_ok());
    // The wait is set by the policy, which the layer does not inspect.
    let mut waiting = pin!(service.oneshot(request("ann")));
    assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
    slow.let_through();
    assert!(late.await.is_ok());
    clock.advance(SECOND);
    let retry_after = tokio::time::timeout(5 * SECOND, waiting).await.unwrap();
    assert!(
        matches!(rejection(retry_after), Rejection::Paused { retry_after } if retry_after == 59 * SECOND)
    );
    assert_eq!(limits.peek(&policy, Key::global()).await.unwrap().remaining(), 1);
}

#[tokio::test]
async fn pause_waiters_are_bounded_and_end_with_shutdown() {
    let clock = ManualClock::new();
    let limits = Limiter::in_process().clock(&clock).max_waiting(1).build();
    let peer = Peer::new(&clock);
    let service = RateLimitLayer::outbound(&limits, at_most(100))
        .max_wait(10 * SECOND)
        .layer(peer.clone());
    peer.answers(429, [("retry-after", "5")]);
    assert!(service.clone().oneshot(request("ann")).await.is_ok());

    let mut waiting = pin!(service.clone().oneshot(request("ann")));
    assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
    assert!(rejection(service.oneshot(request("ann")).await).is_unavailable());
    let (retry_after, ()) = tokio::join!(waiting, limits.shutdown(5 * SECOND));
    assert!(rejection(retry_after).is_unavailable());
    assert_eq!(peer.received_at().len(), 1);
}

/// A client with its own key and a limit far above the peer's, which follows the peer's headers.
#[tokio::test]
async fn client_that_honours_pauses_is_rejected_once_per_window() {
    let (limits, clock) = limiter();
    let quota = Policy::sliding_window("quota")
        .limit(7)
        .window("10s")
        .build()
        .unwrap();
    let server = RateLimitLayer::new(&limits, quota).key(key::global());
    let client = RateLimitLayer::outbound(&limits, at_most(100_000));
    let service = client.layer(server.layer(Peer::new(&clock)));

    let (start, mut answers) = (clock.now(), Vec::new());
    while clock.now().since(start) < 3_600 * SECOND {
        match service.clone().oneshot(request("us")).await {
            Ok(response) => answers.push(response.status().as_u16()),
            Err(error) => {
                let denied = rejection(Err::<http::Response<()>, _>(error));
                clock.advance(denied.retry_after().unwrap());
            }
        }
        clock.advance(Duration::from_millis(100));
    }
    assert!(answers.iter().filter(|status| **status == 200).count() > 2_000);
    assert!(!answers.windows(2).any(|two| two == [429, 429]));
}

#[tokio::test]
async fn reset_in_registry_sends_waiting_request() {
    let (limits, clock) = limiter();
    let peer = Peer::new(&clock);
    limits.registry().set(at_most(1));
    let service = RateLimitLayer::outbound(&limits, "at-most")
        .max_wait(3_600 * SECOND)
        .layer(peer.clone());
    assert!(service.clone().oneshot(request("ann")).await.is_ok());
    let mut waiting = Box::pin(service.oneshot(request("ann")));
    assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
    limits.registry().change(at_most(1), Inheritance::Reset).unwrap();
    assert!(tokio::time::timeout(5 * SECOND, waiting).await.unwrap().is_ok());
    assert_eq!(peer.received_at().len(), 2);
}
