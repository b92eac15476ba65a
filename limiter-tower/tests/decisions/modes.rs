//! Requests under enforcement modes that do not reject.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use limiter_core::registry::{OnUnknownPolicy, PolicyRegistry, Suspension, SuspensionMode, SuspensionScope};
use limiter_core::{Decision, Enforcement, Limiter, ManualClock, Policy};
use limiter_tower::settlement::ActualCost;
use limiter_tower::{ConcurrencyLimitLayer, PolicySet, RateLimitLayer, RequestLimits, key};
use tower::{Layer, Service, ServiceExt};

use super::support::{Strict, limiter, request};
use super::{bucket, left};

async fn status<S, B>(service: S) -> u16
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible>,
{
    service.oneshot(request("ann")).await.unwrap().status().as_u16()
}

/// A closure can compute such a cost from client input.
#[tokio::test]
async fn invalid_cost_passes_without_enforcement() {
    for (enforcement, expected) in [
        (Enforcement::Enforce, 500),
        (Enforcement::Shadow, 200),
        (Enforcement::Off, 200),
    ] {
        for of_policy in [true, false] {
            let (limits, _clock) = limiter();
            let mut rate = Policy::token_bucket("p").capacity(3).rate("1/s");
            let mut flights = Policy::concurrency("flights").max(3);
            if of_policy {
                rate = rate.enforcement(enforcement);
                flights = flights.enforcement(enforcement);
            } else {
                limits.set_enforcement(enforcement);
            }
            let (rate, flights) = (rate.build().unwrap(), flights.build().unwrap());
            let by_key = || RateLimitLayer::new(&limits, &rate).key(key::header("x-api-key"));
            let minus_one = |_: &Request<String>| -1;
            let terms = rate.clone();
            let hook = move |_: &Request<String>| RequestLimits::new(&terms, "ann").cost(-1);
            let outbound = RateLimitLayer::outbound(&limits, rate.clone()).cost(-1);
            let patient = outbound.clone().max_wait(std::time::Duration::from_secs(1));
            let statuses = [
                status(by_key().cost(-1).layer(Strict::default())).await,
                status(by_key().cost_by(minus_one).layer(Strict::default())).await,
                status(
                    by_key()
                        .cost(-1)
                        .settle(ActualCost::body_bytes())
                        .layer(Strict::default()),
                )
                .await,
                status(RateLimitLayer::limits_for(&limits, hook).layer(Strict::default())).await,
                status(
                    ConcurrencyLimitLayer::new(&limits, &flights)
                        .key(key::global())
                        .cost(-1)
                        .layer(Strict::default()),
                )
                .await,
            ];
            assert_eq!(statuses, [expected; 5], "{enforcement:?}");
            for layer in [outbound, patient] {
                let sent = layer.layer(Strict::default()).oneshot(request("ann")).await;
                assert_eq!(sent.is_ok(), expected == 200, "{enforcement:?}");
            }
            limits.set_enforcement(Enforcement::Enforce);
            assert_eq!(left(&limits, &bucket("p", 3), "ann").await, 3, "{enforcement:?}");
        }
    }
}

/// A closure can return several policies, of which a concurrency layer applies one.
#[tokio::test]
async fn wrong_number_of_policies_passes_without_enforcement() {
    for (enforcement, expected) in [
        (Enforcement::Enforce, 500),
        (Enforcement::Shadow, 200),
        (Enforcement::Off, 200),
    ] {
        for of_policy in [true, false] {
            let (limits, _clock) = limiter();
            let flights = |name: &str| {
                let flights = Policy::concurrency(name).max(3);
                match of_policy {
                    true => flights.enforcement(enforcement),
                    false => flights,
                }
                .build()
                .unwrap()
            };
            let both = [flights("client"), flights("all")];
            if !of_policy {
                limits.set_enforcement(enforcement);
                let none = PolicySet::from(Vec::<Policy>::new());
                let layer = ConcurrencyLimitLayer::new(&limits, none).key(key::global());
                assert_eq!(status(layer.layer(Strict::default())).await, expected);
            }
            let at_once = ConcurrencyLimitLayer::new(&limits, both.clone()).key(key::global());
            let patient = at_once.clone().max_wait(Duration::from_secs(1));
            for layer in [at_once, patient] {
                assert_eq!(
                    status(layer.layer(Strict::default())).await,
                    expected,
                    "{enforcement:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn unknown_policy_passes_without_enforcement() {
    for (enforcement, expected) in [
        (Enforcement::Enforce, 500),
        (Enforcement::Shadow, 200),
        (Enforcement::Off, 200),
    ] {
        let limits = Limiter::in_process()
            .on_unknown_policy(OnUnknownPolicy::Deny)
            .build();
        limits.set_enforcement(enforcement);
        let rate = RateLimitLayer::new(&limits, "unknown").key(key::global());
        let flights = ConcurrencyLimitLayer::new(&limits, "unknown").key(key::global());
        let statuses = [
            status(
                rate.clone()
                    .max_wait(Duration::from_secs(1))
                    .layer(Strict::default()),
            )
            .await,
            status(rate.layer(Strict::default())).await,
            status(flights.layer(Strict::default())).await,
        ];
        assert_eq!(statuses, [expected; 3], "{enforcement:?}");
        let decision = limits.named("unknown").check("ann").await;
        let would_deny = decision.map(|decision| (decision.is_allowed(), decision.would_deny()));
        let expected = (expected == 200).then_some((true, enforcement == Enforcement::Shadow));
        assert_eq!(would_deny.ok(), expected, "{enforcement:?}");
    }
}

/// In combination with an enforced limit, only the enforced one is charged.
#[tokio::test]
async fn invalid_cost_in_shadow_mode_is_reported_as_denial() {
    let (limits, _clock) = limiter();
    let shadow = Policy::token_bucket("shadow").capacity(3).rate("1/s");
    let shadow = shadow.enforcement(Enforcement::Shadow).build().unwrap();
    let strict = bucket("strict", 3);
    let (ours, theirs) = (shadow.clone(), strict.clone());
    let hook = move |_: &Request<String>| {
        RequestLimits::new(&ours, "ann")
            .cost(-1)
            .and(RequestLimits::new(&theirs, "ann").cost(2))
    };
    let service = RateLimitLayer::limits_for(&limits, hook)
        .settle(ActualCost::from_response(|_| Some(1)))
        .layer(Strict::default());
    let response = service.oneshot(request("ann")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.extensions().get::<Decision>().unwrap().would_deny());
    assert_eq!(
        left(&limits, &strict, "ann").await,
        2,
        "the valid limit is settled"
    );
    assert_eq!(left(&limits, &shadow, "ann").await, 3);
}

#[tokio::test]
async fn decision_in_shadow_mode_has_error_of_store() {
    let (limits, _clock) = limiter();
    let rate = Policy::token_bucket("rate").capacity(3).rate("1/s");
    let rate = rate.enforcement(Enforcement::Shadow).build().unwrap();
    let flights = Policy::concurrency("flights").max(3);
    let flights = flights.enforcement(Enforcement::Shadow).build().unwrap();
    let rate = RateLimitLayer::new(&limits, rate).key(key::global());
    let flights = ConcurrencyLimitLayer::new(&limits, flights).key(key::global());
    limits.shutdown(Duration::ZERO).await;
    let answered = rate.layer(Strict::default()).oneshot(request("ann")).await;
    let (of_rate, _) = answered.unwrap().into_parts();
    let answered = flights.layer(Strict::default()).oneshot(request("ann")).await;
    let (of_flights, _) = answered.unwrap().into_parts();
    for head in [of_rate, of_flights] {
        let decision = head.extensions.get::<Decision>().unwrap();
        assert!(decision.would_deny());
        assert!(decision.store_error().is_some(), "{decision:?}");
    }
}

/// A suspension has the effect of the policy's own mode.
#[tokio::test]
async fn suspension_in_shadow_mode_omits_headers() {
    let (clock, registry) = (ManualClock::new(), PolicyRegistry::new());
    let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
    let end = clock.now().after(Duration::from_secs(60));
    let suspension = Suspension::new(SuspensionScope::All, SuspensionMode::Shadow, end);
    registry.suspend(suspension).unwrap();
    let flights = Policy::concurrency("flights").max(3).build().unwrap();
    let rate = RateLimitLayer::new(&limits, bucket("rate", 1)).key(key::global());
    let flights = ConcurrencyLimitLayer::new(&limits, flights).key(key::global());
    let service = flights.layer(rate.layer(Strict::default()));
    for _ in 0..2 {
        let response = service.clone().oneshot(request("ann")).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers().get("ratelimit"), None);
    }
}
