//! Policies, keys and costs for each request.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use limiter_core::registry::{OnUnknownPolicy, PolicyRegistry};
use limiter_core::{Enforcement, Key, Limiter, ManualClock, OnDenial, Policy};
use limiter_tower::key::{self, Extraction};
use limiter_tower::{PolicySet, RateLimitLayer, RequestLimits};
use tower::{Layer, ServiceExt};

use super::support::{Strict, limiter, request};
use super::{bucket, left};

async fn status<S, B>(service: &S, request: Request<String>) -> u16
where
    S: tower::Service<Request<String>, Response = http::Response<B>> + Clone,
    S::Error: std::fmt::Debug,
{
    service.clone().oneshot(request).await.unwrap().status().as_u16()
}

fn at(path: &str) -> Request<String> {
    Request::get(path)
        .header("x-api-key", "ann")
        .body(String::new())
        .unwrap()
}

#[tokio::test]
async fn several_policies_are_charged_atomically() {
    let (limits, clock) = limiter();
    let (burst, daily) = (bucket("burst", 2), bucket("daily", 3));
    let service = RateLimitLayer::new(&limits, [&burst, &daily])
        .key(key::header("x-api-key"))
        .layer(Strict::default());

    assert_eq!(status(&service, at("/")).await, 200);
    assert_eq!(status(&service, at("/")).await, 200);
    assert_eq!(status(&service, at("/")).await, 429);
    assert_eq!(
        (
            left(&limits, &burst, "ann").await,
            left(&limits, &daily, "ann").await
        ),
        (0, 1),
        "a denial charges nothing"
    );
    clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(status(&service, at("/")).await, 200);
}

#[tokio::test]
async fn several_policies_are_decided_in_call() {
    let (limits, _clock) = limiter();
    let (burst, daily) = (bucket("burst", 5), bucket("daily", 5));
    let mut service = RateLimitLayer::new(&limits, vec![burst.clone(), daily])
        .key(key::global())
        .layer(Strict::default());
    drop(tower::Service::call(
        service.ready().await.unwrap(),
        request("ann"),
    ));
    let left = limits.peek(&burst, Key::global()).await.unwrap().remaining();
    assert_eq!(left, 4);
}

#[tokio::test]
async fn closure_selects_tier_after_key_extraction() {
    let (limits, _clock) = limiter();
    let (free, pro) = (bucket("free", 1), bucket("pro", 3));
    let (ours, theirs) = (free.clone(), pro.clone());
    let tiers = move |request: &Request<String>| match request.uri().path() {
        "/pro" => PolicySet::from(&theirs),
        "/internal" => PolicySet::unlimited(),
        "/both" => PolicySet::from([&ours, &theirs]),
        "/none" => PolicySet::from(Vec::<Policy>::new()),
        _ => PolicySet::from(&ours),
    };
    let service = RateLimitLayer::new(&limits, tiers)
        .key(key::header("x-api-key").or_reject(401))
        .layer(Strict::default());

    assert_eq!(status(&service, Request::new(String::new())).await, 401);
    assert_eq!(status(&service, at("/")).await, 200);
    assert_eq!(status(&service, at("/")).await, 429);
    for _ in 0..10 {
        assert_eq!(status(&service, at("/internal")).await, 200);
    }
    assert_eq!(status(&service, at("/both")).await, 429);
    assert_eq!(status(&service, at("/pro")).await, 200);
    assert_eq!(left(&limits, &pro, "ann").await, 2);
    assert_eq!(
        status(&service, at("/none")).await,
        500,
        "an empty list is an error"
    );
}

#[tokio::test]
async fn unknown_tier_name_follows_limiter_setting() {
    let registry = PolicyRegistry::new().with(bucket("free", 1));
    for (on_unknown_policy, expected) in [(OnUnknownPolicy::Allow, 200), (OnUnknownPolicy::Deny, 500)] {
        let limits = Limiter::in_process()
            .clock(&ManualClock::new())
            .registry(&registry)
            .on_unknown_policy(on_unknown_policy)
            .build();
        let tiers = |request: &Request<String>| request.uri().path()[1..].to_owned();
        let service = RateLimitLayer::new(&limits, tiers)
            .key(key::header("x-api-key"))
            .layer(Strict::default());
        assert_eq!(status(&service, at("/free")).await, 200);
        assert_eq!(status(&service, at("/free")).await, 429);
        assert_eq!(status(&service, at("/pro")).await, expected);
        let both = RateLimitLayer::new(&limits, ["pro", "free"])
            .key(key::header("x-api-key"))
            .layer(Strict::default());
        let expected = if expected == 200 { 429 } else { 500 };
        assert_eq!(
            status(&both, at("/")).await,
            expected,
            "the existing policy applies"
        );
    }
}

#[tokio::test]
async fn hook_sets_policies_keys_costs_skips_and_rejections() {
    let (limits, _clock) = limiter();
    let (reads, writes) = (bucket("reads", 10), bucket("writes", 10));
    let (r, w) = (reads.clone(), writes.clone());
    let hook = move |request: &Request<String>| {
        let key = request
            .headers()
            .get("x-api-key")
            .ok_or(StatusCode::UNAUTHORIZED)?;
        let key = Key::from(key.as_bytes()).into_owned();
        Ok::<_, StatusCode>(match (request.method(), request.uri().path()) {
            (_, "/health") => RequestLimits::unlimited(),
            (&Method::GET, _) => RequestLimits::new(&r, key),
            _ => RequestLimits::new(&w, key.clone())
                .cost(6)
                .and(RequestLimits::new(&r, key)),
        })
    };
    let service = RateLimitLayer::limits_for(&limits, hook)
        .cost(2)
        .layer(Strict::default());
    let post = || {
        Request::post("/")
            .header("x-api-key", "ann")
            .body(String::new())
            .unwrap()
    };

    assert_eq!(status(&service, Request::new(String::new())).await, 401);
    assert_eq!(status(&service, at("/health")).await, 200);
    assert_eq!(status(&service, at("/")).await, 200);
    assert_eq!(status(&service, post()).await, 200);
    let both = (
        left(&limits, &reads, "ann").await,
        left(&limits, &writes, "ann").await,
    );
    assert_eq!(both, (6, 4), "limits without a cost have the layer's cost");
    assert_eq!(status(&service, post()).await, 429);
    assert_eq!(left(&limits, &reads, "ann").await, 6);
}

#[tokio::test]
async fn keys_of_several_limits_must_share_a_group() {
    let (limits, _clock) = limiter();
    let (user, tenant) = (bucket("user", 1), bucket("tenant", 10));
    let (u, t) = (user.clone(), tenant.clone());
    let hook = move |request: &Request<String>| {
        let apart = request.uri().path() == "/apart";
        let key = Key::from("ann");
        let key = if apart { key } else { key.in_group("acme") };
        RequestLimits::new(&u, key).and(RequestLimits::new(&t, Key::from("acme").in_group("acme")))
    };
    let service = RateLimitLayer::limits_for(&limits, hook).layer(Strict::default());
    assert_eq!(status(&service, at("/apart")).await, 500);
    assert_eq!(status(&service, at("/")).await, 200);
    assert_eq!(status(&service, at("/")).await, 429);
    let left = limits.peek(&tenant, Key::from("acme").in_group("acme")).await;
    assert_eq!(left.unwrap().remaining(), 9);
}

#[tokio::test]
async fn cost_is_computed_for_each_request() {
    let (limits, _clock) = limiter();
    let policy = bucket("rows", 10);
    let by_path = |request: &Request<String>| request.uri().path()[1..].parse::<i32>().unwrap();
    let layer = RateLimitLayer::new(&limits, &policy)
        .cost(100)
        .key(key::header("x-api-key"))
        .cost_by(by_path);
    let service = layer.layer(Strict::default());

    assert_eq!(status(&service, at("/7")).await, 200);
    assert_eq!(status(&service, at("/4")).await, 429);
    assert_eq!(status(&service, at("/0")).await, 200);
    assert_eq!(status(&service, at("/3")).await, 200);
    assert_eq!(status(&service, at("/-1")).await, 500);
    assert_eq!(status(&service, at("/11")).await, 429, "the cost never fits");
    assert_eq!(left(&limits, &policy, "ann").await, 0);

    // A cost in the request limits overrides the layer's.
    let terms = bucket("terms", 10);
    let of_terms = terms.clone();
    let service = RateLimitLayer::limits_for(&limits, move |_: &Request<String>| {
        RequestLimits::new(&of_terms, "ann")
            .cost(2)
            .and(RequestLimits::new("other", "ann"))
    })
    .cost_by(by_path)
    .layer(Strict::default());
    assert_eq!(status(&service, at("/9")).await, 200);
    assert_eq!(left(&limits, &terms, "ann").await, 8);
}

#[tokio::test]
async fn extractor_can_return_its_own_limits() {
    let (limits, _clock) = limiter();
    let (usual, special) = (bucket("usual", 5), bucket("special", 1));
    let of_special = special.clone();
    let extractor = move |request: &Request<String>| match request.uri().path() {
        "/special" => Extraction::from(RequestLimits::new(&of_special, "ann")),
        _ => Extraction::Key("ann".into()),
    };
    let service = RateLimitLayer::new(&limits, &usual)
        .key(extractor)
        .layer(Strict::default());
    assert_eq!(status(&service, at("/special")).await, 200);
    assert_eq!(status(&service, at("/special")).await, 429);
    assert_eq!(status(&service, at("/")).await, 200);
    assert_eq!(left(&limits, &usual, "ann").await, 4);
}

#[tokio::test]
async fn strictest_policy_determines_denial() {
    let (limits, _clock) = limiter();
    let degrades = Policy::token_bucket("degrades")
        .capacity(1)
        .rate("1/h")
        .on_denial(OnDenial::Degrade)
        .build()
        .unwrap();
    let service = RateLimitLayer::new(&limits, [&degrades])
        .key(key::global())
        .layer(Strict::default());
    assert_eq!(status(&service, at("/")).await, 200);
    assert_eq!(status(&service, at("/")).await, 200, "the request is degraded");
    let service = RateLimitLayer::new(&limits, [&degrades, &bucket("rejects", 5)])
        .key(key::global())
        .layer(Strict::default());
    assert_eq!(status(&service, at("/")).await, 429);
}

#[tokio::test]
async fn shadow_denial_is_attached_to_response() {
    let (limits, _clock) = limiter();
    limits.set_enforcement(Enforcement::Shadow);
    let service = RateLimitLayer::new(&limits, [bucket("a", 1), bucket("b", 1)])
        .key(key::global())
        .layer(Strict::default());
    let shown = async || {
        let response = service.clone().oneshot(at("/")).await.unwrap();
        assert_eq!(response.status(), 200);
        response
            .extensions()
            .get::<limiter_core::Decision>()
            .map(limiter_core::Decision::would_deny)
    };
    assert_eq!(shown().await, None);
    assert_eq!(shown().await, Some(true));
}

#[tokio::test]
async fn unlimited_request_is_not_counted() {
    let (limits, _clock) = limiter();
    let policy = bucket("p", 1);
    let unlimited = |_: &Request<String>| Extraction::Limits(RequestLimits::unlimited());
    let by_nothing = RateLimitLayer::new(&limits, PolicySet::unlimited()).key(key::header("x-api-key"));
    let at_a_cost = by_nothing.clone().cost_by(|_: &Request<String>| 3);
    let waiting = by_nothing
        .clone()
        .max_wait(std::time::Duration::from_secs(1))
        .count_if(|_| true);
    for _ in 0..3 {
        assert_eq!(status(&by_nothing.layer(Strict::default()), at("/")).await, 200);
        assert_eq!(status(&at_a_cost.layer(Strict::default()), at("/")).await, 200);
        assert_eq!(status(&waiting.layer(Strict::default()), at("/")).await, 200);
        let answered = RateLimitLayer::new(&limits, &policy).key(unlimited);
        assert_eq!(status(&answered.layer(Strict::default()), at("/")).await, 200);
    }
    assert_eq!(
        status(&by_nothing.layer(Strict::default()), Request::new(String::new())).await,
        400,
        "the key is extracted nevertheless"
    );
    let without_policies = RateLimitLayer::new(&limits, Vec::<Policy>::new()).key(key::header("x-api-key"));
    assert_eq!(
        status(&without_policies.layer(Strict::default()), at("/")).await,
        500
    );
    assert_eq!(limits.peek(&policy, "ann").await.unwrap().remaining(), 1);
}

#[tokio::test]
async fn unknown_name_beside_other_policies_is_counted_once() {
    let registry = PolicyRegistry::new();
    let limits = Limiter::in_process()
        .clock(&ManualClock::new())
        .registry(&registry);
    let known = ["burst", "daily"].map(|name| PolicySet::from(bucket(name, 2)));
    let all = PolicySet::from_iter([PolicySet::from("unknown"), PolicySet::from(known)]);
    let service = RateLimitLayer::new(&limits.build(), all)
        .key(key::header("x-api-key"))
        .max_wait(Duration::from_secs(1))
        .layer(Strict::default());

    for calls in 1..=2 {
        assert_eq!(status(&service, at("/")).await, 200);
        assert_eq!(registry.not_configured(), calls);
    }
}

#[test]
fn request_limits_with_equal_fields_are_equal() {
    let policy = bucket("p", 1);
    let terms = |cost: u32| Extraction::Limits(RequestLimits::new(&policy, "ann").cost(cost));
    assert_eq!(terms(2), terms(2));
    assert_ne!(terms(2), terms(3));
}

#[tokio::test]
async fn setters_apply_in_any_order() {
    let (limits, _clock) = limiter();
    let policy = bucket("p", 6);
    let skips = |request: &Request<String>| request.uri().path() == "/alive";
    let costs = |request: &Request<String>| if request.uri().path() == "/export" { 3 } else { 1 };
    let chosen = {
        let policy = policy.clone();
        move |_: &Request<String>| policy.clone()
    };
    let new = || RateLimitLayer::new(&limits, &policy);
    let key = || key::header("x-api-key");
    let services = [
        tower::util::BoxCloneSyncService::new(
            new()
                .key(key())
                .skip(skips)
                .cost_by(costs)
                .layer(Strict::default()),
        ),
        tower::util::BoxCloneSyncService::new(
            new()
                .skip(skips)
                .cost_by(costs)
                .key(key())
                .layer(Strict::default()),
        ),
        tower::util::BoxCloneSyncService::new(
            new()
                .cost_by(costs)
                .key(key())
                .skip(skips)
                .layer(Strict::default()),
        ),
        tower::util::BoxCloneSyncService::new(
            RateLimitLayer::new(&limits, chosen)
                .skip(skips)
                .key(key())
                .cost_by(costs)
                .layer(Strict::default()),
        ),
    ];
    for service in services {
        let without_key = Request::get("/alive").body(String::new()).unwrap();
        assert_eq!(status(&service, without_key).await, 200);
        assert_eq!(status(&service, at("/row")).await, 200);
        assert_eq!(status(&service, at("/export")).await, 200);
        assert_eq!(left(&limits, &policy, "ann").await, 2);
        assert_eq!(status(&service, at("/export")).await, 429);
        limits.reset(&policy, "ann").await.unwrap();
    }
}
