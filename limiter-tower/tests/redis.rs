//! The layer in front of a limiter that decides in Redis.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use limiter_core::{Decision, Key, Limiter, OnStoreFailure, Origin, Policy, Rejection};
use limiter_testing::RedisServer;
use limiter_tower::settlement::ActualCost;
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
            .with_decision_extension();
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
async fn outage_follows_failure_mode_within_deadline() {
    let server = RedisServer::start();
    let limits = replica(&server);
    limits.ready().await.unwrap();
    let response = async |answer: OnStoreFailure| {
        let layer = RateLimitLayer::new(&limits, policy(5, answer)).key(key::header("x-api-key"));
        let started = Instant::now();
        let response = layer
            .layer(Strict::default())
            .oneshot(request("ann"))
            .await
            .unwrap();
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{:?}",
            started.elapsed()
        );
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
        let allowed = response(OnStoreFailure::FailOpen).await;
        assert_eq!(allowed.status(), 200);
        assert_eq!(
            allowed.extensions().get::<Decision>().map(Decision::origin),
            Some(Origin::FailedOpen)
        );
        let denied = response(OnStoreFailure::FailClosed).await;
        assert_eq!(denied.status(), 503, "no limit was reached");
        assert!(!denied.headers().contains_key("retry-after"));
        assert_eq!(
            denied.extensions().get::<Decision>().map(Decision::origin),
            Some(Origin::FailedClosed)
        );
    }
}

#[tokio::test]
async fn future_dropped_before_first_poll_sends_no_query() {
    let server = RedisServer::start();
    let limits = replica(&server);
    limits.ready().await.unwrap();
    let policy = policy(5, OnStoreFailure::Error);
    let layer = RateLimitLayer::new(&limits, policy.clone()).key(key::global());
    let mut service = layer.layer(Strict::default());

    for _ in 0..100 {
        drop(service.ready().await.unwrap().call(request("ann")));
    }
    let left = limits.peek(&policy, Key::global()).await.unwrap();
    assert_eq!(left.remaining(), 5);
}

/// A sequential client: each request costs 60 of 100 until its response states an actual cost of 1.
#[tokio::test]
async fn unapplied_settlement_does_not_deny_next_request() {
    let server = RedisServer::start();
    let limits = replica(&server);
    limits.ready().await.unwrap();
    let policy = Policy::token_bucket("tokens").capacity(100).rate("1/h");
    let policy = policy.deadline(Duration::from_secs(10)).build().unwrap();
    for waits in [false, true] {
        let layer = RateLimitLayer::new(&limits, policy.clone())
            .key(key::header("x-api-key"))
            .cost(60)
            .settle(ActualCost::from_response(|_| Some(1)));
        let layer = if waits {
            layer.max_wait(Duration::from_millis(100))
        } else {
            layer
        };
        let mut service = layer.layer(Strict::default());
        for number in 0..20 {
            let response = service.ready().await.unwrap().call(request("ann")).await.unwrap();
            assert_eq!(response.status(), 200, "waits: {waits}, request {number}");
        }
    }
}

#[tokio::test]
async fn pending_key_is_checked_in_redis() {
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

/// A request in any state at the time of the outage gets a response and releases its slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_all_states_get_responses_in_outage() {
    let server = RedisServer::start();
    let limits = replica(&server);
    limits.ready().await.unwrap();
    let (gone, is_gone) = tokio::sync::watch::channel(false);
    let by_later = key::from_async(move |_| {
        let mut is_gone = is_gone.clone();
        async move {
            is_gone.wait_for(|gone| *gone).await.unwrap();
            "bob"
        }
    });
    let one = policy(1, OnStoreFailure::Error);
    let many = policy(1_000, OnStoreFailure::Error);
    let by_header = |policy: &Policy| RateLimitLayer::new(&limits, policy).key(key::header("x-api-key"));
    let slots = tower::limit::ConcurrencyLimitLayer::new(20);
    let send = |service, key| tokio::spawn(ServiceExt::oneshot(service, request(key)));

    let waits = by_header(&one).max_wait(Duration::from_secs(120));
    let waits = waits.layer(slots.layer(Strict::default()));
    assert_eq!(send(waits.clone(), "ann").await.unwrap().unwrap().status(), 200);
    let waiting: Vec<_> = (0..10).map(|_| send(waits.clone(), "ann")).collect();
    let later = RateLimitLayer::new(&limits, &many)
        .key(by_later)
        .layer(slots.layer(Strict::default()));
    let looking: Vec<_> = (0..10)
        .map(|_| tokio::spawn(later.clone().oneshot(request("bob"))))
        .collect();
    let metered = by_header(&many)
        .settle(ActualCost::body_bytes())
        .layer(Strict::default());
    let mut bodies = Vec::new();
    for _ in 0..10 {
        bodies.push(send_one(&metered).await.into_body());
    }
    while limits.check(&one, "ann").await.unwrap().is_allowed() {}

    server.kill();
    gone.send(true).unwrap();
    drop(bodies);
    let ended = async {
        for response in looking {
            assert_eq!(response.await.unwrap().unwrap().status(), 503);
        }
        // Waiters query again when they are due, or end with the shutdown of the limiter.
        limits.shutdown(Duration::from_secs(2)).await;
        for response in waiting {
            let status = response.await.unwrap().unwrap().status();
            assert!(matches!(status.as_u16(), 429 | 503), "{status}");
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended)
        .await
        .unwrap();
    let mut service = later.clone();
    let ready = tokio::time::timeout(Duration::from_secs(5), service.ready()).await;
    assert!(ready.unwrap().is_ok());
}

async fn send_one<S, B>(service: &S) -> http::Response<B>
where
    S: Service<http::Request<String>, Response = http::Response<B>, Error = std::convert::Infallible> + Clone,
{
    service.clone().oneshot(request("ann")).await.unwrap()
}

/// A server can drop a body anywhere, also after the end of its runtime.
#[test]
fn body_that_outlives_runtime_is_harmless() {
    let server = RedisServer::start();
    let policy = policy(1_000, OnStoreFailure::Error);
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let (limits, bodies, waiting) = first.block_on(async {
        let limits = replica(&server);
        limits.ready().await.unwrap();
        let layer = RateLimitLayer::new(&limits, &policy).key(key::header("x-api-key"));
        let service = layer
            .clone()
            .settle(ActualCost::body_bytes())
            .layer(Strict::default());
        let mut bodies = Vec::new();
        for _ in 0..3 {
            bodies.push(send_one(&service).await.into_body());
        }
        let one_second = Duration::from_secs(1);
        let mut patient = layer
            .cost(1_000)
            .settle(ActualCost::body_bytes())
            .max_wait(60 * one_second)
            .layer(Strict::default());
        let mut waiting = Box::pin(patient.ready().await.unwrap().call(request("ann")));
        let polled = tokio::time::timeout(one_second / 10, &mut waiting).await;
        assert!(polled.is_err());
        (limits, bodies, waiting)
    });
    let mut bodies = bodies.into_iter();
    drop(bodies.next());
    drop(first);
    drop(bodies.next());
    drop(waiting);
    runtime().block_on(async {
        drop(bodies.next());
        let peek = limits.peek(&policy, "ann");
        let peeked = tokio::time::timeout(Duration::from_secs(5), peek.into_future()).await;
        assert!(peeked.unwrap().is_ok());
        limits.shutdown(Duration::from_secs(2)).await;
    });
}
