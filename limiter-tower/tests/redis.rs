//! The layer in front of a limiter that decides in Redis.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use limiter_core::{Decision, Key, Limiter, OnStoreFailure, Origin, Policy, Rejection};
use limiter_testing::RedisServer;
use limiter_tower::{RateLimitLayer, key};
use support::{Strict, request};
use tower::{Layer, Service, ServiceExt};

fn replica(server: &RedisServer) -> Limiter {
    Limiter::redis(server.url())
        .namespace("limiter-tower")
        .build()
        .unwrap()
}

fn policy(limit: u32, on_store_failure: OnStoreFailure) -> Policy {
    Policy::sliding_window("requests")
        .limit(limit)
        .window("1m")
        .deadline(Duration::from_millis(500))
        .on_store_failure(on_store_failure)
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_share_one_limit() {
    let server = RedisServer::start();
    let inner = Strict::default();
    let calls = inner.calls();
    let policy = policy(50, OnStoreFailure::Error);
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let limits = replica(&server);
        limits.ready().await.unwrap();
        let layer = RateLimitLayer::new(&limits, policy.clone())
            .key(key::header("x-api-key"))
            .with_decisions();
        for _ in 0..4 {
            let mut service = layer.layer(inner.clone());
            tasks.push(tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..20 {
                    let response = service.ready().await.unwrap().call(request("ann"));
                    let response = response.await.unwrap();
                    let decision = response.extensions().get::<Decision>().unwrap();
                    let known = decision.origin() == Origin::DenyCache && !decision.is_allowed();
                    assert!(known || decision.origin() == Origin::Redis, "{decision:?}");
                    allowed += usize::from(response.status().is_success());
                }
                allowed
            }));
        }
    }
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.unwrap();
    }
    assert_eq!((allowed, calls.load(Ordering::SeqCst)), (50, 50));
}

#[tokio::test]
async fn an_outage_is_answered_within_the_deadline_as_the_policy_says() {
    let server = RedisServer::start();
    let limits = replica(&server);
    limits.ready().await.unwrap();
    let response = async |answer: OnStoreFailure| {
        let layer = RateLimitLayer::new(&limits, policy(5, answer)).key(key::header("x-api-key"));
        let asked = Instant::now();
        let response = layer
            .layer(Strict::default())
            .oneshot(request("ann"))
            .await
            .unwrap();
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        response
    };
    assert_eq!(response(OnStoreFailure::Error).await.status(), 200);

    for outage in [RedisServer::pause, RedisServer::kill] {
        outage(&server);
        let unavailable = response(OnStoreFailure::Error).await;
        assert_eq!(unavailable.status(), 503);
        assert!(
            unavailable
                .extensions()
                .get::<Rejection>()
                .is_some_and(Rejection::is_unavailable)
        );
        let allowed = response(OnStoreFailure::Allow).await;
        assert_eq!(allowed.status(), 200);
        assert_eq!(
            allowed.extensions().get::<Decision>().map(Decision::origin),
            Some(Origin::FailedOpen)
        );
        let denied = response(OnStoreFailure::Deny).await;
        assert_eq!(denied.status(), 503, "no limit was reached");
        assert!(!denied.headers().contains_key("retry-after"));
    }
}

#[tokio::test]
async fn what_is_dropped_before_its_first_poll_is_not_asked() {
    let server = RedisServer::start();
    let limits = replica(&server);
    limits.ready().await.unwrap();
    let policy = policy(5, OnStoreFailure::Error);
    let layer = RateLimitLayer::new(&limits, policy.clone()).key(key::shared());
    let mut service = layer.layer(Strict::default());

    for _ in 0..100 {
        drop(service.ready().await.unwrap().call(request("ann")));
    }
    let left = limits.peek(&policy, Key::shared()).await.unwrap();
    assert_eq!(left.remaining(), 5);
}

#[tokio::test]
async fn a_key_that_comes_later_is_asked_of_redis_then() {
    let server = RedisServer::start();
    let limits = replica(&server);
    limits.ready().await.unwrap();
    let by_api_key = key::from_async(async |head: http::request::Parts| {
        tokio::task::yield_now().await;
        let api_key = head.headers.get("x-api-key")?;
        Some(Key::from(api_key.as_bytes()).into_owned())
    });
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = RateLimitLayer::new(&limits, policy(2, OnStoreFailure::Error))
        .key(by_api_key)
        .layer(inner);
    for (api_key, expected) in [("ann", 200), ("ann", 200), ("ann", 429), ("bob", 200)] {
        let response = service
            .ready()
            .await
            .unwrap()
            .call(request(api_key))
            .await
            .unwrap();
        assert_eq!(response.status(), expected, "{api_key}");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}
