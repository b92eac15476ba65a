//! Policy registries: their contents and the sources of the contents.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

#[cfg(feature = "serde")]
#[path = "registry/deserialize.rs"]
mod deserialize;
#[cfg(feature = "registry")]
#[path = "registry/file.rs"]
mod file;
#[cfg(feature = "registry")]
#[path = "registry/overlays.rs"]
mod overlays;
#[cfg(feature = "registry")]
#[path = "registry/properties.rs"]
mod properties;
#[cfg(feature = "registry")]
#[path = "registry/text.rs"]
mod text;
#[cfg(feature = "registry")]
#[path = "registry/text_errors.rs"]
mod text_errors;

use limiter_core::registry::{
    Block, BlockTarget, KeyOverride, OnUnknownPolicy, PolicyEntry, PolicyRegistry, Suspension,
    SuspensionMode, SuspensionScope,
};
use limiter_core::{Inheritance, Key, Limiter, ManualClock, Origin, Policy, Rejection, Timestamp};
use support::{bucket, funnel, secs, window};

#[tokio::test]
async fn policy_applies_to_listed_apps() {
    let entry = PolicyEntry::new(bucket("p", 1, 1));
    let listed = entry.clone().for_apps(["mobile", "checkout", "mobile"]).unwrap();
    assert_eq!(listed.apps().unwrap().collect::<Vec<_>>(), ["checkout", "mobile"]);
    assert!(entry.apps().is_none() && entry.is_for(None) && entry.is_for(Some("any")));
    let registry = PolicyRegistry::new().with(listed);
    for (app, is_listed) in [
        (Some("checkout"), true),
        (Some("mobile"), true),
        (Some("check"), false),
        (Some("checkout2"), false),
        (Some(""), false),
        (None, false),
    ] {
        let builder = Limiter::in_process().registry(&registry);
        let limits = match app {
            Some(app) => builder.app(app),
            None => builder,
        };
        let decision = limits.build().named("p").check("k").await.unwrap();
        let expected = if is_listed {
            Origin::Memory
        } else {
            Origin::NotConfigured
        };
        assert_eq!(decision.origin(), expected, "{app:?}");
    }
    assert_eq!(registry.not_configured(), 4);
}

#[test]
fn empty_app_list_is_rejected() {
    let entry = PolicyEntry::new(bucket("p", 1, 1));
    let result = |apps: &[&str]| {
        let refused = entry.clone().for_apps(apps.iter().copied());
        refused.unwrap_err().to_string()
    };
    assert_eq!(
        result(&[]),
        "apps is ``, expected at least one, or no list for all"
    );
    assert_eq!(result(&["a", ""]), "app is ``, expected 1 to 256 bytes");
}

#[tokio::test]
async fn unknown_policy_can_be_denied() {
    let limits = Limiter::in_process()
        .on_unknown_policy(OnUnknownPolicy::Deny)
        .build();
    let named = limits.named("p");
    let refused = |answer: Result<(), Rejection>| {
        assert!(matches!(answer, Err(Rejection::NotConfigured { policy }) if policy == "p"));
    };
    refused(named.check("k").await.map(drop));
    refused(named.peek("k").await.map(drop));
    refused(named.acquire("k").await.map(drop));
    refused(named.refund("k").await);
    refused(named.reset("k").await);
    assert_eq!(limits.registry().not_configured(), 5);
    limits.shutdown(secs(0)).await;
    assert!(named.check("k").await.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn change_waiter_is_notified() {
    let registry = PolicyRegistry::new();
    let before = registry.revision();
    let other = registry.clone();
    let change = tokio::spawn(async move { other.changed(before).await });
    tokio::task::yield_now().await;
    registry.set(bucket("p", 1, 1));
    assert_eq!(change.await.unwrap(), registry.revision());
    assert!(registry.revision() > before);

    let now = registry.revision();
    registry.set(bucket("p", 1, 1));
    assert!(!registry.remove("q") && !registry.remove_override("p", "k"));
    assert_eq!(registry.revision(), now, "nothing has changed");
}

#[test]
fn overrides_are_listed_and_follow_their_policy() {
    let registry = PolicyRegistry::new()
        .with(bucket("p", 2, 1))
        .with(bucket("q", 2, 1));
    let own = |key: Key<'static>, capacity: u32| KeyOverride::new(bucket("p", capacity, 1), key);
    let grouped = Key::from("a").in_group("g");
    for own in [own("b".into(), 3), own("a".into(), 4), own(grouped.clone(), 5)] {
        registry.set_override(own).unwrap();
    }
    let listed = || -> Vec<_> {
        let all = registry.overrides("p");
        all.iter().map(|own| own.policy().quota().whole()).collect()
    };
    assert_eq!((listed(), registry.overrides("q").len()), (vec![4, 5, 3], 0));
    assert!(registry.remove_override("p", &grouped) && !registry.remove_override("p", &grouped));
    assert_eq!(listed(), [4, 3]);

    // Numbers of a bucket mean nothing to a window, and are there again with the bucket.
    registry.set(window("p", 9, "1m"));
    assert!(listed().is_empty());
    registry.set(bucket("p", 9, 1));
    assert_eq!(listed(), [4, 3]);
    assert!(registry.remove("p"));
    registry.set(bucket("p", 9, 1));
    assert!(listed().is_empty(), "the overrides are removed with their policy");
}

#[test]
fn key_override_without_policy_is_rejected() {
    let registry = PolicyRegistry::new().with(funnel("p", 2, 1));
    let result = |own| registry.set_override(own).unwrap_err().to_string();
    assert_eq!(
        result(KeyOverride::new(bucket("q", 1, 1), "k")),
        "policy of an override is `q`, expected a policy that is in the registry"
    );
    assert_eq!(
        result(KeyOverride::new(bucket("p", 1, 1), "k")),
        "override is `p (token bucket: 1, refilled at 1/s)`, expected numbers for p (funnel: 2, drained at 1/s)"
    );
}

#[test]
fn key_overrides_are_bounded_and_expired_ones_removed() {
    let registry = PolicyRegistry::new().with(bucket("p", 2, 1));
    let own = |key: usize| KeyOverride::new(bucket("p", 3, 1), key);
    let past = ManualClock::new().now();
    for key in 0..PolicyRegistry::MAX_OVERRIDES {
        let own = if key < 10 { own(key).until(past) } else { own(key) };
        registry.set_override(own).unwrap();
    }
    registry.set_override(own(PolicyRegistry::MAX_OVERRIDES)).unwrap();
    assert_eq!(registry.overrides("p").len(), PolicyRegistry::MAX_OVERRIDES - 9);
    for key in 0..9 {
        registry.set_override(own(key)).unwrap();
    }
    let refused = registry.set_override(own(9)).unwrap_err().to_string();
    assert_eq!(refused, "number of overrides is `10001`, expected at most 10000");
    registry.set_override(own(20).until(past)).unwrap();
}

#[test]
fn overlays_are_bounded_and_ended_ones_removed() {
    const BLOCKS: usize = PolicyRegistry::MAX_BLOCKS;
    const SUSPENSIONS: usize = PolicyRegistry::MAX_SUSPENSIONS;
    let registry = PolicyRegistry::new();
    let past = ManualClock::new().now();
    let future = Timestamp::from(std::time::SystemTime::now() + secs(3_600));
    let block = |number: usize| Block::new(BlockTarget::Key(format!("user:{number}")));
    let suspension = |number: usize, end| {
        let scope = SuspensionScope::Policy(format!("policy {number}"));
        Suspension::new(scope, SuspensionMode::Deny, end)
    };
    let suspensions =
        (0..SUSPENSIONS).map(|number| suspension(number, if number < 2 { past } else { future }));
    let blocks = (0..BLOCKS).map(|number| match number < 2 {
        true => block(number).until(past),
        false => block(number),
    });
    registry.set_overlays(suspensions, blocks).unwrap();

    for number in [BLOCKS, 0] {
        registry.block(block(number)).unwrap();
    }
    let refused = registry.block(block(1)).unwrap_err().to_string();
    assert_eq!(refused, "number of blocks is `10001`, expected at most 10000");
    registry.block(block(2).until(past)).unwrap();
    assert_eq!(registry.blocks().len(), BLOCKS);

    for number in [SUSPENSIONS, 0] {
        registry.suspend(suspension(number, future)).unwrap();
    }
    let refused = registry.suspend(suspension(1, future)).unwrap_err().to_string();
    assert_eq!(refused, "number of suspensions is `1001`, expected at most 1000");
    registry.suspend(suspension(2, past)).unwrap();
    assert_eq!(registry.suspensions().len(), SUSPENSIONS);
}

/// Concurrent changes and lookups.
#[test]
fn registry_is_readable_during_changes() {
    let registry = PolicyRegistry::new()
        .with(bucket("p", 1, 1))
        .with(bucket("q", 1, 1));
    std::thread::scope(|scope| {
        for name in ["p", "q"] {
            let registry = &registry;
            scope.spawn(move || {
                for capacity in 1..2_000_u32 {
                    registry.set(bucket(name, capacity, 1));
                    registry
                        .set_override(KeyOverride::new(bucket(name, capacity, 1), "k"))
                        .unwrap();
                }
            });
            scope.spawn(move || {
                let mut last = 0;
                while last < 1_999 {
                    let capacity = registry.get(name).unwrap().policy().quota().whole();
                    assert!(capacity >= last, "{capacity} after {last}");
                    last = capacity;
                }
            });
        }
    });
    assert_eq!(registry.overrides("p")[0].policy().quota().whole(), 1_999);
    assert_eq!(registry.names(), ["p", "q"]);
}

#[tokio::test]
async fn key_override_applies_for_every_form_of_group() {
    let grouped = |capacity: u32| {
        let policy = Policy::token_bucket("p").capacity(capacity).rate(1).group("g");
        policy.build().unwrap()
    };
    let own = |key: Key<'static>, capacity: u32| KeyOverride::new(bucket("p", capacity, 1), key);
    let (alone, in_group) = (Key::from("k"), Key::from("k").in_group("g"));
    for round in 0..20 {
        let registry = PolicyRegistry::new().with(grouped(1));
        let limits = Limiter::in_process().registry(&registry).build();
        let counts = || async {
            for key in [&alone, &in_group] {
                let policy = limits.policy("p", key).unwrap();
                assert_eq!(
                    policy.quota(),
                    limits.policy("p", &alone).unwrap().quota(),
                    "{round}"
                );
            }
            limits.policy("p", &alone).unwrap().quota().whole()
        };
        registry.set_override(own(alone.clone(), 2)).unwrap();
        registry.set_override(own(in_group.clone(), 3)).unwrap();
        assert_eq!((counts().await, registry.overrides("p").len()), (3, 1));
        registry.set_override(own(alone.clone(), 4)).unwrap();
        assert_eq!(counts().await, 4, "the new override replaces the previous one");
        assert!(
            registry.remove_override("p", &in_group),
            "the override applies to both forms"
        );
        assert_eq!(counts().await, 1);

        // Two limits become one.
        registry.set(bucket("p", 1, 1));
        registry.set_override(own(in_group.clone(), 5)).unwrap();
        registry.set_override(own(alone.clone(), 6)).unwrap();
        assert_eq!(registry.overrides("p").len(), 2);
        registry.set(grouped(1));
        assert_eq!(counts().await, 5, "the override with the explicit group");
        registry.set_override(own(alone.clone(), 6)).unwrap();
        assert_eq!(counts().await, 6, "the override without a group remains alone");
    }
}

#[tokio::test]
async fn proportional_policy_remains_proportional_after_reset() {
    let (registry, clock) = (
        PolicyRegistry::new().with(bucket("p", 10, "1/h")),
        ManualClock::new(),
    );
    let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
    registry
        .change(bucket("p", 10, "1/h"), Inheritance::Reset)
        .unwrap();
    let used = limits.named("p").check("k").cost(5).await.unwrap();
    assert_eq!(used.remaining(), 5);
    clock.advance(secs(1));
    let old = registry.get("p").unwrap();
    let grown = bucket("p", 100, "10/h").proportional_to(old.policy(), clock.now());
    registry.set(grown.unwrap());
    assert_eq!(limits.named("p").peek("k").await.unwrap().remaining(), 50);
}

#[tokio::test]
async fn reset_discards_usage_of_trial() {
    let clock = ManualClock::new();
    let tried = bucket("p", 5, "1/h").with_trial(&bucket("p", 3, "1/h"), clock.now().after(secs(60)));
    let tried = tried.unwrap();
    let registry = PolicyRegistry::new().with(&tried);
    let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
    let left_in_trial = async || {
        let entry = registry.get("p").unwrap();
        let (trial, _) = entry.policy().trial().unwrap();
        limits.peek(trial, "k").await.unwrap().remaining()
    };
    limits
        .named("p")
        .check("k")
        .cost(2)
        .await
        .unwrap()
        .require()
        .unwrap();
    assert_eq!(left_in_trial().await, 1);
    registry.change(&tried, Inheritance::Reset).unwrap();
    assert_eq!(left_in_trial().await, 3);
    registry.set(&tried);
    assert_eq!(left_in_trial().await, 3, "the generation remains");
}

#[tokio::test]
async fn recreated_name_has_no_usage_from_before_reset() {
    let registry = PolicyRegistry::new().with(bucket("p", 5, "1/h"));
    let limits = Limiter::in_process()
        .clock(&ManualClock::new())
        .registry(&registry)
        .build();
    let named = limits.named("p");
    assert!(named.check("k").cost(5).await.unwrap().is_allowed());
    registry
        .change(bucket("p", 5, "1/h"), Inheritance::Reset)
        .unwrap();
    assert!(named.check("k").cost(2).await.unwrap().is_allowed());
    assert!(registry.remove("p"));
    registry.set(bucket("p", 5, "1/h"));
    assert_eq!(
        named.peek("k").await.unwrap().remaining(),
        3,
        "usage since the reset counts"
    );
    assert!(registry.remove("p"));
    registry
        .change(bucket("p", 5, "1/h"), Inheritance::Reset)
        .unwrap();
    assert_eq!(named.peek("k").await.unwrap().remaining(), 5);
}

#[test]
fn policy_name_cannot_change_from_rate_to_concurrency() {
    let held = || Policy::concurrency("p").max(3).build().unwrap();
    let registry = PolicyRegistry::new().with(bucket("p", 5, "1/h"));
    let refused = registry.change(held(), Inheritance::AsIs).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("policy `p` changes from p (token bucket"),
        "{refused}"
    );
    assert_eq!(registry.get("p").unwrap().policy(), &bucket("p", 5, "1/h"));
    assert!(registry.remove("p"));
    registry.change(held(), Inheritance::AsIs).unwrap();
}
