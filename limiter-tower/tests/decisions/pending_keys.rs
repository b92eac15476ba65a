//! Policies and costs of requests with a pending key.

use std::time::Duration;

use http::request::Parts;
use http::{Request, StatusCode};
use limiter_core::Policy;
use limiter_tower::key::{self, Extraction, KeyExtractor, PendingKey};
use limiter_tower::{PolicySet, RateLimitLayer, RequestLimits};
use tower::{Layer, ServiceExt};

use super::support::{Strict, limiter, request};
use super::{bucket, left};

/// Reads the header after a yield; rejects a request without it with 401.
async fn user(head: Parts) -> Result<String, StatusCode> {
    tokio::task::yield_now().await;
    let user = head.headers.get("x-api-key").ok_or(StatusCode::UNAUTHORIZED)?;
    Ok(user.to_str().map_err(|_| StatusCode::BAD_REQUEST)?.to_owned())
}

/// [`user`], pending three times in a row.
fn repeatedly_pending(request: &Request<String>) -> Extraction<'static> {
    let by_user = key::from_async(user);
    let mut answer = match by_user.extract(request) {
        Extraction::Pending(later) => Extraction::Pending(later),
        other => unreachable!("{other:?}"),
    };
    for _ in 0..2 {
        answer = Extraction::Pending(PendingKey::new(async move {
            tokio::task::yield_now().await;
            answer
        }));
    }
    answer
}

fn at(path: &str) -> Request<String> {
    let mut request = request("ann");
    *request.uri_mut() = path.parse().unwrap();
    request
}

async fn statuses<K, P>(layer: &RateLimitLayer<K, P>, paths: &[&str]) -> Vec<u16>
where
    K: limiter_tower::typestate::HasKey,
    P: limiter_tower::typestate::RequestOptions<K::Extractor, Extractor: KeyExtractor<String>>,
{
    let service = layer.layer(Strict::default());
    let mut statuses = Vec::new();
    for path in paths {
        let response = service.clone().oneshot(at(path)).await.unwrap();
        statuses.push(response.status().as_u16());
    }
    statuses
}

fn tiers(free: &Policy, pro: &Policy) -> impl Fn(&Request<String>) -> PolicySet + use<> {
    let (free, pro) = (free.clone(), pro.clone());
    move |request| match request.uri().path() {
        "/pro" => PolicySet::from(&pro),
        "/both" => PolicySet::from([&free, &pro]),
        "/internal" => PolicySet::unlimited(),
        _ => PolicySet::from(&free),
    }
}

#[tokio::test]
async fn policy_is_chosen_for_pending_key() {
    let (limits, _clock) = limiter();
    let (free, pro) = (bucket("free", 1), bucket("pro", 3));
    let layer = RateLimitLayer::new(&limits, tiers(&free, &pro)).key(key::from_async(user));
    let paths = ["/", "/", "/pro", "/both", "/internal", "/pro", "/internal"];
    assert_eq!(
        statuses(&layer, &paths).await,
        [200, 429, 200, 429, 200, 200, 200]
    );
    assert_eq!(left(&limits, &pro, "ann").await, 1);
    let refused = layer
        .layer(Strict::default())
        .oneshot(Request::new(String::new()));
    assert_eq!(refused.await.unwrap().status(), 401);
}

#[tokio::test]
async fn policy_is_chosen_for_repeatedly_pending_key_with_cost() {
    let (limits, clock) = limiter();
    let (free, pro) = (bucket("free", 4), bucket("pro", 10));
    let cost = |request: &Request<String>| if request.uri().path() == "/both" { 3 } else { 2 };
    let layer = RateLimitLayer::new(&limits, tiers(&free, &pro))
        .key(repeatedly_pending)
        .cost_by(cost);
    assert_eq!(
        statuses(&layer, &["/both", "/", "/pro", "/internal"]).await,
        [200, 429, 200, 200]
    );
    let both = async || {
        (
            left(&limits, &free, "ann").await,
            left(&limits, &pro, "ann").await,
        )
    };
    assert_eq!(both().await, (1, 5));
    clock.advance(Duration::from_secs(1));
    assert_eq!(statuses(&layer, &["/"]).await, [200]);
    assert_eq!(both().await, (0, 6));
}

#[tokio::test]
async fn layer_cost_applies_unless_extraction_has_a_cost() {
    let (limits, _clock) = limiter();
    let (own, terms) = (bucket("own", 10), bucket("terms", 10));
    let answered = terms.clone();
    let hook = move |head: Parts| {
        let terms = match head.uri.path() {
            "/terms" => Some(RequestLimits::new(&answered, "ann")),
            "/at-four" => Some(RequestLimits::new(&answered, "ann").cost(4)),
            _ => None,
        };
        async move { terms.map_or_else(|| Extraction::Key("ann".into()), Extraction::Limits) }
    };
    let layer = RateLimitLayer::new(&limits, &own)
        .key(key::from_async(hook))
        .cost_by(|_: &Request<String>| 3);
    assert_eq!(
        statuses(&layer, &["/", "/terms", "/at-four"]).await,
        [200, 200, 200]
    );
    assert_eq!(left(&limits, &own, "ann").await, 7);
    assert_eq!(left(&limits, &terms, "ann").await, 3);
}

#[tokio::test]
async fn request_dropped_during_key_extraction_is_not_charged() {
    let (limits, _clock) = limiter();
    let policy = bucket("p", 3);
    let service = RateLimitLayer::new(&limits, tiers(&policy, &policy))
        .key(key::from_async(user))
        .cost_by(|_: &Request<String>| 3)
        .layer(Strict::default());
    for _ in 0..100 {
        let mut service = service.clone();
        let (response, polled) = super::begin(&mut service, at("/"));
        assert!(polled.is_pending());
        drop(response);
    }
    assert_eq!(left(&limits, &policy, "ann").await, 3);
    assert_eq!(service.oneshot(at("/")).await.unwrap().status(), 200);
}
