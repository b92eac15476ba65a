//! Settlement of a request after its response.

use std::convert::Infallible;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use limiter_core::{Enforcement, OnDenial, Policy};
use limiter_tower::settlement::{ActualCost, ReportedCost};
use limiter_tower::{RateLimitLayer, RequestLimits, key};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::support::{limiter, request};
use super::{begin, bucket, left};

/// Responds with the status in the request body; never responds to an empty body.
async fn by_body(request: Request<String>) -> Result<Response<String>, Infallible> {
    if request.body().is_empty() {
        std::future::pending::<()>().await;
    }
    let mut response = Response::new("0123456789".to_owned());
    *response.status_mut() = StatusCode::from_bytes(request.body().as_bytes()).unwrap();
    Ok(response)
}

fn log_in(status: u16) -> Request<String> {
    Request::builder()
        .header("x-api-key", "ann")
        .body(status.to_string())
        .unwrap()
}

#[tokio::test]
async fn only_counted_outcomes_stay_charged() {
    let (limits, _clock) = limiter();
    let policy = bucket("failures", 3);
    let service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .count_if(|response| response.status() == 401)
        .layer(service_fn(by_body));
    for (status, expected) in [(200, 3), (401, 2), (500, 2), (401, 1), (401, 0)] {
        let response = service.clone().oneshot(log_in(status)).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(left(&limits, &policy, "ann").await, expected);
    }
    assert_eq!(service.clone().oneshot(log_in(200)).await.unwrap().status(), 429);
}

/// A charge after the outcome would let all concurrent guesses pass.
#[tokio::test]
async fn concurrent_guesses_are_charged_before_their_outcome_is_known() {
    let (limits, _clock) = limiter();
    let policy = bucket("failures", 3);
    let mut service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .count_if(|response| response.status() == 401)
        .layer(service_fn(by_body));
    let guesses: Vec<_> = (0..10).map(|_| begin(&mut service, request("ann"))).collect();
    let denied = guesses.iter().filter(|(_, answer)| answer.is_ready()).count();
    assert_eq!(denied, 7);
    drop(guesses);
    assert_eq!(
        left(&limits, &policy, "ann").await,
        0,
        "a request that is dropped before its response stays charged"
    );
}

#[tokio::test]
async fn inner_service_failure_stays_charged() {
    let (limits, _clock) = limiter();
    let policy = bucket("p", 3);
    let service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .count_if(|_| false)
        .layer(service_fn(async |_: Request<String>| {
            Err::<Response<String>, _>("broken")
        }));
    assert_eq!(service.oneshot(request("ann")).await.unwrap_err(), "broken");
    assert_eq!(left(&limits, &policy, "ann").await, 2);
}

#[tokio::test]
async fn cost_is_settled_by_response_head() {
    let (limits, _clock) = limiter();
    let policy = bucket("rows", 100);
    let service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .cost(50)
        .settle(ActualCost::from_response(|response| {
            match response.status().as_u16() {
                200 => Some(7),
                201 => Some(60),
                202 => Some(-1),
                _ => None,
            }
        }))
        .layer(service_fn(by_body));
    let mut expected = 100;
    for (status, cost) in [(200, 7), (201, 60), (204, 50)] {
        if expected < 50 {
            limits.reset(&policy, "ann").await.unwrap();
            expected = 100;
        }
        service.clone().oneshot(log_in(status)).await.unwrap();
        expected -= cost;
        assert_eq!(left(&limits, &policy, "ann").await, expected, "{status}");
    }
    service.clone().oneshot(log_in(202)).await.unwrap();
    assert_eq!(
        left(&limits, &policy, "ann").await,
        0,
        "an invalid cost keeps the estimate"
    );
}

#[tokio::test]
async fn unsettled_limit_is_combined_with_settled_one() {
    let (limits, _clock) = limiter();
    let (requests, tokens) = (bucket("requests", 10), bucket("tokens", 1_000));
    let (r, t) = (requests.clone(), tokens.clone());
    let service = RateLimitLayer::limits_for(&limits, move |_: &Request<String>| {
        RequestLimits::new(&r, "ann")
            .unsettled()
            .and(RequestLimits::new(&t, "ann").cost(500))
    })
    .settle(ActualCost::from_response(|_| Some(120)))
    .count_if(|response| response.status() != 500)
    .layer(service_fn(by_body));
    let both = async || {
        (
            left(&limits, &requests, "ann").await,
            left(&limits, &tokens, "ann").await,
        )
    };
    service.clone().oneshot(log_in(200)).await.unwrap();
    assert_eq!(both().await, (9, 880));
    service.clone().oneshot(log_in(500)).await.unwrap();
    assert_eq!(
        both().await,
        (9, 880),
        "an uncounted request is refunded completely"
    );
}

#[tokio::test]
async fn transferred_bytes_are_charged_even_if_body_is_dropped() {
    let (limits, _clock) = limiter();
    let policy = bucket("bytes", 100);
    let service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .settle(ActualCost::body_bytes())
        .layer(service_fn(async |_: Request<String>| {
            let frames = ["0123", "456789"].map(|text| Ok(Frame::data(Bytes::from(text))));
            let body = StreamBody::new(tokio_stream::iter(frames));
            Ok::<Response<StreamBody<_>>, Infallible>(Response::new(body))
        }));

    let send = async || service.clone().oneshot(request("ann")).await.unwrap().into_body();
    let sum = async |body: limiter_tower::ResponseBody<StreamBody<_>>| -> usize {
        let read: http_body_util::Collected<Bytes> = body
            .collect()
            .await
            .unwrap_or_else(|never: Infallible| match never {});
        read.to_bytes().len()
    };
    assert_eq!(sum(send().await).await, 10);
    assert_eq!(left(&limits, &policy, "ann").await, 90);

    let mut body = send().await;
    assert_eq!(left(&limits, &policy, "ann").await, 89, "the estimate");
    let mut context = Context::from_waker(Waker::noop());
    let frame = pin!(&mut body).poll_frame(&mut context);
    assert!(matches!(frame, Poll::Ready(Some(Ok(_)))));
    drop(body);
    assert_eq!(left(&limits, &policy, "ann").await, 86);

    drop(send().await);
    assert_eq!(left(&limits, &policy, "ann").await, 86, "nothing was sent");
}

#[tokio::test]
async fn reported_cost_is_charged_at_end_of_body() {
    let (limits, _clock) = limiter();
    let policy = bucket("tokens", 1_000);
    let spent = ReportedCost::new(20);
    let in_the_handler = spent.clone();
    let service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .cost(500)
        .settle(ActualCost::reported())
        .layer(service_fn(move |request: Request<String>| {
            let mut response = Response::new("some text".to_owned());
            if request.body() == "metered" {
                response.extensions_mut().insert(in_the_handler.clone());
            }
            std::future::ready(Ok::<_, Infallible>(response))
        }));

    let request = Request::builder().header("x-api-key", "ann");
    let response = service
        .clone()
        .oneshot(request.body("metered".to_owned()).unwrap())
        .await
        .unwrap();
    assert_eq!(left(&limits, &policy, "ann").await, 500);
    spent.add(100);
    response.into_body().collect().await.unwrap();
    assert_eq!(left(&limits, &policy, "ann").await, 880);
    spent.add(100);
    assert_eq!(
        left(&limits, &policy, "ann").await,
        880,
        "the request is settled once"
    );

    let request = Request::builder().header("x-api-key", "ann");
    drop(
        service
            .oneshot(request.body(String::new()).unwrap())
            .await
            .unwrap(),
    );
    assert_eq!(
        left(&limits, &policy, "ann").await,
        380,
        "without a reported cost, the estimate stays"
    );
}

#[tokio::test]
async fn degraded_request_is_not_refunded() {
    let (limits, _clock) = limiter();
    let degrades = Policy::token_bucket("degrades")
        .capacity(1)
        .rate("1/h")
        .on_denial(OnDenial::Degrade)
        .build()
        .unwrap();
    let service = RateLimitLayer::new(&limits, &degrades)
        .key(key::header("x-api-key"))
        .count_if(|response| response.status() == 401)
        .layer(service_fn(by_body));
    let send = async |status| service.clone().oneshot(log_in(status)).await.unwrap().status();
    assert_eq!(send(401).await, 401);
    for _ in 0..3 {
        assert_eq!(send(200).await, 200, "degraded");
        assert_eq!(left(&limits, &degrades, "ann").await, 0);
    }
    limits.set_enforcement(Enforcement::Off);
    assert_eq!(send(200).await, 200);
    limits.set_enforcement(Enforcement::Enforce);
    assert_eq!(left(&limits, &degrades, "ann").await, 0);
}

/// A refund wakes a waiter.
#[tokio::test]
async fn refunded_permit_wakes_next_waiter() {
    let (limits, _clock) = limiter();
    let policy = Policy::token_bucket("p").capacity(1).rate("1/h").build().unwrap();
    let service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .max_wait(Duration::from_secs(7_200))
        .count_if(|response| response.status() != 200)
        .layer(service_fn(by_body));
    let mut held = service.clone();
    let first = held.ready().await.unwrap().call(log_in(200));
    let second = tokio::spawn(service.clone().oneshot(log_in(200)));
    tokio::task::yield_now().await;
    assert_eq!(first.await.unwrap().status(), 200);
    let response = tokio::time::timeout(Duration::from_secs(10), second).await;
    assert_eq!(response.unwrap().unwrap().unwrap().status(), 200);
}

#[cfg(unix)]
mod on_redis {
    use super::*;
    use limiter_core::Limiter;
    use limiter_testing::RedisServer;

    async fn eventually(limits: &Limiter, policy: &Policy, expected: u64) {
        let settled = async {
            while left(limits, policy, "ann").await != expected {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), settled)
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn settlements_outlive_request_and_delay_shutdown() {
        let server = RedisServer::start();
        let replica = || {
            Limiter::redis(server.url())
                .namespace("settling")
                .build()
                .unwrap()
        };
        let limits = replica();
        limits.ready().await.unwrap();
        let policy = Policy::token_bucket("bytes")
            .capacity(1_000)
            .rate("1/h")
            .deadline(Duration::from_secs(5))
            .build()
            .unwrap();
        let layer = RateLimitLayer::new(&limits, &policy).key(key::header("x-api-key"));
        let counting = layer
            .clone()
            .count_if(|response| response.status() == 401)
            .layer(service_fn(by_body));
        for (status, expected) in [(401, 999), (200, 999), (401, 998)] {
            drop(counting.clone().oneshot(log_in(status)).await.unwrap());
            eventually(&limits, &policy, expected).await;
        }

        let metered = layer
            .cost(100)
            .settle(ActualCost::body_bytes())
            .layer(service_fn(by_body));
        let response = metered.clone().oneshot(log_in(200)).await.unwrap();
        assert_eq!(left(&limits, &policy, "ann").await, 898);
        let body = response.into_body();
        // Elsewhere there may be no runtime.
        std::thread::spawn(move || drop(body)).join().unwrap();
        limits.shutdown(Duration::from_secs(10)).await;
        assert_eq!(left(&replica(), &policy, "ann").await, 998, "nothing was sent");
    }

    /// The share of the replica was charged in place of Redis, so it receives the refund.
    #[tokio::test]
    async fn refund_returns_to_local_share_without_redis() {
        let server = RedisServer::start();
        let limits = Limiter::redis(server.url())
            .namespace("settling")
            .replicas(1)
            .build()
            .unwrap();
        limits.ready().await.unwrap();
        let policy = Policy::token_bucket("p")
            .capacity(3)
            .rate("1/h")
            .deadline(Duration::from_millis(500))
            .build()
            .unwrap();
        server.kill();
        let service = RateLimitLayer::new(&limits, &policy)
            .key(key::header("x-api-key"))
            .count_if(|response| response.status() == 401)
            .layer(service_fn(by_body));
        for _ in 0..10 {
            assert_eq!(service.clone().oneshot(log_in(200)).await.unwrap().status(), 200);
            tokio::task::yield_now().await;
        }
    }
}
