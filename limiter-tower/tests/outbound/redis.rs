//! Clients with a limit in Redis.

use std::pin::pin;
use std::time::{Duration, Instant};

use limiter_core::{Key, Limiter, ManualClock, OnStoreFailure, Policy, Rejection};
use limiter_testing::RedisServer;
use limiter_tower::RateLimitLayer;
use tokio::task::JoinSet;
use tower::{Layer, Service, ServiceExt};

use crate::support::{Strict, request};
use crate::{Peer, Slow, rejection};

async fn replica(server: &RedisServer) -> Limiter {
    let limits = Limiter::redis(server.url())
        .namespace("outbound")
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    limits
}

fn policy(capacity: u32, rate: &str) -> Policy {
    Policy::token_bucket("them")
        .capacity(capacity)
        .rate(rate)
        .deadline(Duration::from_secs(5))
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_processes_wait_for_permits_of_one_budget() {
    let server = RedisServer::start();
    let (mut calls, started) = (JoinSet::new(), Instant::now());
    for _ in 0..2 {
        let limits = replica(&server).await;
        let service = RateLimitLayer::outbound(&limits, policy(2, "20/s"))
            .max_wait(Duration::from_secs(30))
            .layer(Strict::default());
        for _ in 0..5 {
            calls.spawn(service.clone().oneshot(request("ann")));
        }
    }
    while let Some(sent) = calls.join_next().await {
        assert!(sent.unwrap().is_ok());
    }
    assert!(
        started.elapsed() >= Duration::from_millis(400),
        "two, and eight at 20/s"
    );
}

#[tokio::test]
async fn grant_during_pause_start_is_refunded() {
    let server = RedisServer::start();
    let limits = replica(&server).await;
    let (policy, clock) = (policy(5, "1/h"), ManualClock::new());
    let (peer, layer) = (
        Peer::new(&clock),
        RateLimitLayer::outbound(&limits, policy.clone()),
    );
    let slow = Slow::new(&peer);
    let (service, late) = (layer.layer(peer.clone()), layer.layer(slow.clone()));
    let left = async || limits.peek(&policy, Key::global()).await.unwrap().remaining();

    peer.answers(429, [("retry-after", "60")]);
    let mut late = pin!(late.oneshot(request("ann")));
    while peer.received_at().is_empty() {
        assert!(
            tokio::time::timeout(Duration::from_millis(1), &mut late)
                .await
                .is_err()
        );
    }
    assert_eq!(left().await, 4);
    server.pause();
    let mut querying = pin!(service.clone().oneshot(request("ann")));
    assert!(
        tokio::time::timeout(Duration::from_millis(20), &mut querying)
            .await
            .is_err()
    );
    slow.let_through();
    assert!(late.await.is_ok());
    server.resume();
    assert!(matches!(rejection(querying.await), Rejection::Paused { .. }));
    assert_eq!((left().await, peer.received_at().len()), (4, 1));

    // During the pause, Redis is not queried.
    server.kill();
    assert!(matches!(
        rejection(service.oneshot(request("ann")).await),
        Rejection::Paused { .. }
    ));
}

#[tokio::test]
async fn future_dropped_before_first_poll_sends_no_query() {
    let server = RedisServer::start();
    let limits = replica(&server).await;
    let policy = policy(5, "1/h");
    let layer = RateLimitLayer::outbound(&limits, policy.clone());
    for layer in [layer.clone(), layer.max_wait(Duration::from_secs(1))] {
        let mut service = layer.layer(Strict::default());
        for _ in 0..100 {
            drop(service.ready().await.unwrap().call(request("ann")));
        }
    }
    let left = limits.peek(&policy, Key::global()).await.unwrap();
    assert_eq!(left.remaining(), 5);
}
