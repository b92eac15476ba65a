//! Responses of HTTP layers to allowed and to denied requests.
#![expect(clippy::indexing_slicing, reason = "a test ends that way")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response};
use limiter_core::penalty::Penalty;
use limiter_core::{Decision, Enforcement, Origin, Policy, Rejection};
use limiter_tower::typestate::WithKey;
use limiter_tower::{
    ConcurrencyLimitLayer, LoadShedLayer, RateLimitHeaders, RateLimitLayer, RequestLimits, ResponseConfig,
    key,
};
use serde_json::{Value, json};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{Strict, at_most, limiter, one_a_minute, request, text};

async fn headers<K, P>(layer: &RateLimitLayer<K, P>) -> (u16, HeaderMap)
where
    K: limiter_tower::typestate::HasKey + Clone,
    P: limiter_tower::typestate::RequestOptions<K::Extractor, Extractor: key::KeyExtractor<String>> + Clone,
{
    let service = layer.clone().layer(Strict::default());
    let response = service.oneshot(request("ann")).await.unwrap();
    (response.status().as_u16(), response.headers().clone())
}

fn by_key(policy: Policy, limits: &limiter_core::Limiter) -> RateLimitLayer<WithKey<key::Header>> {
    RateLimitLayer::new(limits, policy).key(key::header("x-api-key"))
}

#[tokio::test]
async fn allowed_and_denied_responses_have_limit_headers() {
    let (limits, clock) = limiter();
    let layer = by_key(at_most(2), &limits);
    for (status, shown) in [
        (200, r#""at-most";r=1;t=60"#),
        (200, r#""at-most";r=0;t=40"#),
        (429, r#""at-most";r=0;t=20"#),
    ] {
        let (got, headers) = headers(&layer).await;
        assert_eq!(got, status);
        assert_eq!(headers["ratelimit"], shown);
        assert_eq!(headers["ratelimit-policy"], r#""at-most";q=2;w=60"#);
        assert_eq!(headers.contains_key("retry-after"), status == 429);
        clock.advance(Duration::from_secs(20));
    }
}

#[tokio::test]
async fn disabled_headers_leave_retry_after_on_denials() {
    let (limits, _clock) = limiter();
    let layer =
        by_key(one_a_minute(), &limits).responses(&ResponseConfig::new().headers(RateLimitHeaders::None));
    assert!(headers(&layer).await.1.is_empty());
    let (status, denied) = headers(&layer).await;
    assert_eq!((status, denied["retry-after"].to_str().unwrap()), (429, "60"));
    assert_eq!(denied.len(), 2, "retry-after and content-type only: {denied:?}");
}

/// Each of several nested layers adds its limits, also if another layer denies.
#[tokio::test]
async fn each_layer_adds_its_limits() {
    let (limits, _clock) = limiter();
    let (inner, outer) = (by_key(one_a_minute(), &limits), by_key(at_most(5), &limits));
    let service = outer.layer(inner.layer(Strict::default()));
    for (status, expected) in [
        (200, [r#""one-a-minute";r=0;t=60"#, r#""at-most";r=4;t=60"#]),
        (429, [r#""one-a-minute";r=0;t=60"#, r#""at-most";r=3;t=60"#]),
    ] {
        let response = service.clone().oneshot(request("ann")).await.unwrap();
        assert_eq!(response.status(), status);
        let shown: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
        assert_eq!(shown, expected);
    }
}

/// The status, and whether the response has no body.
async fn answer_of<S, B>(service: S, request: http::Request<String>) -> (u16, bool)
where
    S: Service<http::Request<String>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body,
{
    let answer = service.oneshot(request).await.unwrap();
    (answer.status().as_u16(), answer.body().is_end_stream())
}

/// HTTP/2 clients reset the stream of a response to HEAD that has a body.
#[tokio::test]
async fn response_to_head_has_no_body() {
    let (limits, _clock) = limiter();
    let flights = Policy::concurrency("flights").max(1).build().unwrap();
    let _held = limits.acquire_concurrency(&flights, "ann").await.unwrap();
    let _ = limits.check(&one_a_minute(), "ann").await.unwrap();
    let plain = ResponseConfig::new()
        .respond_with(|_: &Rejection, response: Response<Bytes>| response.map(|_| "a page"));
    let by_header = || key::header("x-api-key");
    let rate = RateLimitLayer::new(&limits, one_a_minute()).key(by_header());
    let custom = rate.clone().responses(&plain);
    let flights = ConcurrencyLimitLayer::new(&limits, flights).key(by_header());
    let shed = LoadShedLayer::new(0);
    for (name, expected) in [("ann", [429, 429, 429, 503]), ("", [400, 400, 400, 503])] {
        let head = || {
            let request = http::Request::head("/").header("x-api-key", name);
            request.body(String::new()).unwrap()
        };
        let answers = [
            answer_of(rate.layer(Strict::default()), head()).await,
            answer_of(custom.layer(Strict::default()), head()).await,
            answer_of(flights.layer(Strict::default()), head()).await,
            answer_of(shed.layer(Strict::default()), head()).await,
        ];
        assert_eq!(answers, expected.map(|status| (status, true)), "{name:?}");
    }
}

#[tokio::test]
async fn denial_is_a_problem_that_names_the_policies() {
    let (limits, _clock) = limiter();
    let service = by_key(one_a_minute(), &limits).layer(Strict::default());
    let _ = service.clone().oneshot(request("ann")).await.unwrap();
    let denied = service.oneshot(request("ann")).await.unwrap();
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    let problem: Value = serde_json::from_str(&text(denied).await).unwrap();
    assert_eq!(
        problem,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "rate limit reached, retry after 60 seconds",
            "violated-policies": ["one-a-minute"],
        })
    );
}

#[tokio::test]
async fn custom_response_has_headers_and_rejection() {
    let (limits, _clock) = limiter();
    let layer = by_key(one_a_minute(), &limits).responses(&ResponseConfig::new().respond_with(
        |rejection: &Rejection, response: Response<Bytes>| {
            assert_eq!(response.status(), rejection.http_status());
            response.map(|_problem| format!("own: {}", rejection.client_message()))
        },
    ));
    let service = layer.layer(Strict::default());
    let allowed = service.clone().oneshot(request("ann")).await.unwrap();
    assert_eq!(text(allowed).await, "None", "not for an allowed request");
    let denied = service.oneshot(request("ann")).await.unwrap();
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["retry-after"], "60");
    assert_eq!(denied.headers()["ratelimit"], r#""one-a-minute";r=0;t=60"#);
    assert!(
        denied
            .extensions()
            .get::<Rejection>()
            .is_some_and(Rejection::is_limited)
    );
    assert!(denied.extensions().get::<Decision>().is_some());
    assert_eq!(
        text(denied).await,
        "own: rate limit reached, retry after 60 seconds"
    );
}

/// The state of the store and shadow mode are visible in a header only if it is enabled.
#[tokio::test]
async fn origin_header_is_optional() {
    let (limits, _clock) = limiter();
    let layer = by_key(one_a_minute(), &limits);
    let with_origin = layer
        .clone()
        .responses(&ResponseConfig::new().with_origin_header(HeaderName::from_static("x-limiter")));
    let origin = |headers: &HeaderMap| headers["x-limiter"].to_str().unwrap().to_owned();
    assert_eq!(origin(&headers(&with_origin).await.1), "memory");
    let (status, denied) = headers(&with_origin).await;
    assert_eq!((status, &*origin(&denied)), (429, "memory"));

    limits.set_enforcement(Enforcement::Shadow);
    let (status, shown) = headers(&with_origin).await;
    assert_eq!((status, &*origin(&shown)), (200, "memory;would-deny"));
    assert!(
        !shown.contains_key("ratelimit"),
        "a limit in shadow mode has no limit headers"
    );
    assert!(headers(&layer).await.1.is_empty());
}

#[tokio::test]
async fn outage_is_visible_in_extensions_only() {
    let full = limiter_core::Limiter::in_process().max_keys(0).build();
    let policy = Policy::token_bucket("api").capacity(1).rate(1);
    let policy = policy
        .on_store_failure(limiter_core::OnStoreFailure::FailOpen)
        .build()
        .unwrap();
    let service = by_key(policy, &full).layer(Strict::default());
    let allowed = service.oneshot(request("ann")).await.unwrap();
    assert_eq!(allowed.status(), 200);
    assert!(allowed.headers().is_empty());
    let decision = allowed.extensions().get::<Decision>().unwrap();
    assert_eq!(decision.origin(), Origin::FailedOpen);
}

/// A denial without a limit also shows its source.
#[tokio::test]
async fn denial_by_list_or_outage_shows_its_source() {
    let full = limiter_core::Limiter::in_process().max_keys(0).build();
    let policy = || Policy::token_bucket("api").capacity(1).rate(1);
    let closed = policy().on_store_failure(limiter_core::OnStoreFailure::FailClosed);
    let listed = policy().deny_keys(["ann"]);
    let waits = Duration::from_secs(1);
    for (policy, status, shown, origin) in [
        (closed, 503, "failed-closed;store-out", Origin::FailedClosed),
        (listed, 403, "key-list", Origin::KeyList),
    ] {
        let layer = by_key(policy.build().unwrap(), &full)
            .responses(&ResponseConfig::new().with_origin_header(HeaderName::from_static("x-limiter")));
        for layer in [layer.clone(), layer.max_wait(waits)] {
            let denied = layer.layer(Strict::default()).oneshot(request("ann"));
            let denied = denied.await.unwrap();
            assert_eq!(denied.status(), status);
            assert_eq!(denied.headers()["x-limiter"], shown);
            for absent in ["retry-after", "ratelimit", "ratelimit-policy"] {
                assert!(!denied.headers().contains_key(absent), "{denied:?}");
            }
            let decision = denied.extensions().get::<Decision>().unwrap();
            assert_eq!((decision.is_allowed(), decision.origin()), (false, origin));
            let problem: Value = serde_json::from_str(&text(denied).await).unwrap();
            assert_eq!(problem["type"], "about:blank");
            assert!(problem.get("violated-policies").is_none());
        }
    }
}

#[tokio::test]
async fn blocked_client_receives_penalty_problem() {
    let (limits, _clock) = limiter();
    let penalty = Penalty::after(2, "1m").block_for("10m").unwrap();
    let policy = Policy::sliding_window("login").limit(1).window("1m");
    let layer = by_key(policy.penalty(penalty).build().unwrap(), &limits);
    let mut service = layer.layer(Strict::default());
    let mut kinds = HashMap::new();
    for call in 0..5 {
        let response = service.ready().await.unwrap().call(request("ann")).await.unwrap();
        let retry_after = response.headers().get("retry-after").cloned();
        if response.status() == 429 {
            let problem: Value = serde_json::from_str(&text(response).await).unwrap();
            kinds.insert(
                call,
                (problem["type"].as_str().unwrap().to_owned(), retry_after.unwrap()),
            );
        }
    }
    assert!(kinds[&1].0.ends_with("#quota-exceeded"));
    assert!(kinds[&4].0.ends_with("#abnormal-usage-detected"));
    assert_eq!(kinds[&4].1, "600");
}

/// Nested layers in a draft with one limit show the limit that is reached first.
#[tokio::test]
async fn single_limit_header_shows_tightest_limit() {
    let (limits, _clock) = limiter();
    for dialect in [RateLimitHeaders::Legacy, RateLimitHeaders::Draft7] {
        for swapped in [false, true] {
            let (strict, loose) = if swapped {
                (at_most(5), one_a_minute())
            } else {
                (one_a_minute(), at_most(5))
            };
            limits.reset(&strict, "ann").await.unwrap();
            limits.reset(&loose, "ann").await.unwrap();
            let (inner, outer) = (by_key(strict, &limits), by_key(loose, &limits));
            let echo = service_fn(async |_: http::Request<String>| {
                Ok::<_, std::convert::Infallible>(Response::new(String::new()))
            });
            let service = outer.responses(&ResponseConfig::new().headers(dialect)).layer(
                inner
                    .responses(&ResponseConfig::new().headers(dialect))
                    .layer(echo),
            );
            let response = service.oneshot(request("ann")).await.unwrap();
            let (name, value) = match dialect {
                RateLimitHeaders::Legacy => ("x-ratelimit-remaining", "0"),
                _ => ("ratelimit", "limit=1, remaining=0, reset=60"),
            };
            let shown: Vec<_> = response.headers().get_all(name).iter().collect();
            assert_eq!(shown, [value], "{dialect:?} {swapped}");
        }
    }
}

/// A client that arrives at an exhausted limit, and then follows `Retry-After` and `RateLimit`, is
/// denied once.
#[tokio::test]
async fn client_that_follows_headers_is_denied_once() {
    let policies = [
        Policy::token_bucket("api")
            .capacity(3)
            .rate("7/min")
            .build()
            .unwrap(),
        Policy::sliding_window("api")
            .limit(7)
            .window("90s")
            .build()
            .unwrap(),
        Policy::counter_window("api")
            .limit(7)
            .window("90s")
            .build()
            .unwrap(),
        Policy::fixed_window("api")
            .limit(7)
            .window("90s")
            .build()
            .unwrap(),
    ];
    for policy in policies {
        let (limits, clock) = limiter();
        let layer = by_key(policy.clone(), &limits)
            .responses(&ResponseConfig::new().headers(RateLimitHeaders::Legacy));
        let start = clock.now();
        while limits.check(&policy, "ann").await.unwrap().is_allowed() {
            clock.advance(Duration::from_micros(123_457));
        }
        let (mut denied, mut allowed) = (0, 0);
        while clock.now().since(start) < Duration::from_secs(3_600) {
            let (status, headers) = headers(&layer).await;
            let seconds = |name: &str| {
                let value = headers.get(name)?.to_str().unwrap();
                Some(Duration::from_secs(value.parse().unwrap()))
            };
            let wait = seconds("x-ratelimit-reset").filter(|_| headers["x-ratelimit-remaining"] == "0");
            if status == 429 {
                assert_eq!(seconds("retry-after"), wait, "both headers agree: {policy}");
                denied += 1;
            } else {
                allowed += 1;
            }
            clock.advance(wait.unwrap_or_default());
        }
        assert_eq!(denied, 1, "{policy}: {allowed} were allowed");
        assert!(allowed > 230, "{policy}: {allowed}");
    }
}

/// For each way to set a cost above one permit.
#[tokio::test]
async fn client_with_larger_cost_that_follows_headers_is_never_denied() {
    async fn follow_headers<K, P>(layer: &RateLimitLayer<K, P>, clock: &limiter_core::ManualClock)
    where
        K: limiter_tower::typestate::HasKey + Clone,
        P: limiter_tower::typestate::RequestOptions<K::Extractor, Extractor: key::KeyExtractor<String>>
            + Clone,
    {
        let (start, mut allowed) = (clock.now(), 0);
        while clock.now().since(start) < Duration::from_secs(3_600) {
            let (status, headers) = headers(layer).await;
            assert_eq!(status, 200, "after {allowed}: {headers:?}");
            allowed += 1;
            let number = |name: &str| headers[name].to_str().unwrap().parse::<u64>().unwrap();
            if number("x-ratelimit-remaining") == 0 {
                clock.advance(Duration::from_secs(number("x-ratelimit-reset")));
            }
        }
        assert!(allowed > 150, "{allowed}");
    }
    type TestRequest = http::Request<String>;

    let bucket = |name: &str, capacity: u32| {
        let policy = Policy::token_bucket(name).capacity(capacity).rate("11/min");
        policy.build().unwrap()
    };
    let (policy, calls) = (bucket("permits", 10), bucket("calls", 4));
    let (limits, clock) = limiter();
    follow_headers(
        &by_key(policy.clone(), &limits)
            .cost(3)
            .responses(&ResponseConfig::new().headers(RateLimitHeaders::Legacy)),
        &clock,
    )
    .await;

    let (limits, clock) = limiter();
    let by_path = by_key(policy.clone(), &limits).cost_by(|_: &TestRequest| 3);
    follow_headers(
        &by_path.responses(&ResponseConfig::new().headers(RateLimitHeaders::Legacy)),
        &clock,
    )
    .await;

    // Each limit has its own cost; three permits allow four calls.
    let (limits, clock) = limiter();
    let (by_hook, beside) = (policy.clone(), calls.clone());
    let hook = move |_: &TestRequest| {
        RequestLimits::new(&by_hook, "ann")
            .cost(3)
            .and(RequestLimits::new(&beside, "ann").cost(1))
    };
    follow_headers(
        &RateLimitLayer::limits_for(&limits, hook)
            .responses(&ResponseConfig::new().headers(RateLimitHeaders::Legacy)),
        &clock,
    )
    .await;
}
