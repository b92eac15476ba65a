//! Requests of attackers that try to break or bypass the layer, or to cause much work.

use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, Uri, Version};
use limiter_core::{Limiter, ManualClock, Policy};
use limiter_tower::RateLimitLayer;
use limiter_tower::key::{self, KeyExtractor};
use limiter_tower::typestate::HasKey;
use tower::{Layer, ServiceExt};

use crate::support::{Strict, at_most, limiter, one_a_minute};

async fn status<K, P>(layer: &RateLimitLayer<K, P>, request: Request<String>) -> u16
where
    K: HasKey,
    P: limiter_tower::typestate::RequestOptions<K::Extractor, Extractor: KeyExtractor<String>>,
{
    let service = layer.layer(Strict::default());
    service.oneshot(request).await.unwrap().status().as_u16()
}

fn with(name: &'static str, values: &[&[u8]]) -> Request<String> {
    let mut request = Request::new(String::new());
    for value in values {
        let value = HeaderValue::from_bytes(value).unwrap();
        request.headers_mut().append(name, value);
    }
    request
}

#[tokio::test]
async fn huge_keys_have_separate_budgets() {
    let (limits, _clock) = limiter();
    let by_header = RateLimitLayer::new(&limits, one_a_minute()).key(key::header("x-api-key"));
    let by_both = RateLimitLayer::new(&limits, one_a_minute()).key((key::header("x-api-key"), key::path()));
    let mut huge = vec![b'a'; 1 << 16];
    for last in [b'a', b'b', b'\xff', b':', b'|'] {
        *huge.last_mut().unwrap() = last;
        for expected in [200, 429] {
            assert_eq!(
                status(&by_header, with("x-api-key", &[&huge])).await,
                expected,
                "{last}"
            );
            assert_eq!(
                status(&by_both, with("x-api-key", &[&huge])).await,
                expected,
                "{last}"
            );
        }
    }
}

/// HTTP/2 transmits blanks around a value, which are not part of it: they do not create a second
/// key, and blanks alone are not a key.
#[tokio::test]
async fn blanks_around_key_get_no_second_budget() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, one_a_minute()).key(key::header("x-api-key"));
    for key in [b"ann".as_slice(), b"an n", b"\xe9"] {
        assert_eq!(status(&layer, with("x-api-key", &[key])).await, 200, "{key:?}");
        for (before, after) in [("", ""), (" ", ""), ("", " "), ("\t", "  "), ("   ", "\t \t")] {
            let same = [before.as_bytes(), key, after.as_bytes()].concat();
            assert_eq!(status(&layer, with("x-api-key", &[&same])).await, 429, "{same:?}");
        }
    }
    for blank in [b"".as_slice(), b" ", b"\t", b" \t "] {
        assert_eq!(
            status(&layer, with("x-api-key", &[blank])).await,
            400,
            "{blank:?}"
        );
    }
}

/// Client input is scanned at most once, for all contents.
#[tokio::test]
async fn forwarded_lists_are_parsed_in_linear_time() {
    let (limits, _clock) = limiter();
    let policy = at_most(1_000);
    let hops = RateLimitLayer::new(&limits, &policy).key(key::client_ip(key::TrustedProxies::hops(1)));
    let many_hops = RateLimitLayer::new(&limits, &policy).key(key::client_ip(key::TrustedProxies::hops(200)));
    let forwarded =
        RateLimitLayer::new(&limits, &policy).key(key::client_ip(key::TrustedProxies::hops(1)).forwarded());
    let begun = Instant::now();
    for pattern in [
        "192.0.2.1, ",
        "for=192.0.2.1, ",
        "for=\"[::1]\", ",
        "\"",
        "\\\"",
        "\\",
        ",",
        ";",
        " ",
        "; ;",
        "for=",
        "for=\"",
        "a=\"\\\",",
        "[",
        "[::",
        "::ffff:",
        ":",
        "%",
        "_",
        "for=_hidden;",
        "\t",
    ] {
        let list = pattern.repeat(100_000 / pattern.len());
        let ending = format!("{list}, for=192.0.2.1");
        for layer in [&hops, &many_hops] {
            let lines = with("x-forwarded-for", &[list.as_bytes(), b"192.0.2.1"]);
            assert!(matches!(status(layer, lines).await, 200 | 400), "{pattern}");
            let line = with("x-forwarded-for", &[list.as_bytes()]);
            assert!(matches!(status(layer, line).await, 200 | 400), "{pattern}");
        }
        for list in [&list, &ending] {
            let answer = status(&forwarded, with("forwarded", &[list.as_bytes()])).await;
            assert!(matches!(answer, 200 | 400), "{pattern}");
        }
    }
    let elements = vec![b"192.0.2.1".as_slice(); 10_000];
    assert_eq!(status(&hops, with("x-forwarded-for", &elements)).await, 200);
    // About 15 MB in a debug build: a quadratic algorithm takes minutes.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn unusual_request_line_gets_no_second_budget() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, one_a_minute())
        .key(key::global())
        .skip(limiter_tower::skip::probes());
    let request = |method: Method, uri: &'static str, version| {
        let mut request = Request::new(String::new());
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_static(uri);
        *request.version_mut() = version;
        request
    };
    let unknown = Method::from_bytes(b"BREW").unwrap();
    let mut expected = 200;
    for (method, uri) in [
        (Method::OPTIONS, "*"),
        (Method::CONNECT, "health:443"),
        (Method::CONNECT, "example.com:443"),
        (Method::GET, "http://example.com"),
        (Method::GET, "http://example.com/healthz/"),
        (Method::GET, "/x?path=/healthz"),
        (Method::GET, "//healthz"),
        (Method::GET, "/x/../healthz"),
        (Method::GET, "/%68ealthz"),
        (Method::GET, "/healthz;x"),
        (Method::POST, "/grpc.health.v1.Health"),
        (Method::POST, "/x/grpc.health.v1.Health/Check"),
        (Method::TRACE, "/healthz"),
        (Method::OPTIONS, "/healthz"),
        (unknown, "/healthz"),
    ] {
        for version in [
            Version::HTTP_09,
            Version::HTTP_10,
            Version::HTTP_11,
            Version::HTTP_2,
        ] {
            let answer = status(&layer, request(method.clone(), uri, version)).await;
            assert_eq!(answer, expected, "{method} {uri} {version:?}");
            expected = 429;
        }
    }
    let absolute = request(
        Method::GET,
        "http://example.com/healthz?verbose",
        Version::HTTP_10,
    );
    assert_eq!(status(&layer, absolute).await, 200, "proxies use this form");
}

#[tokio::test]
async fn path_is_one_key_for_all_request_line_forms() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, one_a_minute()).key(key::path());
    let send = async |uri: &'static str| {
        let mut request = Request::new(String::new());
        *request.uri_mut() = Uri::from_static(uri);
        status(&layer, request).await
    };
    assert_eq!(send("/search").await, 200);
    for same in [
        "/search?a",
        "http://a/search",
        "http://user@b:80/search?b",
        "https://c/search",
    ] {
        assert_eq!(send(same).await, 429, "{same}");
    }
}

/// A malformed timeout is ignored, and a valid one can only shorten a wait.
#[tokio::test]
async fn client_timeout_never_extends_wait() {
    let (limits, clock) = limiter();
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate("1/min")
        .build()
        .unwrap();
    let layer = RateLimitLayer::new(&limits, policy).key(key::global());
    let layer = layer.max_wait(Duration::from_secs(1));
    assert_eq!(status(&layer, Request::new(String::new())).await, 200);
    for timeout in [
        b"99999999H".as_slice(),
        b"",
        b"H",
        b"-1S",
        b"1e9S",
        b"\xff",
        b"1S, 1H",
        b"18446744073709551616n",
        b"00000000n",
    ] {
        let service = layer.layer(Strict::default());
        let request = with("grpc-timeout", &[timeout, b"99999999H"]);
        let waiting = tokio::spawn(service.oneshot(request));
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(1));
        let answer = tokio::time::timeout(Duration::from_secs(5), waiting).await;
        assert_eq!(answer.unwrap().unwrap().unwrap().status(), 429, "{timeout:?}");
    }
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        status(&layer, with("grpc-timeout", &[b"0n"])).await,
        200,
        "a permit is available without a wait"
    );
}

#[tokio::test]
async fn content_type_changes_response_format_only() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, one_a_minute()).key(key::global());
    assert_eq!(status(&layer, Request::new(String::new())).await, 200);
    let service = layer.layer(Strict::default());
    for (types, content_type) in [
        (
            ["application/json", "application/grpc"],
            "application/problem+json",
        ),
        (["application/grpc", "application/json"], "application/grpc"),
        (
            ["application/grpc-web-text", "text/html"],
            "application/grpc-web-text",
        ),
        (
            ["application/grpc-web+<script>", "text/html"],
            "application/grpc-web",
        ),
        (
            ["application/grpc-web;x, text/html", "text/html"],
            "application/grpc-web",
        ),
        (["application/grpc-x, text/html", ""], "application/problem+json"),
        (["\u{b5}", ""], "application/problem+json"),
    ] {
        let request = with("content-type", &types.map(str::as_bytes));
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], content_type, "{types:?}");
        let is_grpc = content_type.starts_with("application/grpc");
        assert_eq!(response.headers().contains_key("grpc-status"), is_grpc);
        assert_eq!(response.status(), if is_grpc { 200 } else { 429 });
    }
}

/// A client that invents keys uses no more memory than configured, and no budget of other clients.
#[tokio::test]
async fn requests_above_max_keys_are_rejected() {
    let clock = ManualClock::new();
    let limits = Limiter::in_process().clock(&clock).max_keys(100).build();
    let policy = one_a_minute();
    let layer = RateLimitLayer::new(&limits, &policy).key(key::header("x-api-key"));
    assert_eq!(status(&layer, crate::support::request("ann")).await, 200);
    let mut answers = std::collections::BTreeMap::<u16, u32>::new();
    for number in 0..10_000 {
        let request = crate::support::request(&format!("invented-{number}"));
        *answers.entry(status(&layer, request).await).or_default() += 1;
    }
    assert!(
        answers.keys().all(|status| matches!(status, 200 | 503)),
        "{answers:?}"
    );
    assert!(
        answers.get(&200).is_some_and(|allowed| *allowed <= 99),
        "{answers:?}"
    );
    assert_eq!(
        status(&layer, crate::support::request("ann")).await,
        429,
        "the usage is kept"
    );
    clock.advance(Duration::from_secs(120));
    assert_eq!(status(&layer, crate::support::request("bob")).await, 200);
}
