//! Rate limit headers of requests whose cost is settled: a client that follows them is never
//! denied.

use std::convert::Infallible;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use limiter_core::{Limiter, ManualClock, Policy};
use limiter_tower::settlement::{ActualCost, ReportedCost};
use limiter_tower::{RateLimitHeaders, RateLimitLayer, RequestLimits, ResponseConfig, key};
use tower::{Layer, ServiceExt, service_fn};

use super::bucket;
use super::support::limiter;

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

const DIALECTS: [RateLimitHeaders; 4] = [
    RateLimitHeaders::Draft11,
    RateLimitHeaders::Draft10,
    RateLimitHeaders::Draft7,
    RateLimitHeaders::Legacy,
];

/// Responds with the status in the request path.
async fn by_path(request: Request<String>) -> Result<Response<String>, Infallible> {
    let mut response = Response::new("0123456789".to_owned());
    *response.status_mut() = request.uri().path().trim_start_matches('/').parse().unwrap();
    Ok(response)
}

fn request_for_status(status: u16) -> Request<String> {
    let request = Request::builder().uri(format!("/{status}"));
    request.header("x-api-key", "ann").body(String::new()).unwrap()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

/// The remaining permits and the window of one limit in a response; `None` without headers.
fn read(headers: &HeaderMap) -> Option<(u64, Duration)> {
    let number = |text: &str, name: &str| -> u64 {
        let (_, digits) = text.split_once(name).unwrap();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().unwrap()
    };
    let (remaining, window) = match (text(headers, "ratelimit"), text(headers, "x-ratelimit-remaining")) {
        (Some(shown), _) if shown.contains("remaining=") => {
            (number(shown, "remaining="), number(shown, "reset="))
        }
        (Some(shown), _) => (number(shown, ";r="), number(shown, ";t=")),
        (None, Some(remaining)) => (
            number(remaining, ""),
            number(text(headers, "x-ratelimit-reset").unwrap(), ""),
        ),
        (None, None) => return None,
    };
    Some((remaining, Duration::from_secs(window)))
}

/// A client with its own key that follows the headers: returns the number of its calls in an hour,
/// at most one in ten seconds. The statuses of its responses cycle through `statuses`.
async fn calls_in_an_hour(
    service: impl tower::Service<
        Request<String>,
        Response = Response<limiter_tower::ResponseBody<String>>,
        Error = Infallible,
    > + Clone,
    clock: &ManualClock,
    statuses: &[u16],
) -> u32 {
    let start = clock.now();
    let mut calls = 0;
    for status in statuses.iter().cycle() {
        if clock.now().since(start) >= HOUR {
            break;
        }
        let response = service
            .clone()
            .oneshot(request_for_status(*status))
            .await
            .unwrap();
        assert_eq!(
            response.status(),
            *status,
            "call {calls}: {:?}",
            response.headers()
        );
        calls += 1;
        let (remaining, window) = read(response.headers()).unwrap();
        clock.advance(if remaining == 0 { window } else { 10 * SECOND });
    }
    calls
}

fn sliding(name: &str, limit: u32, window: &str) -> Policy {
    Policy::sliding_window(name)
        .limit(limit)
        .window(window)
        .build()
        .unwrap()
}

fn policies(name: &str, limit: u32) -> Vec<Policy> {
    vec![
        sliding(name, limit, "1m"),
        Policy::fixed_window(name)
            .limit(limit)
            .window("1m")
            .build()
            .unwrap(),
        Policy::counter_window(name)
            .limit(limit)
            .window("1m")
            .build()
            .unwrap(),
        Policy::token_bucket(name)
            .capacity(limit)
            .rate(&*format!("{limit}/min"))
            .build()
            .unwrap(),
        Policy::funnel(name)
            .capacity(limit)
            .rate(&*format!("{limit}/min"))
            .build()
            .unwrap(),
    ]
}

#[tokio::test]
async fn uncounted_request_has_no_wait() {
    for policy in policies("failed", 1) {
        for dialect in DIALECTS {
            let (limits, clock) = limiter();
            let service = RateLimitLayer::new(&limits, &policy)
                .key(key::header("x-api-key"))
                .responses(&ResponseConfig::new().headers(dialect))
                .count_if(|response| response.status() == 401)
                .layer(service_fn(by_path));
            let calls = calls_in_an_hour(service.clone(), &clock, &[200]).await;
            assert_eq!(calls, 360, "{policy} in {dialect:?}");
            clock.advance(2 * HOUR);
            // One request in three counts and is followed by a wait: two windows for counted
            // requests.
            let calls = calls_in_an_hour(service, &clock, &[200, 401, 200]).await;
            assert!((75..=150).contains(&calls), "{calls} {policy} in {dialect:?}");
        }
    }
}

#[tokio::test]
async fn headers_show_cost_settled_by_head() {
    for policy in policies("rows", 1_000) {
        for dialect in DIALECTS {
            let (limits, clock) = limiter();
            let service = RateLimitLayer::new(&limits, &policy)
                .key(key::header("x-api-key"))
                .responses(&ResponseConfig::new().headers(dialect))
                .cost(600)
                .settle(ActualCost::from_response(|response| {
                    match response.status().as_u16() {
                        200 => Some(10),
                        // More than the estimate and the remaining permits: a debt.
                        201 => Some(1_500),
                        _ => None,
                    }
                }))
                .layer(service_fn(by_path));
            let response = service.clone().oneshot(request_for_status(200)).await.unwrap();
            assert_eq!(
                read(response.headers()).unwrap().0,
                990,
                "{policy} in {dialect:?}"
            );
            for statuses in [&[200][..], &[200, 202], &[200, 201, 202, 200]] {
                let calls = calls_in_an_hour(service.clone(), &clock, statuses).await;
                assert!(calls >= 40, "{calls} of {statuses:?}: {policy} in {dialect:?}");
                clock.advance(2 * HOUR);
            }
        }
    }
}

/// The headers as input of an outbound layer.
#[tokio::test]
async fn refund_does_not_pause_outbound_client() {
    let (limits, clock) = limiter();
    let peer = RateLimitLayer::new(&limits, sliding("failed", 1, "1m"))
        .key(key::header("x-api-key"))
        .count_if(|response| response.status() == 401)
        .layer(service_fn(by_path));
    let own = Limiter::in_process().clock(&clock).build();
    let client = RateLimitLayer::outbound(&own, bucket("calls", 1_000))
        .key(key::global())
        .layer(peer);
    for status in [200, 200, 200, 401] {
        let response = client.clone().oneshot(request_for_status(status)).await.unwrap();
        assert_eq!(response.status(), status);
    }
    assert!(
        client.clone().oneshot(request_for_status(200)).await.is_err(),
        "this one counted"
    );
}

/// The head is sent before the cost of the body is known.
#[tokio::test]
async fn headers_omit_unsettled_limit_and_show_others() {
    let (limits, clock) = limiter();
    let (requests, tokens) = (bucket("requests", 10), bucket("tokens", 1_000));
    let terms = {
        let (requests, tokens) = (requests.clone(), tokens.clone());
        move |_: &Request<String>| {
            let requests = RequestLimits::new(&requests, "ann").unsettled();
            requests.and(RequestLimits::new(&tokens, "ann").cost(600))
        }
    };
    let layer = RateLimitLayer::limits_for(&limits, terms);
    let spends = service_fn(async |request: Request<String>| {
        let mut response = by_path(request).await?;
        response.extensions_mut().insert(ReportedCost::new(10));
        Ok::<_, Infallible>(response)
    });
    let headers = async |layer: RateLimitLayer<_>, dialect| {
        clock.advance(HOUR);
        let service = layer
            .responses(&ResponseConfig::new().headers(dialect))
            .layer(spends);
        let (head, body) = service
            .oneshot(request_for_status(200))
            .await
            .unwrap()
            .into_parts();
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 10);
        assert_eq!(limits.peek(&tokens, "ann").await.unwrap().remaining(), 990);
        head.headers
    };
    for layer in [
        layer.clone().settle(ActualCost::body_bytes()),
        layer.settle(ActualCost::reported()),
    ] {
        for dialect in [RateLimitHeaders::Draft11, RateLimitHeaders::Draft10] {
            let headers = headers(layer.clone(), dialect).await;
            assert_eq!(
                text(&headers, "ratelimit-policy"),
                Some(r#""requests";q=10;w=10, "tokens";q=1000;w=1000"#)
            );
            let shown = text(&headers, "ratelimit").unwrap();
            assert!(
                shown.starts_with(r#""requests";r=9;t="#) && !shown.contains("tokens"),
                "{shown}"
            );
        }
        let seven = headers(layer.clone(), RateLimitHeaders::Draft7).await;
        assert_eq!(text(&seven, "ratelimit-policy"), Some("10;w=10, 1000;w=1000"));
        assert_eq!(text(&seven, "ratelimit"), Some("limit=10, remaining=9, reset=9"));
        let legacy = headers(layer, RateLimitHeaders::Legacy).await;
        assert_eq!(text(&legacy, "x-ratelimit-remaining"), Some("9"));
    }
}

/// Without settled limits, the headers contain only the policy.
#[tokio::test]
async fn unsettled_limit_alone_shows_its_policy() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, bucket("bytes", 1_000))
        .key(key::header("x-api-key"))
        .settle(ActualCost::body_bytes());
    for (dialect, policy) in [
        (RateLimitHeaders::Draft11, Some(r#""bytes";q=1000;w=1000"#)),
        (RateLimitHeaders::Draft10, Some(r#""bytes";q=1000;w=1000"#)),
        (RateLimitHeaders::Draft7, Some("1000;w=1000")),
        (RateLimitHeaders::Legacy, None),
    ] {
        let service = layer
            .clone()
            .responses(&ResponseConfig::new().headers(dialect))
            .layer(service_fn(by_path));
        let response = service.oneshot(request_for_status(200)).await.unwrap();
        assert_eq!(text(response.headers(), "ratelimit-policy"), policy);
        for name in [
            "ratelimit",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
        ] {
            assert_eq!(text(response.headers(), name), None, "{dialect:?}");
        }
    }
}

/// A response without a reported cost keeps its estimate, which is therefore final.
#[tokio::test]
async fn headers_show_kept_estimate() {
    let (limits, _clock) = limiter();
    let service = RateLimitLayer::new(&limits, bucket("tokens", 1_000))
        .key(key::header("x-api-key"))
        .cost(100)
        .settle(ActualCost::reported())
        .layer(service_fn(by_path));
    let response = service.oneshot(request_for_status(200)).await.unwrap();
    assert_eq!(
        text(response.headers(), "ratelimit"),
        Some(r#""tokens";r=900;t=900"#)
    );
}

#[cfg(unix)]
mod on_redis {
    use super::*;
    use limiter_testing::RedisServer;

    async fn limits() -> (RedisServer, Limiter, ManualClock) {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let limits = Limiter::redis(server.url())
            .namespace("headers")
            .clock(&clock)
            .build()
            .unwrap();
        limits.ready().await.unwrap();
        (server, limits, clock)
    }

    async fn settled(limits: &Limiter, policy: &Policy, expected: u64) {
        let settled = async {
            while limits.peek(policy, "ann").await.unwrap().remaining() != expected {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(10 * SECOND, settled).await.unwrap();
    }

    /// The limit is settled in the background, after the response head was sent.
    #[tokio::test]
    async fn headers_omit_refunded_limit_and_show_charged_one() {
        let (_server, limits, clock) = limits().await;
        let failed = Policy::sliding_window("failed")
            .limit(2)
            .window("1m")
            .deadline(5 * SECOND)
            .build()
            .unwrap();
        for dialect in DIALECTS {
            let service = RateLimitLayer::new(&limits, &failed)
                .key(key::header("x-api-key"))
                .responses(&ResponseConfig::new().headers(dialect))
                .count_if(|response| response.status() == 401)
                .layer(service_fn(by_path));
            for _ in 0..5 {
                let response = service.clone().oneshot(request_for_status(200)).await.unwrap();
                assert_eq!(response.status(), 200, "{dialect:?}");
                assert_eq!(read(response.headers()), None, "{dialect:?}");
                settled(&limits, &failed, 2).await;
            }
            for remaining in [1, 0] {
                let response = service.clone().oneshot(request_for_status(401)).await.unwrap();
                assert_eq!(
                    read(response.headers()),
                    Some((remaining, 60 * SECOND)),
                    "{dialect:?}"
                );
            }
            clock.advance(60 * SECOND);
        }
    }

    #[tokio::test]
    async fn headers_show_settlement_without_change() {
        let (_server, limits, _clock) = limits().await;
        let rows = Policy::token_bucket("rows")
            .capacity(1_000)
            .rate("1/s")
            .deadline(5 * SECOND)
            .build()
            .unwrap();
        let service = RateLimitLayer::new(&limits, &rows)
            .key(key::header("x-api-key"))
            .cost(100)
            .settle(ActualCost::from_response(|response| {
                match response.status().as_u16() {
                    200 => Some(10),
                    201 => Some(100),
                    _ => None,
                }
            }))
            .layer(service_fn(by_path));
        let mut remaining_permits = 1_000;
        for (status, cost, is_shown) in [(200, 10, false), (201, 100, true), (202, 100, true)] {
            let response = service.clone().oneshot(request_for_status(status)).await.unwrap();
            let policy = text(response.headers(), "ratelimit-policy");
            assert_eq!(policy, Some(r#""rows";q=1000;w=1000"#));
            remaining_permits -= cost;
            let shown = read(response.headers()).map(|(remaining, _)| remaining);
            assert_eq!(shown, is_shown.then_some(remaining_permits), "{status}");
            settled(&limits, &rows, remaining_permits).await;
        }
    }
}
