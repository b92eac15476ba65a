//! Lifetime of configurations and usage: deletion, expiry and limits of the registry.

use limiter_core::registry::PolicyEntry;
use limiter_redisson::{Client, RateType};

use crate::support::{self, secs};
use crate::{World, configured, extend_deadline};

pub(crate) async fn deletion_removes_configuration_and_usage(world: World) {
    for of in [RateType::Overall, RateType::PerClient] {
        let limiter = world.configured(of, 5, "1h").await;
        assert!(limiter.try_acquire(5).await.unwrap());
        assert!(limiter.delete().await.unwrap());
        assert!(!limiter.delete().await.unwrap() && !limiter.exists().await.unwrap());
        assert!(limiter.try_set_rate(of, 5, "1h").await.unwrap());
        assert_eq!(limiter.available_permits().await.unwrap(), 5);
    }
}

pub(crate) async fn usage_from_before_reset_does_not_return(world: World) {
    let limits = (world.make)();
    let limiter = configured(&limits, RateType::Overall, 10, "1d").await;
    assert!(limiter.try_acquire(10).await.unwrap());
    limiter.set_rate(RateType::Overall, 10, "1d").await.unwrap();
    assert!(limiter.delete().await.unwrap());
    // The usage does not return even if the deleted name is no longer stored.
    for wait in [secs(0), secs(3 * 3_600)] {
        world.clock.advance(wait);
        let other = world.client().rate_limiter("q");
        other.set_rate(RateType::Overall, 1, "1s").await.unwrap();
        assert!(limiter.try_set_rate(RateType::Overall, 10, "1d").await.unwrap());
        extend_deadline(&limits, 10, "1d").await;
        assert_eq!(limiter.available_permits().await.unwrap(), 10);
        assert!(limiter.try_acquire(4).await.unwrap());
        assert!(limiter.delete().await.unwrap());
    }
}

pub(crate) async fn expiry_keeps_usage(world: World) {
    let limiter = world.configured(RateType::Overall, 10, "1d").await;
    limiter.set_rate(RateType::Overall, 10, "1d").await.unwrap();
    assert!(limiter.try_acquire(6).await.unwrap());
    for _ in 0..2 {
        limiter.expire(secs(60)).await.unwrap();
        world.clock.advance(secs(2 * 3_600));
        let other = world.client().rate_limiter("q");
        other.set_rate(RateType::Overall, 1, "1s").await.unwrap();
        assert!(!limiter.exists().await.unwrap());
        assert!(limiter.try_set_rate(RateType::Overall, 10, "1d").await.unwrap());
        assert_eq!(limiter.available_permits().await.unwrap(), 4);
    }
    limiter.expire(secs(60)).await.unwrap();
    world.clock.advance(secs(60));
    limiter.set_rate(RateType::Overall, 10, "1d").await.unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 10);
}

pub(crate) async fn policies_of_other_apps_are_kept(world: World) {
    let limits = (world.make)();
    let theirs = PolicyEntry::new(support::window("p", 3, "1h"))
        .for_apps(["billing"])
        .unwrap();
    #[cfg(feature = "redis")]
    match limits.redis_registry() {
        Ok(store) => {
            let edit = store.edit(|draft| {
                draft.set(theirs.clone());
                Ok(())
            });
            edit.await.unwrap();
        }
        Err(_) => limits.registry().set(theirs.clone()),
    }
    #[cfg(not(feature = "redis"))]
    limits.registry().set(theirs.clone());
    let limiter = Client::new(&limits).rate_limiter("p");
    assert!(!limiter.exists().await.unwrap());
    assert!(!limiter.delete().await.unwrap() && !limiter.expire(secs(1)).await.unwrap());
    for refused in [
        limiter.try_set_rate(RateType::Overall, 9, "1h").await.map(|_| ()),
        limiter.set_rate(RateType::Overall, 9, "1h").await,
        limiter.update_rate(RateType::Overall, 9, "1h").await,
    ] {
        let result = refused.unwrap_err().diagnostic().to_string();
        assert!(
            result.contains("expected one that is not configured for other apps alone"),
            "{result}"
        );
    }
    assert_eq!(*limits.registry().get("p").unwrap(), theirs);
}

pub(crate) async fn number_of_limiters_is_bounded(world: World) {
    let limits = (world.make)();
    let fill = |registry: &limiter_core::registry::PolicyRegistry| {
        for number in 0..Client::MAX_NAMES {
            registry.set(support::window(&format!("user {number}"), 1, "1s"));
        }
    };
    #[cfg(feature = "redis")]
    match limits.redis_registry() {
        Ok(store) => {
            let edit = store.edit(|draft| {
                fill(draft);
                Ok(())
            });
            edit.await.unwrap();
        }
        Err(_) => fill(limits.registry()),
    }
    #[cfg(not(feature = "redis"))]
    fill(limits.registry());
    let client = Client::new(&limits);
    let refused = client
        .rate_limiter("user 1000")
        .try_set_rate(RateType::Overall, 1, "1s")
        .await;
    let result = refused.unwrap_err().diagnostic().to_string();
    assert!(
        result.contains("expected one of at most 1000 names in the registry: limits of users are keys"),
        "{result}"
    );
    let known = client.rate_limiter("user 999");
    known.set_rate(RateType::Overall, 2, "1s").await.unwrap();
    assert!(known.delete().await.unwrap());
}
