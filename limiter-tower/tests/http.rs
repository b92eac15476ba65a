//! The requests and responses that HTTP clients, handlers and outer layers observe, with axum's
//! routers and bare services.
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

#[path = "http/answers.rs"]
mod answers;
#[cfg(feature = "axum")]
#[path = "http/keys.rs"]
mod keys;
#[path = "http/nested.rs"]
mod nested;
mod support;

use std::pin::{Pin, pin};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::routing::get;
use axum::{Extension, Router};
use http::{Method, StatusCode};
use limiter_core::registry::PolicyRegistry;
use limiter_core::{
    Decision, Enforcement, Limiter, ManualClock, OnDenial, OnStoreFailure, Origin, Policy, Rejection,
};
use limiter_tower::{ConcurrencyLimitLayer, RateLimitLayer, ResponseConfig, key};
use support::{Strict, at_most, limiter, one_a_minute, request, text};
use tower::{Layer, ServiceExt};

/// Polls once.
macro_rules! poll {
    ($future:expr) => {
        std::future::poll_fn(|context| std::task::Poll::Ready(Pin::new($future).poll(context))).await
    };
}

fn get_as(path: &str, api_key: &str) -> Request {
    Request::get(path)
        .header("x-api-key", api_key)
        .body(Body::empty())
        .unwrap()
}

#[tokio::test]
async fn retry_after_is_rounded_up_and_never_zero() {
    let (limits, clock) = limiter();
    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(key::global())
        .layer(Strict::default());
    let retry_after = async || {
        let denied = service.clone().oneshot(request("ann")).await.unwrap();
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        denied.headers()["retry-after"].to_str().unwrap().to_owned()
    };

    assert_eq!(
        service.clone().oneshot(request("ann")).await.unwrap().status(),
        StatusCode::OK
    );
    assert_eq!(retry_after().await, "60");
    clock.advance(Duration::from_micros(999_999));
    assert_eq!(retry_after().await, "60", "59.000001 s left");
    clock.advance(Duration::from_micros(1));
    assert_eq!(retry_after().await, "59", "59 s left");
    clock.advance(Duration::from_micros(58_999_999));
    assert_eq!(retry_after().await, "1", "1 µs left");
    clock.advance(Duration::from_micros(1));
    assert_eq!(
        service.clone().oneshot(request("ann")).await.unwrap().status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn plain_text_denial_is_one_sentence() {
    let (limits, _clock) = limiter();
    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(key::global())
        .responses(&ResponseConfig::new().plain_text())
        .with_decision_extension()
        .layer(Strict::default());

    assert_eq!(
        text(service.clone().oneshot(request("ann")).await.unwrap()).await,
        "Some(0)"
    );
    let denied = service.oneshot(request("ann")).await.unwrap();
    assert_eq!(denied.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(text(denied).await, "rate limit reached, retry after 60 seconds");
}

#[tokio::test]
async fn handler_and_outer_layers_receive_decision() {
    let (limits, _clock) = limiter();
    let service = RateLimitLayer::new(&limits, at_most(2))
        .key(key::header("x-api-key"))
        .with_decision_extension()
        .layer(Strict::default());

    for remaining in [1, 0] {
        let response = service.clone().oneshot(request("ann")).await.unwrap();
        let decision = response.extensions().get::<Decision>().unwrap();
        assert!(decision.is_allowed());
        assert_eq!(decision.remaining(), remaining);
        assert!(response.extensions().get::<Rejection>().is_none());
        assert_eq!(
            text(response).await,
            format!("Some({remaining})"),
            "the request contains the decision, too"
        );
    }
    let denied = service.oneshot(request("ann")).await.unwrap();
    assert_eq!(
        denied.extensions().get::<Decision>().map(Decision::is_allowed),
        Some(false)
    );
    assert!(
        denied
            .extensions()
            .get::<Rejection>()
            .is_some_and(Rejection::is_limited)
    );
}

#[tokio::test]
async fn innermost_decision_of_nested_layers_is_visible() {
    let (limits, _clock) = limiter();
    let inner = RateLimitLayer::new(&limits, one_a_minute())
        .key(key::global())
        .with_decision_extension()
        .layer(Strict::default());
    let service = RateLimitLayer::new(&limits, at_most(5))
        .key(key::global())
        .with_decision_extension()
        .layer(inner);

    assert_eq!(
        text(service.clone().oneshot(request("ann")).await.unwrap()).await,
        "Some(0)"
    );
    let denied = service.oneshot(request("ann")).await.unwrap();
    assert_eq!(
        denied.extensions().get::<Decision>().map(Decision::is_allowed),
        Some(false)
    );
}

#[tokio::test]
async fn router_layer_covers_all_requests_and_route_layer_matched_ones() {
    let (limits, _clock) = limiter();
    let stricter = Policy::sliding_window("upload")
        .limit(1)
        .window("1m")
        .build()
        .unwrap();
    let app: Router = Router::new()
        .route("/upload", get(async || "stored"))
        .route_layer(
            RateLimitLayer::new(&limits, stricter)
                .key(key::header("x-api-key"))
                .with_decision_extension(),
        )
        .route(
            "/search",
            get(async |Extension(decision): Extension<Decision>| decision.remaining().to_string()),
        )
        .layer(
            RateLimitLayer::new(&limits, at_most(4))
                .key(key::header("x-api-key"))
                .with_decision_extension(),
        );
    let answer = async |path: &str, api_key: &str| {
        let response = app.clone().oneshot(get_as(path, api_key)).await.unwrap();
        (response.status().as_u16(), text(response).await)
    };

    assert_eq!(answer("/upload", "ann").await, (200, "stored".into()));
    assert_eq!(answer("/upload", "ann").await.0, 429);
    assert_eq!(
        answer("/search", "ann").await,
        (200, "1".into()),
        "the outer layer was charged three times"
    );
    assert_eq!(
        answer("/nowhere", "ann").await.0,
        404,
        "the outer layer covers the fallback"
    );
    assert_eq!(answer("/search", "ann").await.0, 429);
    assert_eq!(answer("/search", "bob").await.0, 200);
}

#[tokio::test]
async fn extension_set_by_outer_layer_is_the_key() {
    #[derive(Clone)]
    struct Claims {
        sub: String,
    }
    async fn authenticate(mut request: Request, next: Next) -> axum::response::Response {
        if let Some(user) = request
            .headers()
            .get("x-user")
            .and_then(|user| user.to_str().ok())
        {
            let claims = Claims { sub: user.to_owned() };
            request.extensions_mut().insert(claims);
        }
        next.run(request).await
    }
    let (limits, _clock) = limiter();
    let by_user = key::extension(|claims: &Claims| &claims.sub);
    let app = |by_user| {
        Router::<()>::new()
            .route("/", get(async || "hello"))
            .layer(RateLimitLayer::new(&limits, one_a_minute()).key(by_user))
            .layer(middleware::from_fn(authenticate))
    };
    let strict = app(by_user.clone());
    let open = app(by_user.clone().or_skip());
    let closed = app(by_user.or_reject(StatusCode::UNAUTHORIZED));
    let status = async |app: &Router, user: Option<&str>| {
        let request = user
            .into_iter()
            .fold(Request::get("/"), |request, user| request.header("x-user", user));
        app.clone()
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap()
            .status()
            .as_u16()
    };

    assert_eq!(status(&strict, Some("ann")).await, 200);
    assert_eq!(status(&strict, Some("ann")).await, 429);
    assert_eq!(status(&strict, Some("bob")).await, 200);
    assert_eq!(
        status(&strict, None).await,
        500,
        "the layer that sets it is missing"
    );
    assert_eq!((status(&open, None).await, status(&open, None).await), (200, 200));
    assert_eq!(status(&closed, None).await, 401);
}

#[tokio::test]
async fn request_without_header_is_rejected_with_reason() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, one_a_minute()).key(key::header("x-api-key"));
    let refused = async |layer: RateLimitLayer<_>| {
        let service = layer.layer(Strict::default());
        service
            .oneshot(axum::http::Request::new(String::new()))
            .await
            .unwrap()
    };
    let problem = refused(layer.clone()).await;
    assert_eq!(problem.status(), StatusCode::BAD_REQUEST);
    assert_eq!(problem.headers()["content-type"], "application/problem+json");
    assert_eq!(
        text(problem).await,
        r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"header `x-api-key` is required"}"#
    );
    let plain = refused(layer.responses(&ResponseConfig::new().plain_text())).await;
    assert_eq!(plain.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(text(plain).await, "header `x-api-key` is required");
}

#[tokio::test]
async fn closures_can_return_options_and_results() {
    let (limits, _clock) = limiter();
    let optional = |request: &axum::http::Request<String>| {
        request
            .headers()
            .get("x-api-key")?
            .to_str()
            .ok()
            .map(str::to_owned)
    };
    let fallible = |request: &axum::http::Request<String>| match *request.method() {
        Method::GET => Ok(7_u64),
        _ => Err(StatusCode::METHOD_NOT_ALLOWED),
    };
    let post = axum::http::Request::post("/").body(String::new()).unwrap();

    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(optional)
        .layer(Strict::default());
    assert_eq!(
        service.clone().oneshot(request("ann")).await.unwrap().status(),
        200
    );
    assert_eq!(
        service.clone().oneshot(request("ann")).await.unwrap().status(),
        429
    );
    assert_eq!(service.oneshot(post.clone()).await.unwrap().status(), 400);
    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(fallible)
        .layer(Strict::default());
    assert_eq!(
        service.clone().oneshot(request("ann")).await.unwrap().status(),
        200
    );
    assert_eq!(service.oneshot(post).await.unwrap().status(), 405);
}

#[tokio::test]
async fn cost_is_charged_and_impossible_cost_is_rejected() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, at_most(5))
        .key(key::global())
        .with_decision_extension();
    let response = async |cost: i32| {
        layer
            .clone()
            .cost(cost)
            .layer(Strict::default())
            .oneshot(request("ann"))
            .await
            .unwrap()
    };

    assert_eq!(text(response(3).await).await, "Some(2)");
    assert_eq!(response(3).await.status(), 429);
    assert_eq!(
        text(response(0).await).await,
        "Some(2)",
        "a cost of zero is a peek"
    );
    let never = response(6).await;
    assert_eq!(never.status(), 429);
    assert!(
        !never.headers().contains_key("retry-after"),
        "a retry never succeeds"
    );
    let unusable = response(-1).await;
    assert_eq!(unusable.status(), 500);
    assert!(text(unusable).await.contains("the rate limiter is misconfigured"));
}

#[tokio::test]
async fn store_outage_follows_failure_mode_of_policy() {
    // A store that is full rejects every new key.
    let full = Limiter::in_process().max_keys(0).build();
    let response = async |answer: OnStoreFailure| {
        let policy = Policy::token_bucket("api")
            .capacity(1)
            .rate(1)
            .on_store_failure(answer)
            .build()
            .unwrap();
        let service = RateLimitLayer::new(&full, policy)
            .key(key::global())
            .layer(Strict::default());
        service.oneshot(request("ann")).await.unwrap()
    };

    let unavailable = response(OnStoreFailure::Error).await;
    assert_eq!(unavailable.status(), 503);
    assert!(
        !unavailable.headers().contains_key("retry-after"),
        "the end of the outage is unknown"
    );
    assert!(
        unavailable
            .extensions()
            .get::<Rejection>()
            .is_some_and(Rejection::is_unavailable)
    );
    assert_eq!(
        text(unavailable).await,
        r#"{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"the rate limiter is unavailable"}"#
    );

    let allowed = response(OnStoreFailure::FailOpen).await;
    assert_eq!(allowed.status(), 200);
    assert_eq!(
        allowed.extensions().get::<Decision>().map(Decision::origin),
        Some(Origin::FailedOpen)
    );

    let denied = response(OnStoreFailure::FailClosed).await;
    assert_eq!(denied.status(), 503, "no limit was reached");
    assert!(
        !denied.headers().contains_key("retry-after"),
        "the time is unknown"
    );
}

#[tokio::test]
async fn requests_after_shutdown_get_503() {
    let (limits, _clock) = limiter();
    limits.shutdown(Duration::ZERO).await;
    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(key::global())
        .layer(Strict::default());
    assert_eq!(
        service.oneshot(request("ann")).await.unwrap().status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
}

/// A policy that degrades allows every request, and the handler sees which requests would be
/// denied.
#[tokio::test]
async fn handler_receives_decision_of_degraded_request() {
    let (limits, _clock) = limiter();
    let policy = Policy::sliding_window("search").limit(1).window("1m");
    let policy = policy.on_denial(OnDenial::Degrade).build().unwrap();
    let layer = RateLimitLayer::new(&limits, policy).key(key::header("x-api-key"));
    let search = async |decision: Option<Extension<Decision>>| match decision {
        Some(Extension(decision)) if decision.is_degraded() => "from the cache",
        _ => "all of it",
    };
    let app = Router::new().route("/", get(search)).layer(layer);
    for expected in ["all of it", "from the cache", "from the cache"] {
        let response = app.clone().oneshot(get_as("/", "ann")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(text(response).await, expected);
    }
}

/// The inner layer allows the request and shows its decision.
#[tokio::test]
async fn handler_receives_degraded_decision_of_outer_layer() {
    let (limits, _clock) = limiter();
    let policy = Policy::sliding_window("search").limit(1).window("1m");
    let policy = policy.on_denial(OnDenial::Degrade).build().unwrap();
    let outer = RateLimitLayer::new(&limits, policy).key(key::header("x-api-key"));
    let search = async |Extension(decision): Extension<Decision>| match decision.is_degraded() {
        true => "from the cache",
        false => "all of it",
    };
    let by_rate = RateLimitLayer::new(&limits, at_most(9)).key(key::header("x-api-key"));
    let flights = Policy::concurrency("flights").max(9).build().unwrap();
    let in_flight = ConcurrencyLimitLayer::new(&limits, flights).key(key::global());
    let routes = Router::new()
        .route("/rate", get(search))
        .layer(by_rate.with_decision_extension());
    let held = Router::new()
        .route("/flights", get(search))
        .layer(in_flight.with_decision_extension());
    let app = routes.merge(held).layer(outer);
    for (path, expected) in [
        ("/rate", "all of it"),
        ("/rate", "from the cache"),
        ("/flights", "from the cache"),
    ] {
        let response = app.clone().oneshot(get_as(path, "ann")).await.unwrap();
        assert_eq!(text(response).await, expected, "{path}");
    }
}

#[tokio::test]
async fn request_waits_if_policy_waits_on_denial() {
    let (limits, clock) = limiter();
    let policy = Policy::token_bucket("search").capacity(1).rate(1);
    let policy = policy
        .on_denial(OnDenial::Wait(Duration::from_secs(1)))
        .build()
        .unwrap();
    let service = RateLimitLayer::new(&limits, policy)
        .key(key::global())
        .layer(Strict::default());
    assert_eq!(
        service.clone().oneshot(request("ann")).await.unwrap().status(),
        200
    );
    let (second, third, ()) = tokio::join!(
        service.clone().oneshot(request("ann")),
        service.clone().oneshot(request("ann")),
        async {
            tokio::task::yield_now().await;
            clock.advance(Duration::from_secs(1));
        }
    );
    assert_eq!(second.unwrap().status(), 200);
    assert_eq!(
        third.unwrap().status(),
        429,
        "a second waiter would need two seconds"
    );
}

#[tokio::test]
async fn deny_listed_key_is_forbidden_unless_in_shadow_mode() {
    let (limits, _clock) = limiter();
    let policy = Policy::token_bucket("search").capacity(1).rate(1);
    let policy = policy.deny_keys(["eve"]).allow_keys(["probe-*"]).build().unwrap();
    let service = RateLimitLayer::new(&limits, policy)
        .key(key::header("x-api-key"))
        .layer(Strict::default());
    let status = async |key: &'static str| service.clone().oneshot(request(key)).await.unwrap().status();
    let forbidden = service.clone().oneshot(request("eve")).await.unwrap();
    assert_eq!(forbidden.status(), 403);
    assert!(!forbidden.headers().contains_key("retry-after"));
    for _ in 0..3 {
        assert_eq!(status("probe-7").await, 200);
    }
    assert_eq!(
        (status("ann").await, status("ann").await),
        (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS)
    );
    limits.set_enforcement(Enforcement::Shadow);
    assert_eq!(
        (status("ann").await, status("eve").await),
        (StatusCode::OK, StatusCode::OK)
    );
}

#[tokio::test]
async fn registry_policy_applies_by_name_and_can_change() {
    let clock = ManualClock::new();
    let registry = PolicyRegistry::new();
    let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
    let service = RateLimitLayer::new(&limits, "api")
        .key(key::global())
        .layer(Strict::default());
    let status = async || service.clone().oneshot(request("ann")).await.unwrap().status();

    assert_eq!(status().await, StatusCode::OK, "not configured yet");
    assert_eq!(registry.not_configured(), 1);
    let sized = |capacity: u32| {
        Policy::funnel("api")
            .capacity(capacity)
            .rate("1/h")
            .build()
            .unwrap()
    };
    registry.set(sized(1));
    assert_eq!(status().await, StatusCode::OK);
    assert_eq!(status().await, StatusCode::TOO_MANY_REQUESTS);
    registry.set(sized(2));
    assert_eq!(status().await, StatusCode::OK);
    assert_eq!(status().await, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn requests_behind_a_paced_funnel_leave_evenly() {
    let (limits, clock) = limiter();
    let policy = Policy::funnel("paced")
        .capacity(2)
        .rate("1/s")
        .paced()
        .build()
        .unwrap();
    let service = RateLimitLayer::new(&limits, policy)
        .key(key::global())
        .layer(Strict::default());
    let first = service.clone().oneshot(request("ann")).await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    let mut second = pin!(service.clone().oneshot(request("ann")));
    assert!(poll!(&mut second).is_pending());
    clock.advance(Duration::from_micros(999_999));
    assert!(poll!(&mut second).is_pending());
    clock.advance(Duration::from_micros(1));
    assert_eq!(second.await.unwrap().status(), StatusCode::OK);
}
