//! The contract of a tower service: readiness, cancellation, clones.
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

#[path = "contract/hostile.rs"]
mod hostile;
#[path = "contract/paths.rs"]
mod paths;
mod support;
#[path = "contract/types.rs"]
mod types;

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use limiter_tower::future::ResponseFuture;
use limiter_tower::key::{self, Extraction, Global, Header, KeyRejection};
use limiter_tower::typestate::WithKey;
use limiter_tower::{RateLimit, RateLimitLayer, ResponseBody};
use support::{Strict, at_most, limiter, one_a_minute, request};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

const fn is_send<T: Send>() {}
const fn is_clonable_and_shareable<T: Clone + Send + Sync + 'static>() {}

const _: () = {
    is_clonable_and_shareable::<RateLimitLayer>();
    is_clonable_and_shareable::<RateLimitLayer<WithKey<Header>>>();
    is_clonable_and_shareable::<RateLimit<Strict, Global>>();
    is_send::<ResponseFuture<Strict, String>>();
    is_send::<ResponseBody<String>>();
};

#[tokio::test]
async fn ready_instance_is_called_and_denial_calls_none() {
    let (limits, _clock) = limiter();
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = RateLimitLayer::new(&limits, at_most(3))
        .key(key::header("x-api-key"))
        .layer(inner);

    for expected in [200, 200, 200, 429, 429] {
        let response = service.ready().await.unwrap().call(request("ann")).await.unwrap();
        assert_eq!(response.status(), expected);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert_eq!(
        service.clone().oneshot(request("bob")).await.unwrap().status(),
        200
    );
}

#[tokio::test]
async fn skip_and_rejection_keep_inner_service_ready() {
    let (limits, _clock) = limiter();
    let inner = Strict::default();
    let calls = inner.calls();
    let extractor = |request: &Request<String>| match request.uri().path() {
        "/health" => Extraction::Skip,
        "/closed" => Extraction::Reject(KeyRejection::new(StatusCode::FORBIDDEN, "closed")),
        path => Extraction::Key(path.to_owned().into()),
    };
    let mut service = RateLimitLayer::new(&limits, one_a_minute())
        .key(extractor)
        .layer(inner);

    for (path, expected) in [
        ("/health", 200),
        ("/closed", 403),
        ("/health", 200),
        ("/", 200),
        ("/", 429),
        ("/closed", 403),
    ] {
        let request = Request::builder().uri(path).body(String::new()).unwrap();
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), expected, "{path}");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn in_process_request_is_decided_in_call() {
    let (limits, _clock) = limiter();
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = RateLimitLayer::new(&limits, at_most(2))
        .key(key::global())
        .layer(inner);

    for (left, called) in [(1, 1), (0, 2), (0, 2)] {
        drop(service.ready().await.unwrap().call(request("ann")));
        let policy = at_most(2);
        let peek = limits.peek(&policy, limiter_core::Key::global()).await.unwrap();
        assert_eq!((peek.remaining(), calls.load(Ordering::SeqCst)), (left, called));
    }
}

#[tokio::test]
async fn dropped_future_releases_inner_service() {
    let (limits, _clock) = limiter();
    let hangs = tower::service_fn(async |_: Request<String>| {
        std::future::pending::<()>().await;
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let service = ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(1))
        .layer(RateLimitLayer::new(&limits, at_most(1_000)).key(key::global()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(hangs);

    for _ in 0..100 {
        // If the slot of the previous request were not released, each request would wait for ever.
        let mut service = service.clone();
        let response = tokio::time::timeout(Duration::from_secs(5), service.ready())
            .await
            .unwrap()
            .unwrap();
        assert!(
            tokio::time::timeout(Duration::from_micros(10), response.call(request("ann")))
                .await
                .is_err()
        );
    }
}

/// A server keeps one service for each connection, and a rejected client can stay
/// connected.
#[tokio::test]
async fn rejection_releases_ready_slot() {
    let (limits, _clock) = limiter();
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(&limits, one_a_minute()).key(key::header("x-api-key")))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(Strict::default());

    let mut connections = vec![service; 3];
    for connection in &mut connections {
        let ready = tokio::time::timeout(Duration::from_secs(5), connection.ready());
        let response = ready.await.unwrap().unwrap().call(Request::new(String::new()));
        assert_eq!(response.await.unwrap().status(), 400);
    }
}

#[tokio::test]
async fn denial_releases_ready_slot() {
    let (limits, _clock) = limiter();
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(&limits, one_a_minute()).key(key::global()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(Strict::default());

    let answers = async {
        let mut statuses = Vec::new();
        for _ in 0..10 {
            statuses.push(
                service
                    .clone()
                    .oneshot(request("ann"))
                    .await
                    .unwrap()
                    .status()
                    .as_u16(),
            );
        }
        statuses
    };
    let statuses = tokio::time::timeout(Duration::from_secs(5), answers)
        .await
        .unwrap();
    assert_eq!(statuses, [200, 429, 429, 429, 429, 429, 429, 429, 429, 429]);
}

#[tokio::test]
async fn backpressure_and_errors_of_inner_service_are_forwarded() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, at_most(10)).key(key::global());
    let (mut service, mut inner) =
        tower_test::mock::spawn_layer::<Request<String>, Response<String>, _>(layer);

    inner.allow(0);
    assert!(service.poll_ready().is_pending());
    inner.allow(1);
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));

    let response = tokio::spawn(service.call(request("ann")));
    let next_request = tokio::time::timeout(Duration::from_secs(5), inner.next_request());
    let (_, answer) = next_request.await.unwrap().unwrap();
    answer.send_error("broken");
    assert_eq!(response.await.unwrap().unwrap_err().to_string(), "broken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clones_share_one_limit_under_concurrency() {
    let (limits, _clock) = limiter();
    let inner = Strict::default();
    let calls = inner.calls();
    let service = RateLimitLayer::new(&limits, at_most(50))
        .key(key::header("x-api-key"))
        .layer(inner);

    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let mut service = service.clone();
            tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..100 {
                    let response = service.ready().await.unwrap().call(request("ann")).await.unwrap();
                    allowed += usize::from(response.status().is_success());
                }
                allowed
            })
        })
        .collect();
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.unwrap();
    }
    assert_eq!((allowed, calls.load(Ordering::SeqCst)), (50, 50));
}
