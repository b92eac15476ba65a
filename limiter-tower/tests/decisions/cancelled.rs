//! Thousands of cancelled requests.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use limiter_core::{Limiter, ManualClock, Policy};
use limiter_tower::{RateLimitLayer, key};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use super::support::{Strict, request};
use super::{begin, left};

const CANCELLED: usize = 10_000;

fn policy() -> Policy {
    Policy::token_bucket("p")
        .capacity(2)
        .rate("1/min")
        .deadline(Duration::from_secs(10))
        .build()
        .unwrap()
}

/// Each request waits for a moment. A leaked queue place would reject the next request, a leaked
/// slot would keep the service from being ready, a leaked permit would be missing at the end, and a
/// leaked key would fill the limiter.
#[tokio::test]
async fn ten_thousand_cancelled_requests_leak_nothing_in_process() {
    let clock = ManualClock::new();
    let limits = Limiter::in_process()
        .clock(&clock)
        .max_keys(3)
        .max_waiting(2)
        .build();
    let policy = policy();
    let layer = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .max_wait(Duration::from_secs(120))
        .max_waiting(2)
        .count_if(|_| true);
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .layer(ConcurrencyLimitLayer::new(2))
        .service(Strict::default());
    for _ in 0..2 {
        assert!(begin(&mut service, request("ann")).1.is_ready());
    }
    for number in 0..CANCELLED {
        let mut other = service.clone();
        let (waiting, polled) = begin(&mut other, request("ann"));
        assert!(polled.is_pending(), "{number}");
        if number % 2 == 0 {
            let mut another = service.clone();
            let (waits_too, polled) = begin(&mut another, request("ann"));
            assert!(polled.is_pending(), "{number}");
            drop(waiting);
            drop(waits_too);
        }
    }
    assert_eq!(left(&limits, &policy, "ann").await, 0);
    clock.advance(Duration::from_secs(60));
    assert_eq!(left(&limits, &policy, "ann").await, 1);
    clock.advance(Duration::from_secs(60));
    for key in ["ann", "bob", "cyd"] {
        assert_eq!(left(&limits, &policy, key).await, 2);
        assert!(begin(&mut service, request(key)).1.is_ready());
    }
}

/// Cancelled before the query, in the inner service, and during the query to Redis: the late reply
/// is processed, and its permit goes to the next waiter or is refunded.
#[cfg(unix)]
#[tokio::test]
async fn ten_thousand_cancelled_requests_leak_nothing_with_redis() {
    let server = limiter_testing::RedisServer::start();
    let (clock, policy) = (ManualClock::new(), policy());
    let limits = Limiter::redis(server.url())
        .namespace("cancelled")
        .clock(&clock)
        .max_waiting(20)
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    let layer = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .max_wait(Duration::from_secs(120))
        .max_waiting(20)
        .count_if(|_| true);
    let mut service = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(ConcurrencyLimitLayer::new(20))
        .service(Strict::default());
    for _ in 0..2 {
        let response = service.ready().await.unwrap().call(request("ann")).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    for round in 0..CANCELLED / 20 {
        let mut waiting = Vec::new();
        for _ in 0..10 {
            let mut other = service.clone();
            drop(other.ready().await.unwrap().call(request("never-polled")));
            let mut other = service.clone();
            let ready = tokio::time::timeout(Duration::from_secs(10), other.ready());
            let mut response = Box::pin(ready.await.unwrap().unwrap().call(request("ann")));
            for _ in 0..round % 5 {
                let polled = futures_poll(&mut response).await;
                assert!(polled, "round {round}");
                tokio::task::yield_now().await;
            }
            waiting.push(response);
        }
    }
    // Permits of pending replies are refunded a moment later.
    clock.advance(Duration::from_secs(120));
    let whole = async {
        while left(&limits, &policy, "ann").await != 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), whole)
        .await
        .unwrap();
    assert_eq!(left(&limits, &policy, "never-polled").await, 2);
    let mut service = layer.layer(tower::service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    for _ in 0..2 {
        let response = service.ready().await.unwrap().call(request("ann")).await.unwrap();
        assert_eq!(response.status(), 200, "no request is waiting");
    }
    let keys = |pattern| server.command(&["KEYS", pattern]).items().len();
    assert_eq!((keys("cancelled|*ann*"), keys("cancelled|*never*")), (1, 0));
    limits.shutdown(Duration::from_secs(10)).await;
}

/// Polls once; whether it is pending.
async fn futures_poll<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}
