//! Waiting requests of one client do not block other clients.

use std::task::Poll;
use std::time::Duration;

use limiter_core::{Policy, Rejection};
use limiter_tower::{RateLimitLayer, key};
use tower::Layer;

use super::support::{Strict, limiter, request};
use super::{begin, bucket, retry_after};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn busy_client_does_not_block_waits_of_others() {
    let (limits, clock) = limiter();
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate("10/s")
        .build()
        .unwrap();
    let mut service = RateLimitLayer::new(&limits, policy)
        .key(key::header("x-api-key"))
        .max_wait(SECOND / 5)
        .layer(Strict::default());
    let busy: Vec<_> = (0..1_100).map(|_| begin(&mut service, request("busy"))).collect();
    let waiting = busy.iter().filter(|(_, polled)| polled.is_pending()).count();
    assert_eq!(waiting, 2, "two permits are due within the time");

    assert!(begin(&mut service, request("calm")).1.is_ready());
    let (calm, polled) = begin(&mut service, request("calm"));
    assert!(polled.is_pending());
    clock.advance(SECOND / 10);
    assert_eq!(calm.await.unwrap().status(), 200);
}

#[tokio::test]
async fn request_whose_permit_is_due_too_late_is_denied_at_once() {
    let (limits, clock) = limiter();
    let mut service = RateLimitLayer::new(&limits, bucket("p", 1))
        .key(key::header("x-api-key"))
        .max_wait(3 * SECOND / 2)
        .layer(Strict::default());
    assert!(begin(&mut service, request("ann")).1.is_ready());
    let (first, polled) = begin(&mut service, request("ann"));
    assert!(polled.is_pending());
    let (_, Poll::Ready(denied)) = begin(&mut service, request("ann")) else {
        unreachable!("the permit is due in two seconds")
    };
    assert_eq!((denied.status().as_u16(), retry_after(&denied)), (429, "2"));
    let rejection = denied.extensions().get::<Rejection>().unwrap();
    assert!(matches!(rejection, Rejection::Limited(_)), "{rejection:?}");
    clock.advance(SECOND);
    assert_eq!(first.await.unwrap().status(), 200);
}

#[tokio::test]
async fn full_waiting_queue_is_shared_among_keys() {
    let (limits, clock) = limiter();
    let mut service = RateLimitLayer::new(&limits, bucket("p", 1))
        .key(key::header("x-api-key"))
        .max_wait(60 * SECOND)
        .max_waiting(4)
        .layer(Strict::default());
    assert!(begin(&mut service, request("busy")).1.is_ready());
    let mut busy = [(); 4].map(|()| begin(&mut service, request("busy")));
    assert!(busy.iter().all(|(_, polled)| polled.is_pending()));

    assert!(begin(&mut service, request("calm")).1.is_ready());
    let (calm, polled) = begin(&mut service, request("calm"));
    assert!(polled.is_pending(), "the request takes over a slot");
    let denied = (&mut busy[3].0).await.unwrap();
    assert_eq!(
        (denied.status().as_u16(), retry_after(&denied)),
        (429, "4"),
        "the last request of the busy client"
    );
    clock.advance(SECOND);
    assert_eq!(calm.await.unwrap().status(), 200);
    for (waiting, _) in busy.into_iter().take(3) {
        assert_eq!(waiting.await.unwrap().status(), 200);
        clock.advance(SECOND);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn redis_rejects_late_requests_and_keeps_slots_for_others() {
    let (server, clock) = (
        limiter_testing::RedisServer::start(),
        limiter_core::ManualClock::new(),
    );
    let limits = limiter_core::Limiter::redis(server.url())
        .namespace("fair")
        .clock(&clock);
    let limits = limits.build().unwrap();
    limits.ready().await.unwrap();
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate("1/10s")
        .deadline(10 * SECOND);
    let policy = policy.build().unwrap();
    let service = RateLimitLayer::new(&limits, &policy)
        .key(key::header("x-api-key"))
        .max_wait(20 * SECOND)
        .layer(Strict::default());
    let send = |client| tower::ServiceExt::oneshot(service.clone(), request(client));
    assert_eq!(send("busy").await.unwrap().status(), 200);
    let mut busy: tokio::task::JoinSet<_> = (0..200).map(|_| send("busy")).collect();
    // The clock does not advance, so two requests remain waiting.
    for _ in 0..198 {
        let response = busy.join_next().await.unwrap().unwrap();
        assert_eq!(response.unwrap().status(), 429);
    }
    assert_eq!(send("calm").await.unwrap().status(), 200);
    let calm = tokio::spawn(send("calm"));
    clock.advance(10 * SECOND);
    assert_eq!(calm.await.unwrap().unwrap().status(), 200);
}
