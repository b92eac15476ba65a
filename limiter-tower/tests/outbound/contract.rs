//! The contract of a tower service: readiness, cancellation, clones, errors.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use limiter_core::registry::PolicyRegistry;
use limiter_core::{Decision, Enforcement, Key, Limiter, ManualClock, Policy, Rejection};
use limiter_tower::RateLimitLayer;
use limiter_tower::key::{self, Extraction, Header, KeyRejection};
use limiter_tower::outbound::{self, Outbound, OutboundFuture, OutboundLayer};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::rejection;
use crate::support::{Strict, at_most, limiter, one_a_minute, request};

const fn is_send<T: Send>() {}
const fn is_clonable_and_shareable<T: Clone + Send + Sync + 'static>() {}

const _: () = {
    is_clonable_and_shareable::<OutboundLayer>();
    is_clonable_and_shareable::<OutboundLayer<Header>>();
    is_clonable_and_shareable::<Outbound<Strict, Header>>();
    is_send::<OutboundFuture<Strict, String>>();
};

#[tokio::test]
async fn ready_instance_is_called_and_rejection_calls_none() {
    let (limits, clock) = limiter();
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = RateLimitLayer::outbound(&limits, at_most(3)).layer(inner);

    for sent in [true, true, true, false, false] {
        let answer = service.ready().await.unwrap().call(request("ann")).await;
        assert_eq!(answer.is_ok(), sent);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    let denied = rejection(service.clone().oneshot(request("ann")).await);
    assert!(matches!(&denied, Rejection::Limited(_)));
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(60)));
    clock.advance(Duration::from_secs(60));
    assert!(service.clone().oneshot(request("ann")).await.is_ok());
}

#[tokio::test]
async fn waiting_request_calls_ready_service() {
    let (limits, clock) = limiter();
    let layer = RateLimitLayer::outbound(&limits, one_a_minute()).max_wait(Duration::from_secs(60));
    let mut service = layer.layer(Strict::default());

    assert!(service.ready().await.unwrap().call(request("ann")).await.is_ok());
    let mut waiting = pin!(service.ready().await.unwrap().call(request("ann")));
    assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
    clock.advance(Duration::from_secs(60));
    assert!(waiting.await.is_ok());
}

#[tokio::test]
async fn policy_is_owned_borrowed_or_named() {
    let policy = one_a_minute();
    let registry = PolicyRegistry::new().with(policy.clone());
    let limits = || {
        let limits = Limiter::in_process().clock(&ManualClock::new());
        limits.registry(&registry).build()
    };
    for layer in [
        RateLimitLayer::outbound(&limits(), &policy),
        RateLimitLayer::outbound(&limits(), policy.clone()),
        RateLimitLayer::outbound(&limits(), policy.name().to_owned()),
        RateLimitLayer::outbound(&limits(), policy.name().to_owned()),
    ] {
        let service = layer.layer(Strict::default());
        assert!(service.clone().oneshot(request("ann")).await.is_ok());
        let denied = rejection(service.oneshot(request("ann")).await);
        assert!(matches!(denied, Rejection::Limited(_)), "{denied}");
    }
}

#[tokio::test]
async fn layer_sets_keys_and_costs() {
    let (limits, _clock) = limiter();
    let service = RateLimitLayer::outbound(&limits, at_most(3))
        .key(key::header("x-api-key"))
        .cost(2)
        .layer(Strict::default());

    for (key, sent) in [("ann", true), ("ann", false), ("bob", true), ("bob", false)] {
        assert_eq!(service.clone().oneshot(request(key)).await.is_ok(), sent, "{key}");
    }
    assert_eq!(limits.peek(&at_most(3), "ann").await.unwrap().remaining(), 1);
    let misconfigured = RateLimitLayer::outbound(&limits, at_most(3)).cost(-1);
    let error = misconfigured
        .layer(Strict::default())
        .oneshot(request("ann"))
        .await;
    assert!(matches!(rejection(error), Rejection::Config(_)));
}

#[tokio::test]
async fn extractor_can_skip_and_reject() {
    let (limits, _clock) = limiter();
    let extractor = |request: &Request<String>| match request.uri().path() {
        "/health" => Extraction::Skip,
        "/closed" => Extraction::Reject(KeyRejection::new(StatusCode::FORBIDDEN, "closed")),
        path => Extraction::Key(path.to_owned().into()),
    };
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = RateLimitLayer::outbound(&limits, one_a_minute())
        .key(extractor)
        .layer(inner);

    let mut send = async |path: &str| {
        let request = Request::builder().uri(path).body(String::new()).unwrap();
        service.ready().await.unwrap().call(request).await
    };
    for _ in 0..3 {
        assert!(send("/health").await.is_ok());
        let refused = send("/closed").await.unwrap_err();
        assert_eq!(refused.downcast_ref::<KeyRejection>().unwrap().status(), 403);
        assert_eq!(refused.to_string(), "closed");
    }
    assert!(send("/").await.is_ok());
    assert!(rejection(send("/").await).is_limited());
    assert_eq!(calls.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn each_host_has_its_own_budget() {
    let (limits, _clock) = limiter();
    let service = RateLimitLayer::outbound(&limits, one_a_minute())
        .key(outbound::host())
        .layer(Strict::default());
    let send = async |uri: &str, host: Option<&str>| {
        let request = Request::builder().uri(uri);
        let request = host
            .into_iter()
            .fold(request, |request, host| request.header("host", host));
        let request = request.body(String::new()).unwrap();
        service.clone().oneshot(request).await
    };

    assert!(send("http://a.example/", None).await.is_ok());
    for (uri, host) in [
        ("http://A.example:80/x", None),
        ("https://user@a.example/", Some("b.example")),
        ("/x", Some("a.EXAMPLE:8080")),
        // A name that is written out to its root.
        ("http://a.example./", None),
        ("/x", Some("a.example.:80")),
    ] {
        assert!(rejection(send(uri, host).await).is_limited(), "{uri} {host:?}");
    }
    assert!(send("/", Some("b.example")).await.is_ok());
    assert!(send("http://[::1]:8080/", None).await.is_ok());
    assert!(rejection(send("/", Some("[::1]")).await).is_limited());
    for host in [None, Some("a b"), Some("")] {
        let refused = send("/", host).await.unwrap_err();
        assert_eq!(
            refused.downcast_ref::<KeyRejection>().unwrap().status(),
            400,
            "{host:?}"
        );
    }
}

#[tokio::test]
async fn unsent_request_releases_ready_slot() {
    let (limits, _clock) = limiter();
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::outbound(&limits, one_a_minute()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(Strict::default());

    let mut connections = vec![service; 3];
    let mut sent = Vec::new();
    for connection in &mut connections {
        let ready = tokio::time::timeout(Duration::from_secs(5), connection.ready());
        sent.push(ready.await.unwrap().unwrap().call(request("ann")).await.is_ok());
    }
    assert_eq!(sent, [true, false, false]);
}

#[tokio::test]
async fn request_that_leaves_queue_is_not_charged() {
    let (limits, clock) = limiter();
    let policy = Policy::token_bucket("slow")
        .capacity(1)
        .rate("1/s")
        .build()
        .unwrap();
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::outbound(&limits, policy.clone()).max_wait(Duration::from_secs(3_600)))
        .layer(ConcurrencyLimitLayer::new(1_000))
        .service(Strict::default());

    assert!(service.clone().oneshot(request("ann")).await.is_ok());
    for _ in 0..1_000 {
        let mut service = service.clone();
        let waiting = service.ready().await.unwrap().call(request("ann"));
        assert!(tokio::time::timeout(Duration::ZERO, waiting).await.is_err());
    }
    clock.advance(Duration::from_secs(1));
    let left = limits.peek(&policy, Key::global()).await.unwrap();
    assert_eq!(left.remaining(), 1);
    let sent = tokio::time::timeout(Duration::from_secs(5), service.oneshot(request("ann")));
    assert!(sent.await.unwrap().is_ok());
}

#[tokio::test]
async fn requests_are_sent_in_order_of_arrival() {
    let (limits, clock) = limiter();
    let policy = Policy::token_bucket("slow")
        .capacity(1)
        .rate("1/s")
        .build()
        .unwrap();
    let peer = crate::Peer::new(&clock);
    let service = RateLimitLayer::outbound(&limits, policy)
        .max_wait(Duration::from_secs(60))
        .layer(peer.clone());
    let mut waiting: Vec<_> = (0..5)
        .map(|number| {
            let request = Request::new(format!("{number}"));
            Box::pin(service.clone().oneshot(request))
        })
        .collect();
    for request in &mut waiting {
        let _ = tokio::time::timeout(Duration::ZERO, request).await;
    }
    let start = clock.now();
    for _ in 1..5 {
        clock.advance(Duration::from_secs(1));
        for request in waiting.iter_mut().skip(peer.received_at().len()) {
            if tokio::time::timeout(Duration::from_millis(50), request)
                .await
                .is_err()
            {
                break;
            }
        }
    }
    let at: Vec<_> = peer
        .received_at()
        .iter()
        .map(|at| at.since(start).as_secs())
        .collect();
    assert_eq!(at, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn request_with_late_permit_times_out_with_retry_after() {
    let (limits, clock) = limiter();
    let wait = Duration::from_secs(2);
    let service = RateLimitLayer::outbound(&limits, one_a_minute())
        .max_wait(wait)
        .layer(Strict::default());

    assert!(service.clone().oneshot(request("ann")).await.is_ok());
    let late = tokio::spawn(service.oneshot(request("ann")));
    tokio::task::yield_now().await;
    clock.advance(wait);
    let late = rejection(late.await.unwrap());
    assert!(matches!(late, Rejection::TimedOut { limit, .. } if limit == wait));
    assert_eq!(late.retry_after(), Some(Duration::from_secs(58)));
}

#[tokio::test]
async fn backpressure_and_errors_of_client_are_forwarded() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::outbound(&limits, at_most(10));
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
    let error = response.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "broken");
    assert!(outbound::rejection(&*error).is_none());
}

#[tokio::test]
async fn shadow_denial_is_attached_to_response() {
    let (limits, _clock) = limiter();
    let shadow = Policy::sliding_window("shadow")
        .limit(1)
        .window("1m")
        .enforcement(Enforcement::Shadow)
        .build()
        .unwrap();
    let service = RateLimitLayer::outbound(&limits, shadow).layer(Strict::default());
    for shown in [None, Some(true)] {
        let response = service.clone().oneshot(request("ann")).await.unwrap();
        let decision = response.extensions().get::<Decision>();
        assert_eq!(decision.map(Decision::would_deny), shown);
    }
}

#[tokio::test]
async fn decision_of_inner_layer_is_kept() {
    let (limits, _clock) = limiter();
    let layer = |name: &str| {
        let shadow = Policy::sliding_window(name).limit(1).window("1m");
        RateLimitLayer::outbound(&limits, shadow.enforcement(Enforcement::Shadow).build().unwrap())
    };
    let service = layer("outer").layer(layer("inner").layer(Strict::default()));
    service.clone().oneshot(request("ann")).await.unwrap();
    let response = service.oneshot(request("ann")).await.unwrap();
    let denied_by = response
        .extensions()
        .get::<Decision>()
        .and_then(Decision::denied_by);
    assert_eq!(denied_by.unwrap().policy().name(), "inner");
}

#[tokio::test]
async fn shutdown_ends_waits() {
    let (limits, _clock) = limiter();
    let service = RateLimitLayer::outbound(&limits, one_a_minute())
        .max_wait(Duration::from_secs(60))
        .layer(Strict::default());
    assert!(service.clone().oneshot(request("ann")).await.is_ok());
    let waiting = service.oneshot(request("ann"));
    let (error, ()) = tokio::join!(waiting, limits.shutdown(Duration::from_secs(5)));
    assert!(rejection(error).is_unavailable());
}
