//! Number of decisions per request, counted by a recorder of metrics.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::LazyLock;
use std::time::Duration;

use http::{Request, StatusCode};
use limiter_core::registry::PolicyRegistry;
use limiter_core::{Limiter, ManualClock, OnStoreFailure, Policy};
use limiter_testing::RedisServer;
use limiter_testing::recorder::Ledger;
use limiter_tower::typestate::WithKey;
use limiter_tower::{RateLimitHeaders, RateLimitLayer, ResponseConfig, key};
use support::{Strict, request};
use tower::{Layer, ServiceExt};

/// The metrics of this process. Tests run in parallel, so each test has its own policy.
fn recorded() -> &'static Ledger {
    static LEDGER: LazyLock<Ledger> = LazyLock::new(|| {
        let ledger = Ledger::default();
        metrics::set_global_recorder(ledger.clone()).unwrap();
        ledger
    });
    &LEDGER
}

/// Returns the number of decisions under a policy with any outcome.
fn decisions(policy: &str) -> f64 {
    let start = format!("limiter_decisions_total{{policy={policy},");
    let all = recorded().all().into_iter();
    all.filter(|(name, _)| name.starts_with(&start))
        .map(|(_, count)| count)
        .sum()
}

fn window(name: &str) -> Policy {
    let window = Policy::sliding_window(name).limit(1).window("1m");
    window
        .on_store_failure(OnStoreFailure::Error)
        .deadline(Duration::from_secs(5))
        .build()
        .unwrap()
}

type Keyed = RateLimitLayer<WithKey<key::Header>>;

fn layer(limits: &Limiter, policy: Policy) -> Keyed {
    RateLimitLayer::new(limits, policy).key(key::header("x-api-key"))
}

/// Sends one allowed request and two denied ones, and compares the number of decisions after each.
async fn assert_decides_once<L>(policy: &str, layer: L)
where
    L: Layer<Strict>,
    L::Service: tower::Service<
            Request<String>,
            Response = http::Response<limiter_tower::ResponseBody<String>>,
            Error = std::convert::Infallible,
        >,
{
    recorded();
    let expected = [
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    for (sent, status) in (1_u32..).zip(expected) {
        let response = layer
            .layer(Strict::default())
            .oneshot(request("ann"))
            .await
            .unwrap();
        assert_eq!(response.status(), status, "{policy}, request {sent}");
        assert_eq!(decisions(policy), f64::from(sent), "{policy}, request {sent}");
    }
}

fn in_process() -> Limiter {
    Limiter::in_process().clock(&ManualClock::new()).build()
}

#[tokio::test]
async fn layer_without_headers_decides_denied_request_once() {
    let silent = ResponseConfig::new().headers(RateLimitHeaders::None);
    let layer = layer(&in_process(), window("silent")).responses(&silent);
    assert_decides_once("silent", layer).await;
}

#[tokio::test]
async fn layer_with_headers_decides_denied_request_once() {
    assert_decides_once("headers", layer(&in_process(), window("headers"))).await;
}

#[tokio::test]
async fn layer_with_decision_extension_decides_denied_request_once() {
    let layer = layer(&in_process(), window("extension")).with_decision_extension();
    assert_decides_once("extension", layer).await;
}

#[tokio::test]
async fn layer_with_cost_decides_denied_request_once() {
    let layer = layer(&in_process(), window("cost")).cost_by(|_: &Request<String>| 1_u32);
    assert_decides_once("cost", layer).await;
}

#[tokio::test]
async fn layer_by_policy_name_decides_denied_request_once() {
    let registry = PolicyRegistry::new().with(window("named"));
    let limits = Limiter::in_process()
        .clock(&ManualClock::new())
        .registry(&registry)
        .build();
    let layer = RateLimitLayer::new(&limits, "named").key(key::header("x-api-key"));
    assert_decides_once("named", layer).await;
}

#[tokio::test]
async fn layer_with_key_list_decides_denied_request_once() {
    let policy = Policy::sliding_window("listed").limit(1).window("1m");
    let policy = policy.allow_keys(["bob"]).build().unwrap();
    assert_decides_once("listed", layer(&in_process(), policy)).await;
}

/// The deny cache answers the second denial.
#[tokio::test]
async fn layer_with_redis_decides_denied_request_once() {
    let server = RedisServer::shared();
    for (name, deny_cache) in [("redis", Duration::ZERO), ("deny cache", Duration::from_secs(1))] {
        let namespace = format!("decides-once:{}:{name}", std::process::id());
        let limits = Limiter::redis(server.url())
            .namespace(namespace)
            .clock(&ManualClock::new());
        let limits = limits.deny_cache(deny_cache).build().unwrap();
        assert_decides_once(name, layer(&limits, window(name))).await;
    }
}
