//! Errors in a layer's configuration are reported when it is verified or built, before the first
//! request.
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

mod support;

use limiter_core::registry::PolicyRegistry;
use limiter_core::{ConfigError, Limiter, Policy};
use limiter_testing::log::Warnings;
use limiter_tower::{ConcurrencyLimitLayer, PolicySet, RateLimitLayer, key};
use support::Strict;
use tower::Layer;

fn bucket(name: &str, capacity: u32) -> Policy {
    Policy::token_bucket(name)
        .capacity(capacity)
        .rate("1/s")
        .build()
        .unwrap()
}

fn concurrency(name: &str) -> Policy {
    Policy::concurrency(name).max(2).build().unwrap()
}

#[track_caller]
fn fails<T>(verified: Result<T, ConfigError>, reason: &str) {
    let error = verified.map(drop).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn layer_rejects_policy_of_wrong_kind() {
    let limits = Limiter::in_process().build();
    let expected = "policy of a layer is `c`, expected a policy of a rate";
    fails(RateLimitLayer::new(&limits, concurrency("c")).verify(), expected);
    fails(
        RateLimitLayer::new(&limits, [bucket("r", 1), concurrency("c")]).verify(),
        expected,
    );
    fails(
        RateLimitLayer::outbound(&limits, concurrency("c")).verify(),
        expected,
    );
    let expected = "policy of a layer is `r`, expected a policy of concurrency";
    fails(
        ConcurrencyLimitLayer::new(&limits, bucket("r", 1)).verify(),
        expected,
    );
    fails(
        ConcurrencyLimitLayer::new(&limits, [concurrency("a"), concurrency("b")]).verify(),
        "is `2`, expected 1",
    );
    assert!(RateLimitLayer::new(&limits, bucket("r", 1)).verify().is_ok());
    assert!(
        ConcurrencyLimitLayer::new(&limits, concurrency("c"))
            .verify()
            .is_ok()
    );
}

#[test]
fn layer_rejects_other_limits_under_one_name() {
    let limits = Limiter::in_process().build();
    let first = RateLimitLayer::new(&limits, bucket("api", 5)).key(key::global());
    let expected = "another name, or the limits of the other layer's policy of this name";
    fails(RateLimitLayer::new(&limits, bucket("api", 6)).verify(), expected);
    fails(
        RateLimitLayer::outbound(&limits, bucket("api", 6)).verify(),
        expected,
    );
    fails(
        ConcurrencyLimitLayer::new(&limits, concurrency("api")).verify(),
        expected,
    );

    // Equal limits share one budget by intention, and another limiter counts separately.
    assert!(RateLimitLayer::new(&limits, bucket("api", 5)).verify().is_ok());
    let elsewhere = Limiter::in_process().build();
    assert!(RateLimitLayer::new(&elsewhere, bucket("api", 6)).verify().is_ok());

    // A service keeps its layer's policies registered; a dropped layer does not.
    let service = first.clone().layer(Strict::default());
    drop(first);
    fails(RateLimitLayer::new(&limits, bucket("api", 6)).verify(), expected);
    drop(service);
    assert!(RateLimitLayer::new(&limits, bucket("api", 6)).verify().is_ok());
}

#[test]
fn layer_rejects_invalid_cost_missing_policies_and_unknown_names() {
    let registry = PolicyRegistry::new()
        .with(bucket("api", 5))
        .with(concurrency("exports"));
    let limits = Limiter::in_process().registry(&registry).build();
    fails(
        RateLimitLayer::new(&limits, "api").cost(-1).verify(),
        "amount is `-1`",
    );
    fails(
        RateLimitLayer::new(&limits, Vec::<PolicySet>::new()).verify(),
        "is `0`, expected at least 1",
    );
    fails(
        RateLimitLayer::new(&limits, "app").verify(),
        "name of a layer's policy is `app`",
    );
    fails(
        RateLimitLayer::outbound(&limits, "app").verify(),
        "name of a layer's policy is `app`",
    );
    fails(
        RateLimitLayer::new(&limits, "exports").verify(),
        "expected a policy of a rate",
    );
    fails(
        ConcurrencyLimitLayer::new(&limits, "api").verify(),
        "expected a policy of concurrency",
    );
    assert!(RateLimitLayer::new(&limits, "api").verify().is_ok());
    assert!(RateLimitLayer::outbound(&limits, "api").verify().is_ok());
    assert!(ConcurrencyLimitLayer::new(&limits, "exports").verify().is_ok());
}

#[test]
fn layer_logs_errors_once_when_it_wraps_a_service() {
    let errors = Warnings::default();
    let _recording = tracing::subscriber::set_default(errors.clone());
    let limits = Limiter::in_process().build();
    let rate = RateLimitLayer::new(&limits, bucket("api", 5)).key(key::global());
    let _service = rate.layer(Strict::default());
    let named = RateLimitLayer::new(&limits, "later").key(key::global());
    let _service = named.layer(Strict::default());
    assert!(errors.about("").is_empty(), "{:?}", errors.about(""));

    let conflicting = RateLimitLayer::new(&limits, bucket("api", 6)).key(key::global());
    let wrong_kind = ConcurrencyLimitLayer::new(&limits, bucket("rate", 5)).key(key::global());
    let outbound = RateLimitLayer::outbound(&limits, concurrency("c"));
    for _ in 0..3 {
        let _service = conflicting.clone().layer(Strict::default());
        let _service = wrong_kind.layer(Strict::default());
        let _service = outbound.layer(Strict::default());
    }
    for (layer, reason) in [
        ("RateLimitLayer", "another name"),
        ("ConcurrencyLimitLayer", "a policy of concurrency"),
        ("OutboundLayer", "a policy of a rate"),
    ] {
        let logged = errors.about(&format!("layer=\"{layer}\""));
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged.concat().contains(reason), "{logged:?}");
    }
}

fn with_denied(denied: &[&str]) -> Policy {
    let policy = Policy::token_bucket("api").capacity(5).rate("1/s");
    policy.deny_keys(denied).build().unwrap()
}

#[test]
fn layer_rejects_key_list_entries_longer_than_key_prefix() {
    let limits = Limiter::in_process().build();
    let layer = |denied: &[&str]| RateLimitLayer::new(&limits, with_denied(denied));
    let single = ["2001:db8::7", "10.0.0.0/8", "192.0.2.7"];
    let expected = "policy `api`: entry of deny_keys is `2001:db8::7`, expected at most 64 bits, which is the prefix of the layer's keys";
    fails(layer(&single).key(key::peer_ip()).verify(), expected);
    fails(
        layer(&single)
            .key(key::client_ip(key::TrustedProxies::hops(1)))
            .verify(),
        expected,
    );
    let several = layer(&["2001:db8::7", "192.0.2.7"])
        .key(key::peer_ip().ipv4_prefix(24))
        .verify();
    fails(
        several,
        "entry of deny_keys is `192.0.2.7`, expected at most 24 bits",
    );
    assert!(
        layer(&single)
            .key(key::peer_ip().ipv6_prefix(128))
            .verify()
            .is_ok()
    );
    assert!(layer(&["2001:db8::/64"]).key(key::peer_ip()).verify().is_ok());
    assert!(layer(&single).key(key::header("x-api-key")).verify().is_ok());

    let registry = PolicyRegistry::new().with(with_denied(&single));
    let named = Limiter::in_process().registry(&registry).build();
    fails(
        RateLimitLayer::new(&named, "api").key(key::peer_ip()).verify(),
        expected,
    );

    let exports = Policy::concurrency("exports")
        .max(2)
        .deny_keys(["2001:db8::7"])
        .build()
        .unwrap();
    let in_flight = ConcurrencyLimitLayer::new(&limits, exports).key(key::peer_ip());
    fails(
        in_flight.verify(),
        "policy `exports`: entry of deny_keys is `2001:db8::7`",
    );
}

#[test]
fn unverified_layer_warns_once_of_entries_that_never_match() {
    let errors = Warnings::default();
    let _guard = tracing::subscriber::set_default(errors.clone());
    let limits = Limiter::in_process().build();
    let layer = RateLimitLayer::new(&limits, with_denied(&["2001:db8::7", "192.0.2.7"])).key(key::peer_ip());
    let _services = [(); 2].map(|()| layer.clone().layer(Strict::default()));
    let warnings = errors.about("never match");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings.concat().contains("2001:db8::7") && !warnings.concat().contains("192.0.2.7"),
        "{warnings:?}"
    );
}
