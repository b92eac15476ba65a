//! Policies of a registry.

use std::time::Duration;

use limiter_core::annotations::with_limiter;
use limiter_core::registry::{OnUnknownPolicy, PolicyRegistry};
use limiter_core::{
    Inheritance, Limiter, ManualClock, OnDenial, Policy, Rejection, concurrency_limiter, token_limiter,
    window_limiter,
};

fn slow() -> Result<&'static str, Rejection> {
    Ok("slow down")
}

#[token_limiter(policy = "search", key = "{user}", fallback = slow)]
async fn search(user: &str) -> Result<&'static str, Rejection> {
    let _ = user;
    Ok("found")
}

/// A limit of the attribute, combined with one of the registry.
#[window_limiter(name = "send", limit = 3, window = "1h", key = "{to}")]
#[token_limiter(policy = "sms", key = "{to}", fallback = slow)]
async fn send(to: &str) -> Result<&'static str, Rejection> {
    let _ = to;
    Ok("sent")
}

#[concurrency_limiter(policy = "export", key = "{tenant}")]
async fn export(tenant: &str, within: Option<&'static str>) -> Result<&'static str, Rejection> {
    match within {
        Some(other) => Box::pin(export(other, None)).await,
        None => Ok(if tenant == "ann" { "all of ann" } else { "all" }),
    }
}

fn sized(name: &str, capacity: u32) -> Policy {
    Policy::token_bucket(name)
        .capacity(capacity)
        .rate("1/h")
        .build()
        .unwrap()
}

fn with_registry(registry: &PolicyRegistry) -> Limiter {
    Limiter::in_process()
        .clock(&ManualClock::new())
        .registry(registry)
        .build()
}

#[tokio::test]
async fn registry_policy_applies_to_next_call() {
    let registry = PolicyRegistry::new();
    with_limiter(with_registry(&registry), async {
        for _ in 0..3 {
            assert_eq!(
                search("ann").await.unwrap(),
                "found",
                "an unconfigured policy allows"
            );
        }
        assert_eq!(registry.not_configured(), 3);
        registry.set(sized("search", 1));
        assert_eq!(search("ann").await.unwrap(), "found");
        assert_eq!(search("ann").await.unwrap(), "slow down");
        assert_eq!(search("bob").await.unwrap(), "found");
    })
    .await;
}

#[tokio::test]
async fn unknown_policy_is_not_charged() {
    let registry = PolicyRegistry::new();
    with_limiter(with_registry(&registry), async {
        assert_eq!(send("ann").await.unwrap(), "sent");
        registry.set(sized("sms", 1));
        assert_eq!(send("ann").await.unwrap(), "sent");
        assert_eq!(
            send("ann").await.unwrap(),
            "slow down",
            "the registry's own fallback"
        );
        registry.remove("sms");
        assert_eq!(send("ann").await.unwrap(), "sent");
        assert!(
            send("ann").await.unwrap_err().is_limited(),
            "three calls were admitted"
        );
    })
    .await;
}

#[tokio::test]
async fn unknown_policy_may_be_rejected() {
    let limits = Limiter::in_process()
        .on_unknown_policy(OnUnknownPolicy::Deny)
        .build();
    with_limiter(limits, async {
        let rejected = export("ann", None).await;
        assert!(matches!(rejected, Err(Rejection::NotConfigured { policy }) if policy == "export"));
    })
    .await;
}

#[tokio::test]
async fn registry_sets_concurrency_maximum() {
    let registry = PolicyRegistry::new();
    with_limiter(with_registry(&registry), async {
        assert_eq!(export("ann", Some("ann")).await.unwrap(), "all of ann");
        registry.set(Policy::concurrency("export").max(1).build().unwrap());
        assert!(export("ann", Some("ann")).await.unwrap_err().is_limited());
        assert_eq!(export("ann", Some("bob")).await.unwrap(), "all");
        // A rate policy is charged once, and holds no permit.
        registry.set(sized("export", 2));
        assert_eq!(export("ann", Some("ann")).await.unwrap(), "all of ann");
        assert!(export("ann", None).await.unwrap_err().is_limited());
    })
    .await;
}

/// An attribute for rates rejects a concurrency policy, and names the right attribute.
#[tokio::test]
async fn concurrency_policy_needs_concurrency_attribute() {
    let registry = PolicyRegistry::new().with(Policy::concurrency("search").max(1).build().unwrap());
    with_limiter(with_registry(&registry), async {
        assert_eq!(search("ann").await.unwrap(), "slow down");
        assert!(matches!(send("ann").await, Ok("sent")));
    })
    .await;
}

#[tokio::test]
async fn concurrency_wait_is_set_by_policy() {
    let policy = Policy::concurrency("export").max(1);
    let policy = policy
        .on_denial(OnDenial::Wait(Duration::from_secs(60)))
        .build()
        .unwrap();
    let registry = PolicyRegistry::new();
    registry.set(policy.clone());
    let limits = with_registry(&registry);
    let held = limits.acquire_concurrency(&policy, "ann").await.unwrap();
    with_limiter(limits, async {
        let mut waiting = Box::pin(export("ann", None));
        let at_once = tokio::time::timeout(Duration::from_millis(20), &mut waiting).await;
        assert!(at_once.is_err(), "{at_once:?}");
        drop(held);
        assert_eq!(waiting.await.unwrap(), "all of ann");
    })
    .await;
}

#[token_limiter(policy = "queue", key = "{user}", wait = "1h")]
async fn queue(user: &str) -> Result<&'static str, Rejection> {
    let _ = user;
    Ok("served")
}

#[concurrency_limiter(policy = "counter", wait = "1h")]
async fn counter(registry: Option<&PolicyRegistry>) -> Result<&'static str, Rejection> {
    if let Some(registry) = registry {
        let mut waiting = Box::pin(counter(None));
        let at_once = tokio::time::timeout(Duration::ZERO, &mut waiting).await;
        assert!(at_once.is_err(), "{at_once:?}");
        let policy = Policy::concurrency("counter").max(1).build().unwrap();
        registry.change(policy, Inheritance::Reset).unwrap();
        return tokio::time::timeout(Duration::from_secs(30), waiting)
            .await
            .unwrap();
    }
    Ok("served")
}

#[tokio::test]
async fn reset_in_registry_ends_wait() {
    let registry = PolicyRegistry::new();
    registry.set(sized("queue", 1));
    registry.set(Policy::concurrency("counter").max(1).build().unwrap());
    with_limiter(with_registry(&registry), async {
        assert_eq!(queue("ann").await.unwrap(), "served");
        let mut waiting = Box::pin(queue("ann"));
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
        registry.change(sized("queue", 1), Inheritance::Reset).unwrap();
        let served = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert_eq!(served.unwrap().unwrap(), "served");
        assert_eq!(counter(Some(&registry)).await.unwrap(), "served");
    })
    .await;
}
