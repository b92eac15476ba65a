//! The log of the layers.
#![allow(clippy::unwrap_used, reason = "a test ends that way")]

mod support;

use std::sync::Arc;

use http::Request;
use limiter_core::annotations::with_limiter;
use limiter_core::registry::PolicyRegistry;
use limiter_core::{Key, Limiter, Policy, Rejection, token_limiter};
use limiter_tower::key::{self, KeyExtractor};
use limiter_tower::{RateLimitLayer, RequestLimits};
use tower::{Layer, ServiceExt};

use limiter_testing::log::Warnings;
use support::{Strict, limiter, one_a_minute, request};

fn hidden() -> &'static str {
    "hidden"
}

#[token_limiter(capacity = 5, rate = 1, need = cost, fallback = hidden)]
async fn costly(cost: i64) -> &'static str {
    let _ = cost;
    "done"
}

/// One test, since the log belongs to the whole program.
#[tokio::test]
async fn misconfiguration_hidden_by_fallback_is_logged_once() {
    let errors = Warnings::default();
    tracing::subscriber::set_global_default(errors.clone()).unwrap();
    let (limits, _clock) = limiter();

    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(key::global())
        .cost(-1)
        .layer(Strict::default());
    for _ in 0..3 {
        let response = service.clone().oneshot(request("ann")).await.unwrap();
        assert_eq!(response.status(), 500);
        let rejection = response.extensions().get::<Rejection>().map(Rejection::to_string);
        assert_eq!(rejection.as_deref(), Some("the rate limiter is misconfigured"));
    }
    let of_the_layer = errors.about("place=RateLimitLayer");
    assert_eq!(of_the_layer.len(), 1, "{of_the_layer:?}");
    assert!(
        of_the_layer.concat().contains("amount is `-1`"),
        "{of_the_layer:?}"
    );

    with_limiter(limits.clone(), async {
        for _ in 0..3 {
            assert_eq!(costly(-1).await, "hidden");
        }
        for _ in 0..6 {
            costly(1).await;
        }
    })
    .await;
    let of_the_function = errors.about("log::costly");
    assert_eq!(of_the_function.len(), 1, "{of_the_function:?}");
    assert_eq!(
        errors.about("a layer is misconfigured").len(),
        1,
        "logged when the layer was built"
    );
    assert_eq!(errors.about("").len(), 3, "a denial is not a misconfiguration");

    missing_keys_are_logged_with_remedy(&errors);
    log_names_policies_and_no_keys(&errors, &limits).await;
}

fn missing_keys_are_logged_with_remedy(errors: &Warnings) {
    let lists = |list: &str| {
        let mut request = request("ann");
        request
            .headers_mut()
            .insert("x-forwarded-for", list.parse().unwrap());
        request
    };
    for _ in 0..3 {
        let _ = key::peer_ip().extract(&request("ann"));
        let _ = key::client_ip(key::TrustedProxies::hops(0)).extract(&lists("192.0.2.1"));
    }
    let of_peers = errors.about("the peer's address is missing");
    assert_eq!(of_peers.len(), 1, "{of_peers:?}");
    assert!(
        of_peers
            .concat()
            .contains("into_make_service_with_connect_info::<SocketAddr>()"),
        "{of_peers:?}"
    );

    let mut forwarded = lists("192.0.2.1");
    forwarded
        .extensions_mut()
        .insert(std::net::SocketAddr::from(([10, 0, 7, 1], 80)));
    for _ in 0..3 {
        let _ = key::peer_ip().extract(&forwarded);
        let _ = key::client_ip(key::TrustedProxies::hops(1)).extract(&forwarded);
    }
    let of_proxies = errors.about("forwarded request limited");
    assert_eq!(of_proxies.len(), 1, "{of_proxies:?}");

    for _ in 0..3 {
        let _ = key::client_ip(key::TrustedProxies::hops(2)).extract(&forwarded);
    }
    let of_clients = errors.about("client address missing");
    assert_eq!(of_clients.len(), 1, "{of_clients:?}");
    assert!(of_clients.concat().contains("Hops(2)"), "{of_clients:?}");

    for _ in 0..3 {
        let _ = key::extension(|name: &String| name).extract(&forwarded);
    }
    assert_eq!(errors.about("extension is missing").len(), 1);
    assert_eq!(errors.about("").len(), 7, "no other events");

    // Throttling the log of one layer hides no record of another layer.
    for _ in 0..3 {
        let _ = key::client_ip(key::TrustedProxies::hops(3)).extract(&forwarded);
        let _ = key::client_ip(key::TrustedProxies::hops(3))
            .forwarded()
            .extract(&forwarded);
        let _ = key::client_ip(key::TrustedProxies::hops(1)).extract(&lists("unknown"));
        let _ = key::extension(|name: &Arc<str>| &**name).extract(&forwarded);
    }
    let of_clients = errors.about("client address missing");
    assert_eq!(of_clients.len(), 4, "{of_clients:?}");
    for part in ["Hops(3)", "header=forwarded", "sent no address"] {
        assert!(of_clients.concat().contains(part), "{of_clients:?}");
    }
    assert_eq!(errors.about("extension is missing").len(), 2);
}

/// Log messages identify the layer, and never the client.
async fn log_names_policies_and_no_keys(errors: &Warnings, limits: &Limiter) {
    const KEY: &str = "sk_live_4711";
    let policy = |name: &str| Policy::token_bucket(name).capacity(5).rate(1).build().unwrap();
    let registry = PolicyRegistry::new().with(policy("named"));
    let of_the_registry = Limiter::in_process().registry(&registry).build();
    let by_key = || key::header("x-api-key");

    let several = RateLimitLayer::new(limits, [policy("first"), policy("second")]);
    let several = several.key(by_key()).cost(-1).layer(Strict::default());
    let named = RateLimitLayer::new(&of_the_registry, "named")
        .key(by_key())
        .cost(-1);
    let named = named.layer(Strict::default());
    let (user, all) = (policy("user"), policy("all"));
    let groups = RateLimitLayer::limits_for(limits, move |request: &Request<String>| {
        let key = request.headers()["x-api-key"].to_str().unwrap().to_owned();
        RequestLimits::new(&user, key).and(RequestLimits::new(&all, Key::global()))
    });
    let groups = groups.layer(Strict::default());
    let found = policy("found");
    let costs = RateLimitLayer::limits_for(limits, move |request: &Request<String>| {
        let key = request.headers()["x-api-key"].to_str().unwrap().to_owned();
        RequestLimits::new(&found, key).cost("many")
    });
    let costs = costs.layer(Strict::default());
    for _ in 0..3 {
        let responses = [
            several.clone().oneshot(request(KEY)).await,
            named.clone().oneshot(request(KEY)).await,
            groups.clone().oneshot(request(KEY)).await,
            costs.clone().oneshot(request(KEY)).await,
        ];
        for response in responses {
            assert_eq!(response.unwrap().status(), 500);
        }
    }
    for expected in [
        "place=RateLimitLayer of `first`, `second`",
        "place=RateLimitLayer of `named`",
        "share a group, and those of policies `user` and `all` do not",
        "`standalone_only()`",
        "with at most three decimals, for policy `found`",
    ] {
        let records = errors.about(expected);
        assert_eq!(records.len(), 1, "{expected}: {:?}", errors.about("place="));
    }
    assert!(errors.about(KEY).is_empty(), "{:?}", errors.about(KEY));
}
