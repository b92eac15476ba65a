//! The maximum wait of a request for a permit.

use std::time::Duration;

use limiter_core::{Inheritance, OnDenial, Policy};
use limiter_tower::{ConcurrencyLimitLayer, key};
use tower::{Layer, ServiceExt};

use super::poll_once;
use super::support::{Strict, limiter, request};

const SECOND: Duration = Duration::from_secs(1);

fn patient(timeout: Duration) -> Policy {
    let policy = Policy::concurrency("patient").max(1);
    policy.on_denial(OnDenial::Wait(timeout)).build().unwrap()
}

#[tokio::test]
async fn request_waits_if_policy_waits_on_denial() {
    let (limits, _clock) = limiter();
    let service = ConcurrencyLimitLayer::new(&limits, patient(10 * SECOND))
        .key(key::global())
        .layer(Strict::default());
    let held = service.clone().oneshot(request("ann")).await.unwrap();
    let mut waiting = Box::pin(service.oneshot(request("ann")));
    assert!(poll_once(waiting.as_mut()).is_pending());
    drop(held);
    let answered = tokio::time::timeout(5 * SECOND, waiting).await.unwrap();
    assert_eq!(answered.unwrap().status(), 200);
}

#[tokio::test]
async fn wait_ends_at_shortest_timeout() {
    for (policys, layers, requests) in [
        (2, None, None),
        (2, Some(9), None),
        (9, Some(2), None),
        (9, Some(8), Some(2)),
    ] {
        let (limits, clock) = limiter();
        let mut layer = ConcurrencyLimitLayer::new(&limits, patient(policys * SECOND)).key(key::global());
        if let Some(layers) = layers {
            layer = layer.max_wait(layers * SECOND);
        }
        let service = layer.layer(Strict::default());
        let held = service.clone().oneshot(request("ann")).await.unwrap();
        let mut second = request("ann");
        if let Some(requests) = requests {
            let timeout = format!("{requests}S").parse().unwrap();
            second.headers_mut().insert("grpc-timeout", timeout);
        }
        let mut waiting = Box::pin(service.oneshot(second));
        assert!(poll_once(waiting.as_mut()).is_pending());
        clock.advance(2 * SECOND - Duration::from_micros(1));
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
        clock.advance(Duration::from_micros(1));
        let late = tokio::time::timeout(5 * SECOND, waiting).await.unwrap();
        assert_eq!(late.unwrap().status(), 429);
        drop(held);
    }
}

#[tokio::test]
async fn reset_in_registry_admits_waiting_request() {
    let (limits, _clock) = limiter();
    limits.registry().set(patient(10 * SECOND));
    let service = ConcurrencyLimitLayer::new(&limits, "patient")
        .key(key::global())
        .layer(Strict::default());
    let _held = service.clone().oneshot(request("ann")).await.unwrap();
    let mut waiting = Box::pin(service.oneshot(request("ann")));
    assert!(poll_once(waiting.as_mut()).is_pending());
    let reset = limits.registry().change(patient(10 * SECOND), Inheritance::Reset);
    reset.unwrap();
    let answered = tokio::time::timeout(5 * SECOND, waiting).await.unwrap();
    assert_eq!(answered.unwrap().status(), 200);
}
