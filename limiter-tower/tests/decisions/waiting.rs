//! Waiting instead of refusing.

use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use limiter_core::{Decision, Inheritance, OnDenial, Policy, Rejection};
use limiter_tower::{RateLimitLayer, ResponseConfig, key};
use tower::{Layer, Service, ServiceExt};

use super::support::{Strict, limiter, request, text};
use super::{begin, bucket, left, retry_after};

const SECOND: Duration = Duration::from_secs(1);

/// Runs woken tasks.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn requests_wait_in_the_order_of_their_arrival() {
    let (limits, clock) = limiter();
    let inner = Strict::default();
    let calls = inner.calls();
    let service = RateLimitLayer::new(&limits, bucket("p", 1))
        .key(key::header("x-api-key"))
        .max_wait(10 * SECOND)
        .layer(inner);
    let (sender, mut answered) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..5 {
        let (service, sender) = (service.clone(), sender.clone());
        tokio::spawn(async move {
            let response = service.oneshot(request("ann")).await.unwrap();
            sender.send((number, response.status().as_u16())).unwrap();
        });
        settle().await;
    }
    for number in 0..5 {
        assert_eq!(answered.recv().await, Some((number, 200)));
        assert_eq!(calls.load(Ordering::SeqCst), number + 1);
        settle().await;
        assert!(answered.is_empty());
        clock.advance(SECOND);
        settle().await;
    }
    assert_eq!(
        service.oneshot(request("bob")).await.unwrap().status(),
        200,
        "other keys do not wait"
    );
}

#[tokio::test]
async fn admitted_request_does_not_wait_and_waiters_keep_order() {
    let (limits, clock) = limiter();
    let policy = bucket("p", 2);
    let mut service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .max_wait(10 * SECOND)
        .layer(Strict::default());
    for _ in 0..2 {
        assert!(begin(&mut service, request("ann")).1.is_ready());
    }
    let (mut first, pending) = begin(&mut service, request("ann"));
    assert!(pending.is_pending());
    clock.advance(SECOND);
    let (second, pending) = begin(&mut service, request("ann"));
    assert!(pending.is_pending(), "the permit belongs to the first waiter");
    assert_eq!((&mut first).await.unwrap().status(), 200);
    assert_eq!(left(&limits, &policy, "ann").await, 0);
    drop(second);
}

#[tokio::test]
async fn request_above_max_waiting_has_retry_after() {
    let (limits, clock) = limiter();
    let mut service = RateLimitLayer::new(&limits, bucket("p", 5))
        .key(key::header("x-api-key"))
        .cost(2)
        .max_wait(60 * SECOND)
        .max_waiting(2)
        .layer(Strict::default());
    for _ in 0..2 {
        assert!(begin(&mut service, request("ann")).1.is_ready());
    }
    // One permit is left, and each request takes two.
    let waiting = [(); 2].map(|()| begin(&mut service, request("ann")));
    assert!(waiting.iter().all(|(_, polled)| polled.is_pending()));

    let refused = |service: &mut _, client| {
        let (_, polled) = begin(service, request(client));
        let Poll::Ready(response) = polled else {
            unreachable!("the request must not wait")
        };
        response
    };
    let denied = refused(&mut service, "ann");
    assert_eq!(denied.status(), 429);
    assert_eq!(
        retry_after(&denied),
        "5",
        "three requests take six permits, and one is available"
    );
    let exact = denied
        .extensions()
        .get::<Rejection>()
        .and_then(Rejection::retry_after);
    assert_eq!(exact, Some(5 * SECOND));

    let [(first, _), (second, _)] = waiting;
    drop(second);
    let (third, polled) = begin(&mut service, request("ann"));
    assert!(polled.is_pending(), "a place is free again");
    clock.advance(SECOND);
    assert_eq!(first.await.unwrap().status(), 200);
    drop(third);
}

/// Also if twice the cost and more still fits.
#[tokio::test]
async fn retry_after_of_full_queue_includes_backlog() {
    let (limits, _clock) = limiter();
    let mut service = RateLimitLayer::new(&limits, bucket("p", 100))
        .key(key::header("x-api-key"))
        .cost(10)
        .max_wait(600 * SECOND)
        .max_waiting(3)
        .layer(Strict::default());
    for _ in 0..10 {
        assert!(begin(&mut service, request("ann")).1.is_ready());
    }
    let _waiting = [(); 3].map(|()| begin(&mut service, request("ann")));
    let (_, Poll::Ready(denied)) = begin(&mut service, request("ann")) else {
        unreachable!("the request must not wait")
    };
    assert_eq!(retry_after(&denied), "40");
}

/// Requests that each cost the whole capacity precede a small one.
#[tokio::test]
async fn backlog_above_capacity_is_included() {
    let (limits, _clock) = limiter();
    let policies = [
        Policy::token_bucket("p").capacity(4).rate("2/s").build(),
        Policy::sliding_window("p").limit(4).window("2s").build(),
    ];
    for policy in policies.map(Result::unwrap) {
        let mut service = RateLimitLayer::new(&limits, policy)
            .key(key::header("x-api-key"))
            .cost_by(|request: &Request<String>| if request.method() == "PUT" { 4 } else { 1 })
            .max_wait(600 * SECOND)
            .max_waiting(5)
            .layer(Strict::default());
        let put = || {
            Request::put("/")
                .header("x-api-key", "ann")
                .body(String::new())
                .unwrap()
        };
        assert!(begin(&mut service, put()).1.is_ready());
        let _waiting = [(); 5].map(|()| begin(&mut service, put()));
        let (_, Poll::Ready(denied)) = begin(&mut service, request("ann")) else {
            unreachable!("the request must not wait")
        };
        // The bucket admits half a second after the last of them, the window when the last of them
        // expires.
        let expected = ["11", "12"];
        assert!(
            expected.contains(&retry_after(&denied)),
            "{}",
            retry_after(&denied)
        );
        limits.reset(&bucket("p", 4), "ann").await.unwrap();
    }
}

#[cfg(unix)]
#[tokio::test]
async fn backlog_is_included_with_redis() {
    let (server, clock) = (
        limiter_testing::RedisServer::start(),
        limiter_core::ManualClock::new(),
    );
    let limits = limiter_core::Limiter::redis(server.url())
        .namespace("turned-away")
        .clock(&clock);
    let limits = limits.build().unwrap();
    limits.ready().await.unwrap();
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate("2/s")
        .deadline(5 * SECOND);
    let mut service = RateLimitLayer::new(&limits, policy.build().unwrap())
        .key(key::header("x-api-key"))
        .max_wait(600 * SECOND)
        .max_waiting(5)
        .layer(Strict::default());
    let call = service.ready().await.unwrap().call(request("ann"));
    assert_eq!(call.await.unwrap().status(), 200);
    // Redis is queried for the first request, and the others have taken all slots when it denies.
    let mut waiting = [(); 6].map(|()| begin(&mut service, request("ann")).0);
    let denied = waiting[0].as_mut().await.unwrap();
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "3"));
    let call = service.ready().await.unwrap().call(request("ann"));
    let denied = call.await.unwrap();
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "3"));
}

/// A request that never reached the head of the queue states the time after the earlier requests.
#[tokio::test]
async fn timed_out_waiter_has_retry_after_behind_backlog() {
    let (limits, clock) = limiter();
    let mut service = RateLimitLayer::new(&limits, bucket("p", 1))
        .key(key::header("x-api-key"))
        .max_wait(3 * SECOND / 2)
        .count_if(|_| true)
        .layer(Strict::default());
    assert!(begin(&mut service, request("ann")).1.is_ready());
    let [(first, _), _second, (third, _), _fourth] = [(); 4].map(|()| begin(&mut service, request("ann")));
    clock.advance(SECOND);
    assert_eq!(first.await.unwrap().status(), 200);
    clock.advance(SECOND / 2);
    let denied = third.await.unwrap();
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "2"));
    let rejection = denied.extensions().get::<Rejection>().unwrap();
    assert!(matches!(rejection, Rejection::TimedOut { .. }), "{rejection:?}");
    assert_eq!(
        rejection.retry_after(),
        Some(3 * SECOND / 2),
        "the second's permit comes first"
    );
    assert_eq!(denied.headers()["ratelimit"], r#""p";r=0;t=2"#);
    assert!(text(denied).await.contains(r#""violated-policies":["p"]"#));
}

#[cfg(unix)]
#[tokio::test]
async fn timed_out_waiter_has_retry_after_with_redis() {
    let (server, clock) = (
        limiter_testing::RedisServer::start(),
        limiter_core::ManualClock::new(),
    );
    let limits = limiter_core::Limiter::redis(server.url())
        .namespace("in-vain")
        .clock(&clock);
    let limits = limits.build().unwrap();
    limits.ready().await.unwrap();
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate("1/10s")
        .deadline(5 * SECOND);
    let mut service = RateLimitLayer::new(&limits, policy.build().unwrap())
        .key(key::header("x-api-key"))
        .max_wait(SECOND)
        .count_if(|_| true)
        .layer(Strict::default());
    let call = service.ready().await.unwrap().call(request("ann"));
    assert_eq!(call.await.unwrap().status(), 200);
    let [(_first, _), (second, _)] = [(); 2].map(|()| begin(&mut service, request("ann")));
    clock.advance(SECOND);
    let denied = second.await.unwrap();
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "19"));
}

/// Uses the system clock, because no timeout is set in this test.
#[cfg(unix)]
#[tokio::test]
async fn silent_redis_blocks_no_request() {
    let server = limiter_testing::RedisServer::start();
    let proxy = limiter_testing::Proxy::start(server.port());
    let limits = limiter_core::Limiter::redis(proxy.url())
        .namespace("in-vain")
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate("1/h")
        .deadline(10 * SECOND);
    let mut service = RateLimitLayer::new(&limits, policy.build().unwrap())
        .key(key::header("x-api-key"))
        .max_wait(SECOND / 2)
        .count_if(|_| true)
        .layer(Strict::default());
    let call = service.ready().await.unwrap().call(request("ann"));
    assert_eq!(call.await.unwrap().status(), 200);
    let [(_first, _), (second, _)] = [(); 2].map(|()| begin(&mut service, request("ann")));
    proxy.set_black_hole(true);
    let begun = std::time::Instant::now();
    assert_eq!(second.await.unwrap().status(), 429);
    assert!(begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn wait_is_bounded_and_impossible_cost_fails_at_once() {
    let (limits, clock) = limiter();
    let mut service = RateLimitLayer::new(&limits, bucket("p", 1))
        .key(key::header("x-api-key"))
        .cost_by(|request: &Request<String>| if request.method() == "PUT" { 2 } else { 1 })
        .max_wait(SECOND / 2)
        .count_if(|_| true)
        .layer(Strict::default());
    assert!(begin(&mut service, request("ann")).1.is_ready());
    let (waiting, polled) = begin(&mut service, request("ann"));
    assert!(polled.is_pending(), "a permit may be refunded before it is due");
    clock.advance(SECOND / 2);
    let denied = waiting.await.unwrap();
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "1"));
    let never_fits = Request::put("/").header("x-api-key", "ann").body(String::new());
    let (_, Poll::Ready(denied)) = begin(&mut service, never_fits.unwrap()) else {
        unreachable!("the request must not wait")
    };
    assert_eq!(denied.status(), 429);
    assert!(!denied.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn request_waits_no_longer_than_client_timeout() {
    let (limits, clock) = limiter();
    let waits = Policy::token_bucket("waits")
        .capacity(1)
        .rate("1/s")
        .on_denial(OnDenial::Wait(60 * SECOND))
        .build()
        .unwrap();
    let layers = [
        // A layer that refunds permits lets a request wait though its permit is due later.
        RateLimitLayer::new(&limits, bucket("p", 1))
            .max_wait(60 * SECOND)
            .count_if(|_| true),
        RateLimitLayer::new(&limits, waits),
    ];
    for layer in layers {
        let mut service = layer.key(key::header("x-api-key")).layer(Strict::default());
        let with_timeout = |timeout: &str| {
            let request = Request::builder()
                .header("x-api-key", "ann")
                .header("content-type", "application/grpc")
                .header("grpc-timeout", timeout);
            request.body(String::new()).unwrap()
        };
        drop(service.ready().await.unwrap().call(request("ann")).await.unwrap());
        let (waiting, polled) = begin(&mut service, with_timeout("900m"));
        assert!(polled.is_pending());
        clock.advance(9 * SECOND / 10);
        let denied = waiting.await.unwrap();
        assert_eq!(denied.headers()["grpc-status"], "8");
        for patient in ["2S", "2000m", "2 S"] {
            let (response, polled) = begin(&mut service, with_timeout(patient));
            assert!(polled.is_pending(), "{patient}");
            clock.advance(SECOND);
            let response = response.await.unwrap();
            assert!(!response.headers().contains_key("grpc-status"), "{patient}");
        }
        clock.advance(10 * SECOND);
    }
}

fn paced(name: &str) -> Policy {
    Policy::funnel(name)
        .capacity(9)
        .rate("1/s")
        .paced()
        .build()
        .unwrap()
}

/// The request of a client with this timeout.
fn patient_for(timeout: &str) -> Request<String> {
    let mut request = request("ann");
    request
        .headers_mut()
        .insert("grpc-timeout", timeout.parse().unwrap());
    request
}

/// Also in a layer without waits for permits.
#[tokio::test]
async fn paced_wait_ends_at_client_timeout() {
    let (limits, clock) = limiter();
    let layers = [
        RateLimitLayer::new(&limits, paced("p")),
        RateLimitLayer::new(&limits, paced("q")).max_wait(60 * SECOND),
        RateLimitLayer::new(&limits, [paced("r"), bucket("b", 100)]),
    ];
    for layer in layers {
        let mut service = layer.key(key::header("x-api-key")).layer(Strict::default());
        assert_eq!(
            service
                .ready()
                .await
                .unwrap()
                .call(request("ann"))
                .await
                .unwrap()
                .status(),
            200
        );
        let (second, polled) = begin(&mut service, patient_for("2S"));
        assert!(polled.is_pending());
        let (_, Poll::Ready(denied)) = begin(&mut service, patient_for("1500m")) else {
            unreachable!("the turn of the request comes in two seconds")
        };
        assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "1"));
        let rejection = denied.extensions().get::<Rejection>().unwrap();
        assert!(matches!(rejection, Rejection::TimedOut { .. }), "{rejection:?}");
        assert_eq!(
            rejection.retry_after(),
            Some(SECOND / 2),
            "a retry after this time succeeds within its timeout"
        );
        clock.advance(SECOND / 2);
        let (third, polled) = begin(&mut service, patient_for("1500m"));
        assert!(polled.is_pending(), "the late grant is refunded");
        clock.advance(SECOND / 2);
        assert_eq!(second.await.unwrap().status(), 200);
        clock.advance(SECOND);
        assert_eq!(third.await.unwrap().status(), 200);
        clock.advance(60 * SECOND);
    }
}

#[tokio::test]
async fn paced_waiter_takes_a_slot() {
    let (limits, clock) = limiter();
    let layers = [
        RateLimitLayer::new(&limits, paced("p")).max_waiting(2),
        RateLimitLayer::new(&limits, paced("q"))
            .max_waiting(2)
            .max_wait(60 * SECOND),
    ];
    for layer in layers {
        let mut service = layer.key(key::header("x-api-key")).layer(Strict::default());
        assert_eq!(
            service
                .ready()
                .await
                .unwrap()
                .call(request("ann"))
                .await
                .unwrap()
                .status(),
            200
        );
        let [(second, _), (third, _)] = [(); 2].map(|()| begin(&mut service, request("ann")));
        let (_, Poll::Ready(denied)) = begin(&mut service, request("ann")) else {
            unreachable!("no slot is free")
        };
        assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "3"));
        drop(third);
        let (third, polled) = begin(&mut service, request("ann"));
        assert!(
            polled.is_pending(),
            "a slot is free again, and the next turn is in time"
        );
        clock.advance(SECOND);
        assert_eq!(second.await.unwrap().status(), 200);
        clock.advance(SECOND);
        assert_eq!(third.await.unwrap().status(), 200);
        clock.advance(60 * SECOND);
    }
}

/// A short client timeout is no sign of an outage of Redis.
#[cfg(unix)]
#[tokio::test]
async fn short_client_timeout_does_not_trigger_fallback() {
    let server = limiter_testing::RedisServer::start();
    let proxy = limiter_testing::Proxy::start(server.port());
    let limits = limiter_core::Limiter::redis(proxy.url())
        .namespace("hurry")
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    let origin = http::HeaderName::from_static("x-limiter");
    for name in ["p", "q"] {
        let policy = Policy::token_bucket(name)
            .capacity(1)
            .rate("1/h")
            .deadline(10 * SECOND);
        let mut service = RateLimitLayer::new(&limits, policy.build().unwrap())
            .key(key::header("x-api-key"))
            .max_wait(60 * SECOND)
            .responses(&ResponseConfig::new().with_origin_header(origin.clone()))
            .layer(Strict::default());
        proxy.set_delay(Duration::from_millis(50));
        for status in [200, 429] {
            let call = service.ready().await.unwrap().call(patient_for("5m"));
            let response = call.await.unwrap();
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()[&origin], "redis");
        }
    }
}

#[tokio::test]
async fn dropped_waiter_is_not_charged_and_next_one_advances() {
    let (limits, clock) = limiter();
    let policy = bucket("p", 1);
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .max_wait(10 * SECOND)
        .max_waiting(3)
        .layer(inner);
    assert!(begin(&mut service, request("ann")).1.is_ready());
    let [(first, _), (second, _), (third, _)] = [(); 3].map(|()| begin(&mut service, request("ann")));
    drop(first);
    drop(second);
    clock.advance(SECOND);
    assert_eq!(third.await.unwrap().status(), 200);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    clock.advance(SECOND);
    assert_eq!(left(&limits, &policy, "ann").await, 1);
}

#[tokio::test]
async fn wait_covers_several_limits() {
    let (limits, clock) = limiter();
    let (a, b) = (bucket("a", 1), bucket("b", 5));
    let mut service = RateLimitLayer::new(&limits, [&a, &b])
        .key(key::header("x-api-key"))
        .max_wait(10 * SECOND)
        .with_decision_extension()
        .layer(Strict::default());
    drop(begin(&mut service, request("ann")));
    let (response, polled) = begin(&mut service, request("ann"));
    assert!(polled.is_pending());
    clock.advance(SECOND);
    let response: Response<_> = response.await.unwrap();
    let decision = response.extensions().get::<Decision>().unwrap();
    assert_eq!(decision.limits().len(), 2);
    assert!(decision.is_allowed());
}

#[tokio::test]
async fn shutdown_ends_waits_with_unavailable() {
    let (limits, _clock) = limiter();
    let mut service = RateLimitLayer::new(&limits, bucket("p", 1))
        .key(key::header("x-api-key"))
        .max_wait(60 * SECOND)
        .layer(Strict::default());
    drop(begin(&mut service, request("ann")));
    let (response, polled) = begin(&mut service, request("ann"));
    assert!(polled.is_pending());
    let response = tokio::spawn(response);
    limits.shutdown(10 * SECOND).await;
    assert_eq!(response.await.unwrap().unwrap().status(), 503);
}

#[cfg(unix)]
#[tokio::test]
async fn requests_of_all_replicas_wait_for_one_limit() {
    let server = limiter_testing::RedisServer::start();
    let policy = Policy::token_bucket("p")
        .capacity(5)
        .rate("50/s")
        .deadline(5 * SECOND)
        .build()
        .unwrap();
    let inner = Strict::default();
    let calls = inner.calls();
    let mut waiting = Vec::new();
    let begun = std::time::Instant::now();
    for _ in 0..2 {
        let limits = limiter_core::Limiter::redis(server.url())
            .namespace("waiting")
            .build()
            .unwrap();
        limits.ready().await.unwrap();
        let layer = RateLimitLayer::new(&limits, &policy).key(key::header("x-api-key"));
        let service = layer.max_wait(30 * SECOND).layer(inner.clone());
        waiting.extend((0..15).map(|_| tokio::spawn(service.clone().oneshot(request("ann")))));
    }
    for response in waiting {
        assert_eq!(response.await.unwrap().unwrap().status(), 200);
    }
    assert!(begun.elapsed() >= SECOND / 2, "{:?}", begun.elapsed());
    assert_eq!(calls.load(Ordering::SeqCst), 30);
}

#[tokio::test]
async fn max_waiting_alone_enables_no_wait() {
    let (limits, clock) = limiter();
    let patient = Policy::token_bucket("patient").capacity(1).rate("1/s");
    let patient = patient.on_denial(OnDenial::Wait(5 * SECOND)).build().unwrap();
    let mut service = RateLimitLayer::new(&limits, [patient])
        .key(key::global())
        .max_waiting(1)
        .layer(Strict::default());
    assert!(begin(&mut service, request("ann")).1.is_ready());
    let (mut second, pending) = begin(&mut service, request("ann"));
    assert!(pending.is_pending(), "by the policy's setting");
    clock.advance(SECOND);
    assert_eq!((&mut second).await.unwrap().status(), 200);

    let mut service = RateLimitLayer::new(&limits, bucket("p", 1))
        .key(key::global())
        .max_waiting(1)
        .max_wait(Duration::ZERO)
        .layer(Strict::default());
    for expected in [200, 429] {
        let Poll::Ready(response) = begin(&mut service, request("ann")).1 else {
            unreachable!("a timeout of zero must not wait");
        };
        assert_eq!(response.status(), expected);
    }
}

/// The request is charged in the new generation, and so is its refund.
#[tokio::test]
async fn reset_in_registry_admits_waiting_request() {
    let (limits, _clock) = limiter();
    let policy = bucket("p", 1);
    limits.registry().set(&policy);
    let mut service = RateLimitLayer::new(&limits, "p")
        .key(key::header("x-api-key"))
        .max_wait(3_600 * SECOND)
        .count_if(|response| response.status() != 200)
        .layer(Strict::default());
    assert!(limits.check(&policy, "ann").await.unwrap().is_allowed());
    let (waiting, pending) = begin(&mut service, request("ann"));
    assert!(pending.is_pending());
    limits.registry().change(&policy, Inheritance::Reset).unwrap();
    let response = tokio::time::timeout(5 * SECOND, waiting).await.unwrap();
    assert_eq!(response.unwrap().status(), 200);
    assert_eq!(limits.named("p").peek("ann").await.unwrap().remaining(), 1);
}
