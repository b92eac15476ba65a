//! Waiting instead of refusing.

use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use limiter_core::{Decision, OnDenial, Policy, Rejection};
use limiter_tower::{RateLimitLayer, ResponseConfig, key};
use tower::{Layer, Service, ServiceExt};

use super::support::{Strict, limiter, request, text};
use super::{begin, bucket, left, retry_after};

const SECOND: Duration = Duration::from_secs(1);

/// Lets tasks that were woken go on.
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
        "others need not wait"
    );
}

#[tokio::test]
async fn who_is_admitted_at_once_does_not_wait_and_nobody_overtakes_who_does() {
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
    assert!(pending.is_pending(), "the permit belongs to who came first");
    assert_eq!((&mut first).await.unwrap().status(), 200);
    assert_eq!(left(&limits, &policy, "ann").await, 0);
    drop(second);
}

#[tokio::test]
async fn one_more_than_may_wait_is_told_when_there_will_be_a_permit_for_it() {
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
    // One is left, and each of them takes two.
    let waiting = [(); 2].map(|()| begin(&mut service, request("ann")));
    assert!(waiting.iter().all(|(_, polled)| polled.is_pending()));

    let refused = |service: &mut _, who| {
        let (_, polled) = begin(service, request(who));
        let Poll::Ready(response) = polled else {
            unreachable!("it must not wait")
        };
        response
    };
    let denied = refused(&mut service, "ann");
    assert_eq!(denied.status(), 429);
    assert_eq!(retry_after(&denied), "5", "three take six, of which one is there");
    let exact = denied
        .extensions()
        .get::<Rejection>()
        .and_then(Rejection::retry_after);
    assert_eq!(exact, Some(5 * SECOND));

    let [(first, _), (second, _)] = waiting;
    drop(second);
    let (third, polled) = begin(&mut service, request("ann"));
    assert!(polled.is_pending(), "a place has become free");
    clock.advance(SECOND);
    assert_eq!(first.await.unwrap().status(), 200);
    drop(third);
}

/// Where twice the cost and more still fits, it is counted out.
#[tokio::test]
async fn who_finds_no_place_is_told_of_those_before_it() {
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
        unreachable!("it must not wait")
    };
    assert_eq!(retry_after(&denied), "40");
}

/// However little fits at once, and whatever those before it want.
#[tokio::test]
async fn more_before_it_than_ever_fit_at_once_are_counted_as_well() {
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
            unreachable!("it must not wait")
        };
        // Of the bucket half a second after all of them, of the window when the last of them leaves
        // it.
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
async fn with_redis_those_who_are_before_it_are_counted_as_well() {
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
    let ask = service.ready().await.unwrap().call(request("ann"));
    assert_eq!(ask.await.unwrap().status(), 200);
    // Redis is asked for the first of them, and the others have taken all seats when it says no.
    let mut waiting = [(); 6].map(|()| begin(&mut service, request("ann")).0);
    let denied = waiting[0].as_mut().await.unwrap();
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "3"));
    let ask = service.ready().await.unwrap().call(request("ann"));
    let denied = ask.await.unwrap();
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "3"));
}

/// One whose turn it never was is told of those before it.
#[tokio::test]
async fn who_waits_behind_others_in_vain_is_told_when_there_will_be_a_permit_for_it() {
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
async fn with_redis_who_waits_behind_others_in_vain_is_told_as_well() {
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
    let ask = service.ready().await.unwrap().call(request("ann"));
    assert_eq!(ask.await.unwrap().status(), 200);
    let [(_first, _), (second, _)] = [(); 2].map(|()| begin(&mut service, request("ann")));
    clock.advance(SECOND);
    let denied = second.await.unwrap();
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "19"));
}

/// By the system's clock, since that is by which nobody waits for an answer.
#[cfg(unix)]
#[tokio::test]
async fn where_redis_says_nothing_nobody_waits_for_an_answer() {
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
    let ask = service.ready().await.unwrap().call(request("ann"));
    assert_eq!(ask.await.unwrap().status(), 200);
    let [(_first, _), (second, _)] = [(); 2].map(|()| begin(&mut service, request("ann")));
    proxy.set_black_hole(true);
    let begun = std::time::Instant::now();
    assert_eq!(second.await.unwrap().status(), 429);
    assert!(begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn nobody_waits_for_longer_than_that_nor_for_what_never_comes() {
    let (limits, clock) = limiter();
    let mut service = RateLimitLayer::new(&limits, bucket("p", 1))
        .key(key::header("x-api-key"))
        .cost_by(|request: &Request<String>| if request.method() == "PUT" { 2 } else { 1 })
        .max_wait(SECOND / 2)
        .count_if(|_| true)
        .layer(Strict::default());
    assert!(begin(&mut service, request("ann")).1.is_ready());
    let (waiting, polled) = begin(&mut service, request("ann"));
    assert!(polled.is_pending(), "a permit may come back before it is due");
    clock.advance(SECOND / 2);
    let denied = waiting.await.unwrap();
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "1"));
    let never_fits = Request::put("/").header("x-api-key", "ann").body(String::new());
    let (_, Poll::Ready(denied)) = begin(&mut service, never_fits.unwrap()) else {
        unreachable!("it must not wait")
    };
    assert_eq!(denied.status(), 429);
    assert!(!denied.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_request_waits_no_longer_than_its_client() {
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

/// The request of a client that waits for its answer for so long.
fn patient_for(timeout: &str) -> Request<String> {
    let mut request = request("ann");
    request
        .headers_mut()
        .insert("grpc-timeout", timeout.parse().unwrap());
    request
}

/// In a layer that has nobody wait for permits, too.
#[tokio::test]
async fn nobody_waits_for_its_turn_for_longer_than_its_client() {
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
            unreachable!("its turn comes in two seconds")
        };
        assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "1"));
        let rejection = denied.extensions().get::<Rejection>().unwrap();
        assert!(matches!(rejection, Rejection::TimedOut { .. }), "{rejection:?}");
        assert_eq!(
            rejection.retry_after(),
            Some(SECOND / 2),
            "then its turn comes in time"
        );
        clock.advance(SECOND / 2);
        let (third, polled) = begin(&mut service, patient_for("1500m"));
        assert!(polled.is_pending(), "what was granted too late is given back");
        clock.advance(SECOND / 2);
        assert_eq!(second.await.unwrap().status(), 200);
        clock.advance(SECOND);
        assert_eq!(third.await.unwrap().status(), 200);
        clock.advance(60 * SECOND);
    }
}

#[tokio::test]
async fn who_waits_for_its_turn_takes_a_seat() {
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
            unreachable!("no seat is left")
        };
        assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "3"));
        drop(third);
        let (third, polled) = begin(&mut service, request("ann"));
        assert!(polled.is_pending(), "one is free again, and its turn the next");
        clock.advance(SECOND);
        assert_eq!(second.await.unwrap().status(), 200);
        clock.advance(SECOND);
        assert_eq!(third.await.unwrap().status(), 200);
        clock.advance(60 * SECOND);
    }
}

/// That its client is in a hurry says nothing of Redis.
#[cfg(unix)]
#[tokio::test]
async fn the_little_time_of_a_client_has_nobody_else_decide() {
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
            let ask = service.ready().await.unwrap().call(patient_for("5m"));
            let response = ask.await.unwrap();
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()[&origin], "redis");
        }
    }
}

#[tokio::test]
async fn who_leaves_is_not_charged_and_the_next_takes_its_place() {
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
async fn a_wait_is_for_several_limits_at_once() {
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
async fn shutting_down_ends_waits_with_unavailable() {
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
async fn replicas_have_their_requests_wait_for_one_limit() {
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
async fn seats_alone_leave_it_to_the_policies_who_waits() {
    let (limits, clock) = limiter();
    let patient = Policy::token_bucket("patient").capacity(1).rate("1/s");
    let patient = patient.on_denial(OnDenial::Wait(5 * SECOND)).build().unwrap();
    let mut service = RateLimitLayer::new(&limits, [patient])
        .key(key::global())
        .max_waiting(1)
        .layer(Strict::default());
    assert!(begin(&mut service, request("ann")).1.is_ready());
    let (mut second, pending) = begin(&mut service, request("ann"));
    assert!(pending.is_pending(), "as the policy says");
    clock.advance(SECOND);
    assert_eq!((&mut second).await.unwrap().status(), 200);

    let mut service = RateLimitLayer::new(&limits, bucket("p", 1))
        .key(key::global())
        .max_waiting(1)
        .max_wait(Duration::ZERO)
        .layer(Strict::default());
    for expected in [200, 429] {
        let Poll::Ready(response) = begin(&mut service, request("ann")).1 else {
            unreachable!("no time is no wait");
        };
        assert_eq!(response.status(), expected);
    }
}
