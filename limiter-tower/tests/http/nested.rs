//! Headers of nested layers, in the drafts that show one limit only.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Response;
use limiter_core::Policy;
use limiter_tower::settlement::ActualCost;
use limiter_tower::{RateLimitHeaders, RateLimitLayer, ResponseConfig, key};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{limiter, request};

/// With equal remaining permits, a client that sees only the faster limit would return too early
/// for the other one.
#[tokio::test]
async fn client_of_nested_layers_that_follows_headers_is_never_denied() {
    let window = |name: &str, limit: u32, window: &str| {
        let policy = Policy::sliding_window(name).limit(limit).window(window);
        policy.build().unwrap()
    };
    for dialect in [RateLimitHeaders::Legacy, RateLimitHeaders::Draft7] {
        for limit in [1, 2] {
            for outer_is_slower in [true, false] {
                let (limits, clock) = limiter();
                let (mut inner, mut outer) = (window("quick", limit, "5s"), window("slow", limit, "7m"));
                if !outer_is_slower {
                    std::mem::swap(&mut inner, &mut outer);
                }
                let layer = |policy: Policy| {
                    RateLimitLayer::new(&limits, policy)
                        .key(key::header("x-api-key"))
                        .responses(&ResponseConfig::new().headers(dialect))
                };
                let echo = service_fn(async |_: http::Request<String>| {
                    Ok::<_, std::convert::Infallible>(Response::new(String::new()))
                });
                let service = layer(outer).layer(layer(inner).layer(echo));
                let start = clock.now();
                while clock.now().since(start) < Duration::from_secs(3_600) {
                    let response = service.clone().oneshot(request("ann")).await.unwrap();
                    assert_eq!(response.status(), 200, "{dialect:?}, {outer_is_slower}");
                    let field = |name: &str| response.headers().get(name)?.to_str().ok();
                    let (remaining, reset) = match field("ratelimit") {
                        None => (
                            field("x-ratelimit-remaining").unwrap(),
                            field("x-ratelimit-reset").unwrap(),
                        ),
                        Some(header) => {
                            let (_, header) = header.split_once("remaining=").unwrap();
                            header.split_once(", reset=").unwrap()
                        }
                    };
                    if remaining == "0" {
                        clock.advance(Duration::from_secs(reset.parse().unwrap()));
                    }
                }
            }
        }
    }
}

/// The outer layer extends the headers by its own limit.
#[tokio::test]
async fn client_that_waits_is_denied_by_neither_layer() {
    for dialect in [
        RateLimitHeaders::Draft11,
        RateLimitHeaders::Draft10,
        RateLimitHeaders::Draft7,
        RateLimitHeaders::Legacy,
    ] {
        let (limits, clock) = limiter();
        let layer = |name: &str, limit: u32, window: &str| {
            let policy = Policy::sliding_window(name).limit(limit).window(window);
            RateLimitLayer::new(&limits, policy.build().unwrap())
                .key(key::header("x-api-key"))
                .responses(&ResponseConfig::new().headers(dialect))
        };
        let echo = service_fn(async |_: http::Request<String>| {
            Ok::<_, std::convert::Infallible>(Response::new(String::new()))
        });
        let service = layer("slow", 2, "7m").layer(layer("quick", 1, "5s").layer(echo));
        let send = async || service.clone().oneshot(request("ann")).await.unwrap();
        assert_eq!(send().await.status(), 200);
        let denied = send().await;
        assert_eq!(
            denied.status(),
            429,
            "the inner layer denies, and both limits are exhausted"
        );
        assert_eq!(denied.headers()["retry-after"], "420", "{dialect:?}");
        clock.advance(Duration::from_secs(420));
        assert_eq!(send().await.status(), 200, "{dialect:?}");
    }
}

/// In draft 7, `RateLimit-Policy` belongs to the limit that `RateLimit` shows.
#[tokio::test]
async fn limit_without_remaining_permits_keeps_headers_of_inner_layer() {
    let (limits, _clock) = limiter();
    let layer = |name: &str, limit: u32, window: &str| {
        let policy = Policy::sliding_window(name).limit(limit).window(window);
        RateLimitLayer::new(&limits, policy.build().unwrap())
            .key(key::header("x-api-key"))
            .responses(&ResponseConfig::new().headers(RateLimitHeaders::Draft7))
    };
    let echo = service_fn(async |_: http::Request<String>| {
        Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    });
    // The remaining permits of the outer layer are unknown until the body has ended.
    let bytes = layer("bytes", 1_000, "1h").settle(ActualCost::body_bytes());
    let service = bytes.layer(layer("requests", 5, "1m").layer(echo));
    let response = service.oneshot(request("ann")).await.unwrap();
    let shown = ["ratelimit", "ratelimit-policy"].map(|name| &response.headers()[name]);
    assert_eq!(shown, ["limit=5, remaining=4, reset=60", "5;w=60"]);
}

#[tokio::test]
async fn policies_in_another_form_are_not_changed() {
    let (limits, _clock) = limiter();
    let policy = Policy::sliding_window("requests").limit(5).window("1m");
    let layer = RateLimitLayer::new(&limits, policy.build().unwrap())
        .key(key::header("x-api-key"))
        .responses(&ResponseConfig::new().headers(RateLimitHeaders::Draft7));
    let inner = service_fn(async |_: http::Request<String>| {
        let response = Response::builder().header("ratelimit-policy", r#""inner";q=9;w=60"#);
        response.body(String::new())
    });
    let response = layer.layer(inner).oneshot(request("ann")).await.unwrap();
    let shown = ["ratelimit", "ratelimit-policy"].map(|name| &response.headers()[name]);
    assert_eq!(shown, ["limit=5, remaining=4, reset=60", r#""inner";q=9;w=60"#]);
}

/// A `Retry-After` can be a date, relative to the `Date` of the response or to the current time.
#[tokio::test]
async fn date_before_end_of_exhausted_limit_is_extended() {
    const START: u64 = 1_750_000_000;
    let at = |seconds| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
    let from_now = |seconds| httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds));
    for (retry_after, date, is_extended) in [
        (at(START + 5), Some(at(START)), true),
        (at(START + 59), Some(at(START)), true),
        (at(START + 60), Some(at(START)), false),
        (at(START - 1), Some(at(START)), true),
        (from_now(5), None, true),
        (from_now(3_600), None, false),
        ("5".to_owned(), None, true),
        ("60".to_owned(), None, false),
        ("soon".to_owned(), None, false),
    ] {
        let (limits, _clock) = limiter();
        let policy = Policy::sliding_window("requests").limit(1).window("1m");
        let layer = RateLimitLayer::new(&limits, policy.build().unwrap()).key(key::header("x-api-key"));
        let inner = service_fn(async |_: http::Request<String>| {
            let response = Response::builder()
                .status(503)
                .header("retry-after", &retry_after);
            let response = match &date {
                Some(date) => response.header("date", date),
                None => response,
            };
            response.body(String::new())
        });
        let response = layer.layer(inner).oneshot(request("ann")).await.unwrap();
        let expected = if is_extended { "60" } else { &retry_after };
        let found = response.headers().get_all("retry-after");
        assert_eq!(found.iter().collect::<Vec<_>>(), [expected], "{date:?}");
    }
}
