//! Admission, waits and denials of requests under a concurrency limit.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use limiter_core::registry::PolicyRegistry;
use limiter_core::{Decision, Limiter, Policy, Rejection};
use limiter_tower::future::ConcurrencyLimitFuture;
use limiter_tower::key::{self, Extraction, KeyRejection};
use limiter_tower::typestate::WithKey;
use limiter_tower::{
    ConcurrencyLimit, ConcurrencyLimitLayer, PermitBody, RateLimitHeaders, RateLimitLayer, RequestLimits,
    ResponseConfig,
};
use tower::limit::ConcurrencyLimitLayer as TowerConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use super::support::{Strict, at_most, limiter, request, text};
use super::{Streams, answer, at_once, begin, poll_once, remaining};

const SECOND: Duration = Duration::from_secs(1);

const fn is_send<T: Send>() {}
const fn is_clonable_and_shareable<T: Clone + Send + Sync + 'static>() {}

const _: () = {
    is_clonable_and_shareable::<ConcurrencyLimitLayer>();
    is_clonable_and_shareable::<ConcurrencyLimitLayer<WithKey<key::Header>>>();
    is_clonable_and_shareable::<ConcurrencyLimit<Strict, key::Global>>();
    is_send::<ConcurrencyLimitFuture<Strict, String>>();
    is_send::<PermitBody<String>>();
};

async fn pending(_: Request<String>) -> Result<Response<String>, Infallible> {
    std::future::pending().await
}

#[tokio::test]
async fn each_key_has_its_own_concurrency() {
    let (limits, _clock) = limiter();
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = ConcurrencyLimitLayer::new(&limits, at_once(2))
        .key(key::header("x-api-key"))
        .layer(inner);
    let held = [(); 2].map(|()| answer(&mut service, request("ann")));
    assert!(held.iter().all(|response| response.status() == 200));
    assert_eq!(answer(&mut service, request("ann")).status(), 429);
    assert_eq!(answer(&mut service, request("bob")).status(), 200);
    assert_eq!(
        calls.load(Ordering::SeqCst),
        3,
        "a denied request does not call the service"
    );
    drop(held);
    assert_eq!(answer(&mut service, request("ann")).status(), 200);
}

#[tokio::test]
async fn denial_has_no_retry_after() {
    let (limits, _clock) = limiter();
    let mut service = ConcurrencyLimitLayer::new(&limits, at_once(1))
        .key(key::global())
        .layer(Streams::default());
    let held = answer(&mut service, request("ann"));
    assert_eq!(
        held.headers()["ratelimit-policy"],
        r#""flights";q=1;qu="concurrent-requests""#
    );
    assert_eq!(held.headers()["ratelimit"], r#""flights";r=0"#);

    let denied = answer(&mut service, request("bob"));
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    assert_eq!(denied.headers()["ratelimit"], r#""flights";r=0"#);
    assert!(!denied.headers().contains_key("retry-after"));
    assert!(denied.extensions().get::<Rejection>().unwrap().is_limited());
    assert!(!denied.extensions().get::<Decision>().unwrap().is_allowed());
    let (_, body) = denied.into_parts();
    assert!(body.held().is_none());

    let grpc = || {
        let mut request = request("bob");
        let grpc = "application/grpc".parse().unwrap();
        request.headers_mut().insert("content-type", grpc);
        request
    };
    let denied = answer(&mut service, grpc());
    assert_eq!(denied.status(), StatusCode::OK);
    assert_eq!(denied.headers()["grpc-status"], "8");
    assert_eq!(denied.headers()["grpc-message"], "too many requests at once");
    assert!(!denied.headers().contains_key("grpc-retry-pushback-ms"));
    drop(held);
}

/// The wait times out with and without a query to the store.
#[tokio::test]
async fn timed_out_wait_names_policy() {
    let (limits, clock) = limiter();
    let mut service = ConcurrencyLimitLayer::new(&limits, at_once(1))
        .key(key::global())
        .max_wait(SECOND)
        .layer(Streams::default());
    let held = begin(&mut service, request("ann")).1;
    assert!(held.is_ready());
    let [(first, _), (second, _), (third, _)] = [(); 3].map(|()| begin(&mut service, request("ann")));
    clock.advance(SECOND / 2);
    drop(held);
    let first = first.await.unwrap();
    assert_eq!(first.status(), 200);
    clock.advance(SECOND / 2);
    for (client, waiter) in [("third", third), ("second", second)] {
        let denied = waiter.await.unwrap();
        assert_eq!(denied.status(), 429, "{client}");
        assert_eq!(denied.headers()["ratelimit"], r#""flights";r=0"#, "{client}");
        let rejection = denied.extensions().get::<Rejection>().unwrap();
        assert!(
            matches!(rejection, Rejection::TimedOut { .. }),
            "{client}: {rejection:?}"
        );
        let denied_by = rejection.decision().and_then(Decision::denied_by).unwrap();
        assert_eq!(denied_by.policy().name(), "flights", "{client}");
        let (_, body) = denied.into_parts();
        let problem = body.collect().await.unwrap().to_bytes();
        let problem = String::from_utf8_lossy(&problem);
        assert!(
            problem.contains("too many requests at once"),
            "{client}: {problem}"
        );
        assert!(
            problem.contains(r#""violated-policies":["flights"]"#),
            "{client}: {problem}"
        );
    }
}

/// Fewer permits may remain than a request takes.
#[tokio::test]
async fn remaining_is_zero_if_cost_does_not_fit() {
    let (limits, _clock) = limiter();
    let mut service = ConcurrencyLimitLayer::new(&limits, at_once(3))
        .key(key::global())
        .cost(2)
        .layer(Strict::default());
    let response = answer(&mut service, request("ann"));
    assert_eq!(response.headers()["ratelimit"], r#""flights";r=0"#);
    let patient = ConcurrencyLimitLayer::new(&limits, at_once(3))
        .key(key::header("x-api-key"))
        .max_wait(SECOND)
        .cost(2)
        .layer(Streams::default());
    let response = patient.oneshot(request("ann")).await.unwrap();
    assert_eq!(response.headers()["ratelimit"], r#""flights";r=0"#);
}

#[tokio::test]
async fn denial_by_key_list_names_policy() {
    let (limits, _clock) = limiter();
    let policy = Policy::concurrency("flights").max(1).deny_keys(["ann"]);
    let answers = ResponseConfig::new().with_origin_header(http::HeaderName::from_static("x-limiter"));
    let mut service = ConcurrencyLimitLayer::new(&limits, policy.build().unwrap())
        .key(key::header("x-api-key"))
        .responses(&answers)
        .layer(Strict::default());
    let denied = answer(&mut service, request("ann"));
    assert_eq!(denied.status(), StatusCode::FORBIDDEN);
    assert_eq!(denied.headers()["x-limiter"], "key-list");
    assert!(!denied.extensions().get::<Decision>().unwrap().is_allowed());
    assert!(text(denied).await.contains("the request is not permitted"));
}

#[tokio::test]
async fn answers_are_shared_with_other_layers() {
    let (limits, _clock) = limiter();
    let answers = ResponseConfig::new()
        .headers(RateLimitHeaders::None)
        .plain_text()
        .respond_with(|rejection: &Rejection, response| {
            response.map(|_| format!("own: {}", rejection.diagnostic()))
        });
    let mut service = ConcurrencyLimitLayer::new(&limits, at_once(1))
        .key(key::global())
        .responses(&answers)
        .layer(Strict::default());
    let held = answer(&mut service, request("ann"));
    assert!(!held.headers().contains_key("ratelimit"));
    let denied = answer(&mut service, request("ann"));
    assert_eq!(denied.headers()["content-type"], "text/plain; charset=utf-8");
    assert!(text(denied).await.starts_with("own: rate limit reached: flights"));

    let mut service = RateLimitLayer::new(&limits, at_most(1))
        .key(key::global())
        .responses(&answers)
        .layer(Strict::default());
    assert!(
        !answer(&mut service, request("ann"))
            .headers()
            .contains_key("ratelimit")
    );
    let denied = answer(&mut service, request("ann"));
    assert!(text(denied).await.starts_with("own: rate limit reached: at-most"));
}

#[tokio::test]
async fn extractors_can_skip_reject_and_defer_limits() {
    let (limits, _clock) = limiter();
    let policy = at_once(3);
    let terms = policy.clone();
    let extractor = move |request: &Request<String>| match request.uri().path() {
        "/health" => Extraction::Skip,
        "/closed" => Extraction::Reject(KeyRejection::new(StatusCode::FORBIDDEN, "closed")),
        path => {
            let terms = RequestLimits::new(&terms, path.to_owned()).cost(2);
            Extraction::Pending(key::PendingKey::new(async move {
                tokio::task::yield_now().await;
                terms.into()
            }))
        }
    };
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = ConcurrencyLimitLayer::new(&limits, at_once(1))
        .key(extractor)
        .layer(inner);
    let mut held = Vec::new();
    for (path, expected) in [
        ("/", 200),
        ("/", 429),
        ("/closed", 403),
        ("/health", 200),
        ("/health", 200),
        ("/other", 200),
    ] {
        let request = Request::get(path).body(String::new()).unwrap();
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), expected, "{path}");
        held.push(response);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    assert_eq!(remaining(&limits, &policy, "/").await, 1);
}

#[tokio::test]
async fn policies_are_found_by_name_and_by_request() {
    let registry = PolicyRegistry::new().with(at_once(1));
    let limits = Limiter::in_process().registry(&registry).build();
    let mut service = ConcurrencyLimitLayer::new(&limits, "flights")
        .key(key::global())
        .layer(Strict::default());
    let held = answer(&mut service, request("ann"));
    assert_eq!(answer(&mut service, request("ann")).status(), 429);
    drop(held);
    let mut unknown = ConcurrencyLimitLayer::new(&limits, "unknown")
        .key(key::global())
        .layer(Strict::default());
    let response = answer(&mut unknown, request("ann"));
    assert_eq!(response.status(), 200);
    assert!(response.body().held().is_none());

    let [small, large] = [at_once(1), Policy::concurrency("many").max(9).build().unwrap()];
    let tiers = move |request: &Request<String>| {
        if request.uri() == "/many" {
            large.clone()
        } else {
            small.clone()
        }
    };
    let mut service = ConcurrencyLimitLayer::new(&limits, tiers)
        .key(key::header("x-api-key"))
        .with_decision_extension()
        .layer(Strict::default());
    let mut request_for_many = request("ann");
    *request_for_many.uri_mut() = "/many".parse().unwrap();
    assert_eq!(text(answer(&mut service, request_for_many)).await, "Some(8)");
    assert_eq!(text(answer(&mut service, request("ann"))).await, "Some(0)");
}

/// Each layer rejects a policy of the other kind, and the error names the right layer.
#[tokio::test]
async fn policy_of_the_wrong_kind_is_rejected_with_a_remedy() {
    let (limits, _clock) = limiter();
    let rejection_of = |response: &Response<_>| {
        let rejection = response.extensions().get::<Rejection>().unwrap();
        assert!(matches!(rejection, Rejection::Config(_)));
        (response.status().as_u16(), rejection.diagnostic().to_string())
    };
    let inner = Strict::default();
    let calls = inner.calls();
    let mut rates = RateLimitLayer::new(&limits, at_once(1))
        .key(key::global())
        .layer(inner.clone());
    let response = answer(&mut rates, request("ann"));
    let (status, text) = rejection_of(&response.map(drop));
    assert_eq!(status, 500);
    assert!(text.contains("`ConcurrencyLimitLayer`"), "{text}");

    let mut flights = ConcurrencyLimitLayer::new(&limits, at_most(1))
        .key(key::global())
        .layer(inner.clone());
    let (status, text) = rejection_of(&answer(&mut flights, request("ann")).map(drop));
    assert_eq!(status, 500);
    assert!(text.contains("expected a concurrency policy"), "{text}");

    let both = [at_once(1), Policy::concurrency("other").max(1).build().unwrap()];
    let mut flights = ConcurrencyLimitLayer::new(&limits, both)
        .key(key::global())
        .layer(inner);
    let (status, text) = rejection_of(&answer(&mut flights, request("ann")).map(drop));
    assert_eq!(status, 500);
    assert!(
        text.contains("nest one `ConcurrencyLimitLayer` for each policy"),
        "{text}"
    );
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn requests_wait_in_the_order_of_their_arrival() {
    let (limits, clock) = limiter();
    let service = ConcurrencyLimitLayer::new(&limits, at_once(1))
        .key(key::global())
        .max_wait(10 * SECOND)
        .layer(Strict::default());
    let mut held = service.clone().oneshot(request("ann")).await.unwrap();
    let mut waiting: Vec<_> = (0..3)
        .map(|_| Box::pin(service.clone().oneshot(request("ann"))))
        .collect();
    for response in &mut waiting {
        assert!(poll_once(response.as_mut()).is_pending());
    }
    for response in waiting.drain(..) {
        drop(held);
        held = tokio::time::timeout(SECOND, response).await.unwrap().unwrap();
        assert_eq!(held.status(), 200);
    }
    let late = service.clone().oneshot(request("ann"));
    let (late, ()) = tokio::join!(late, async { clock.advance(10 * SECOND) });
    assert_eq!(late.unwrap().status(), 429);

    let mut hurried = request("ann");
    hurried
        .headers_mut()
        .insert("grpc-timeout", "1S".parse().unwrap());
    let late = tokio::time::timeout(5 * SECOND, service.oneshot(hurried));
    let (late, ()) = tokio::join!(late, async { clock.advance(SECOND) });
    assert_eq!(late.unwrap().unwrap().status(), 429);
}

#[tokio::test]
async fn denial_and_rejection_release_ready_slot() {
    let (limits, _clock) = limiter();
    let held = limits.acquire_concurrency(&at_once(1), "ann").await.unwrap();
    let service = ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(&limits, at_once(1)).key(key::header("x-api-key")))
        .layer(TowerConcurrencyLimitLayer::new(1))
        .service(Strict::default());
    let mut connections = vec![service; 4];
    for (place, connection) in connections.iter_mut().enumerate() {
        let (request_for_many, expected) = match place % 2 {
            0 => (Request::new(String::new()), 400),
            _ => (request("ann"), 429),
        };
        let ready = tokio::time::timeout(5 * SECOND, connection.ready());
        let response = ready.await.unwrap().unwrap().call(request_for_many);
        assert_eq!(response.await.unwrap().status(), expected);
    }
    drop(held);
}

#[tokio::test]
async fn backpressure_and_errors_of_inner_service_are_forwarded() {
    let (limits, _clock) = limiter();
    let layer = ConcurrencyLimitLayer::new(&limits, at_once(1)).key(key::global());
    let (mut service, mut inner) =
        tower_test::mock::spawn_layer::<Request<String>, Response<String>, _>(layer);
    inner.allow(0);
    assert!(service.poll_ready().is_pending());
    inner.allow(1);
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
    let response = tokio::spawn(service.call(request("ann")));
    let next_request = tokio::time::timeout(5 * SECOND, inner.next_request());
    let (_, respond) = next_request.await.unwrap().unwrap();
    respond.send_error("broken");
    assert_eq!(response.await.unwrap().unwrap_err().to_string(), "broken");
}

/// Requests are cancelled in the inner service, during the wait, and during the key extraction. A
/// leaked permit would deny the next request, a leaked queue place would reject it, and a leaked
/// slot would keep the service from being ready.
#[tokio::test]
async fn ten_thousand_cancelled_requests_leak_nothing() {
    let limits = Limiter::in_process().max_keys(2).max_waiting(1).build();
    let policy = at_once(1);
    let by_api_key = key::from_async(async |head: http::request::Parts| {
        if head.uri == "/slow" {
            std::future::pending::<()>().await;
        }
        Some(limiter_core::Key::from(head.headers.get("x-api-key")?.as_bytes()).into_owned())
    });
    let layer = ConcurrencyLimitLayer::new(&limits, &policy).key(by_api_key);
    let service = ServiceBuilder::new().layer(TowerConcurrencyLimitLayer::new(3));
    let mut patient = service
        .clone()
        .layer(layer.clone().max_wait(60 * SECOND))
        .layer(TowerConcurrencyLimitLayer::new(3))
        .service(service_fn(pending));
    for number in 0..10_000 {
        let (flying, polled) = begin(&mut patient, request("ann"));
        assert!(polled.is_pending());
        assert_eq!(remaining(&limits, &policy, "ann").await, 0);
        let mut other = patient.clone();
        let (waiting, polled) = begin(&mut other, request("ann"));
        assert!(polled.is_pending());
        let mut slow = request("ann");
        *slow.uri_mut() = "/slow".parse().unwrap();
        let mut other = patient.clone();
        let (extracting, polled) = begin(&mut other, slow);
        assert!(polled.is_pending());
        drop(extracting);
        if number % 2 == 0 {
            drop(waiting);
            drop(flying);
        } else {
            // The permit is passed to a waiter that is dropped before it observes this.
            drop(flying);
            drop(waiting);
        }
        assert_eq!(remaining(&limits, &policy, "ann").await, 1, "{number}");
    }
}
