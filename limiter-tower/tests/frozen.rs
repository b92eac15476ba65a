//! Responses as clients receive them, in reviewable text: status, headers and bodies of each kind
//! of response.
//!
//! `LIMITER_FROZEN=write cargo test -p limiter-tower --all-features --test frozen` writes the files
//! under `tests/frozen/` again.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fmt::Write as _;

use http::{HeaderName, Request, Response};
use limiter_core::penalty::Penalty;
use limiter_core::{Enforcement, Limiter, OnStoreFailure, Policy};
use limiter_tower::typestate::WithKey;
use limiter_tower::{RateLimitHeaders, RateLimitLayer, ResponseConfig, key};
use support::{Strict, at_most, limiter, request, text};
use tower::{Layer, ServiceExt};

/// Compares with the committed file, or replaces it.
#[track_caller]
fn assert_frozen(file: &str, actual: &str) {
    limiter_testing::assert_frozen(env!("CARGO_MANIFEST_DIR"), file, actual);
}

type Keyed = RateLimitLayer<WithKey<key::Header>>;

fn layer(limits: &Limiter, policy: Policy) -> Keyed {
    layer_with(limits, policy, responses())
}

fn layer_with(limits: &Limiter, policy: Policy, responses: ResponseConfig) -> Keyed {
    let layer = RateLimitLayer::new(limits, policy).key(key::header("x-api-key"));
    layer.responses(&responses)
}

fn responses() -> ResponseConfig {
    ResponseConfig::new().with_origin_header(HeaderName::from_static("x-limiter"))
}

fn bucket() -> limiter_core::PolicyBuilder<limiter_core::typestate::LevelParams> {
    Policy::token_bucket("api").capacity(2).rate("1/min")
}

async fn respond(page: &mut String, title: &str, layer: &Keyed, request: Request<String>) {
    let response = layer
        .clone()
        .layer(Strict::default())
        .oneshot(request)
        .await
        .unwrap();
    print(page, title, response).await;
}

async fn print<B>(page: &mut String, title: &str, response: Response<B>)
where
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: std::fmt::Debug,
{
    writeln!(page, "== {title}\n{}", response.status().as_u16()).unwrap();
    let mut headers: Vec<_> = response
        .headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("(binary)")))
        .collect();
    headers.sort();
    for header in headers {
        writeln!(page, "{header}").unwrap();
    }
    writeln!(page, "\n{}", text(response).await).unwrap();
}

#[tokio::test]
async fn rate_limit_headers_are_frozen() {
    let mut page = String::new();
    for dialect in [
        RateLimitHeaders::Draft11,
        RateLimitHeaders::Draft10,
        RateLimitHeaders::Draft7,
        RateLimitHeaders::Legacy,
        RateLimitHeaders::None,
    ] {
        let (limits, _clock) = limiter();
        for (name, policy) in [("bucket", bucket().build().unwrap()), ("window", at_most(1))] {
            let layer = layer_with(&limits, policy, responses().headers(dialect));
            for call in 1..=3 {
                let title = format!("{dialect:?}, {name}, call {call}");
                respond(&mut page, &title, &layer, request("ann")).await;
            }
        }
    }
    assert_frozen("headers.txt", &page);
}

#[tokio::test]
async fn rejections_are_frozen() {
    let mut page = String::new();
    let (limits, _clock) = limiter();
    let rate = layer(&limits, bucket().build().unwrap());
    respond(&mut page, "no key", &rate, Request::new(String::new())).await;
    respond(
        &mut page,
        "cost above the capacity",
        &rate.clone().cost(3),
        request("ann"),
    )
    .await;

    let listed = layer(&limits, bucket().deny_keys(["ann"]).build().unwrap());
    respond(&mut page, "key on the deny list", &listed, request("ann")).await;
    let exempt = layer(&limits, bucket().allow_keys(["ann"]).build().unwrap());
    respond(&mut page, "key on the allow list", &exempt, request("ann")).await;

    let shadow = layer(
        &limits,
        bucket().enforcement(Enforcement::Shadow).build().unwrap(),
    )
    .cost(2);
    for call in 1..=2 {
        respond(
            &mut page,
            &format!("shadow, call {call}"),
            &shadow,
            request("bob"),
        )
        .await;
    }
    let off = layer(&limits, bucket().enforcement(Enforcement::Off).build().unwrap());
    respond(&mut page, "off", &off, request("ann")).await;

    let penalty = Penalty::after(1, "1m").block_for("10m").unwrap();
    let blocks = layer(&limits, bucket().penalty(penalty).build().unwrap()).cost(2);
    for call in 1..=3 {
        respond(
            &mut page,
            &format!("penalty after one denial, call {call}"),
            &blocks,
            request("eve"),
        )
        .await;
    }

    let unknown = RateLimitLayer::new(&limits, "unknown").key(key::header("x-api-key"));
    respond(&mut page, "unknown policy", &unknown, request("ann")).await;

    let full = Limiter::in_process().max_keys(0).build();
    for answer in [
        OnStoreFailure::Local,
        OnStoreFailure::FailOpen,
        OnStoreFailure::FailClosed,
        OnStoreFailure::Error,
    ] {
        let policy = bucket().on_store_failure(answer).build().unwrap();
        let title = format!("store failure, {answer:?}");
        respond(&mut page, &title, &layer(&full, policy), request("ann")).await;
    }
    let plain = layer_with(&limits, at_most(1), responses().plain_text());
    for call in 1..=2 {
        respond(
            &mut page,
            &format!("plain text, call {call}"),
            &plain,
            request("ann"),
        )
        .await;
    }
    assert_frozen("rejections.txt", &page);
}

#[cfg(feature = "tonic")]
#[tokio::test]
async fn grpc_rejections_are_frozen() {
    let mut page = String::new();
    let (limits, _clock) = limiter();
    let grpc = |key: &str| {
        let mut request = request(key);
        let content_type = http::HeaderValue::from_static("application/grpc");
        request
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, content_type);
        request
    };
    let rate = layer_with(
        &limits,
        bucket().build().unwrap(),
        responses().grpc_domain("example.com"),
    );
    for call in 1..=3 {
        respond(&mut page, &format!("gRPC, call {call}"), &rate, grpc("ann")).await;
    }
    let full = Limiter::in_process().max_keys(0).build();
    let closed = bucket()
        .on_store_failure(OnStoreFailure::FailClosed)
        .build()
        .unwrap();
    respond(
        &mut page,
        "gRPC, store failure",
        &layer(&full, closed),
        grpc("ann"),
    )
    .await;
    assert_frozen("grpc.txt", &page);
}
