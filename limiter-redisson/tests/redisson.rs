//! Redisson's methods, on every store. Known defects of Redisson's own rate limiter, and the tests
//! that prevent them:
//!
//! | defect | test |
//! |---|---|
//! | a counter beside a log that drift apart | `available_permits_are_rate_minus_recent_usage` |
//! | release returns more than was acquired | `release_creates_no_permits` |
//! | the wait considers the oldest entry only | `wait_is_exact_for_all_permits` |
//! | keys without a TTL | `usage_expires_independent_of_configuration` |
//! | reads write to Redis | `peeks_write_nothing` |
//! | a new rate beside the old counter | `set_rate_discards_usage_and_updated_rate_keeps_it` |
//! | a crash between the configuration and its end | `expiry_is_part_of_configuration` |
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

#[path = "redisson/lifetime.rs"]
mod lifetime;
#[path = "redisson/permits.rs"]
mod permits;
#[cfg(feature = "redis")]
#[path = "redisson/random.rs"]
mod random;
#[path = "redisson/rates.rs"]
mod rates;
#[cfg(feature = "redis")]
#[path = "redisson/redis.rs"]
mod redis;

use std::time::Duration;

use limiter_core::registry::{KeyOverride, PolicyEntry};
use limiter_core::{Limiter, ManualClock};
use limiter_redisson::{Client, RateLimiter, RateType};
#[cfg(feature = "redis")]
use limiter_testing::{RedisCluster, RedisServer};
use support::{Kind, secs};
use tokio::time::timeout;

/// Clients that share their rates, with one clock.
struct World {
    clock: ManualClock,
    make: Box<dyn Fn() -> Limiter + Send + Sync>,
}

impl World {
    fn new(kind: Kind) -> Self {
        let clock = ManualClock::new();
        let make: Box<dyn Fn() -> Limiter + Send + Sync> = match kind {
            Kind::Memory => {
                let limits = Limiter::in_process().clock(&clock).build();
                Box::new(move || limits.clone())
            }
            #[cfg(feature = "redis")]
            Kind::Standalone | Kind::Cluster => {
                let (clock, namespace) = (clock.clone(), support::namespace());
                Box::new(move || {
                    let builder = match kind {
                        Kind::Standalone => Limiter::redis(RedisServer::shared().url()),
                        _ => Limiter::redis_cluster(RedisCluster::shared().urls()),
                    };
                    let builder = builder.namespace(&namespace).clock(&clock);
                    builder.deny_cache(Duration::ZERO).build().unwrap()
                })
            }
            #[cfg(not(feature = "redis"))]
            _ => unreachable!("Redis tests need the feature `redis`"),
        };
        Self { clock, make }
    }

    fn client(&self) -> Client {
        Client::new(&(self.make)())
    }

    /// A configured limiter whose decisions wait for a busy machine.
    async fn configured(&self, of: RateType, rate: u64, interval: &str) -> RateLimiter {
        let limits = (self.make)();
        configured(&limits, of, rate, interval).await
    }
}

/// Configures "p" with the long deadline of the tests.
async fn configured(limits: &Limiter, of: RateType, rate: u64, interval: &str) -> RateLimiter {
    #[cfg(feature = "redis")]
    if let Ok(store) = limits.redis_registry() {
        let edit = store.edit(|draft| {
            draft.set(support::window("p", 1, "1s"));
            Ok(())
        });
        edit.await.unwrap();
    }
    let limiter = Client::new(limits).rate_limiter("p");
    limiter.set_rate(of, rate, interval).await.unwrap();
    limiter
}

/// Gives "p" the long deadline of [`configured`]: a policy that Redisson's methods create for an
/// unknown name has the default, which a busy machine exceeds.
async fn extend_deadline(limits: &Limiter, rate: u64, interval: &str) {
    #[cfg(feature = "redis")]
    if let Ok(registry) = limits.redis_registry() {
        let edit = registry.edit(|draft| {
            let generation = draft.get("p").unwrap().policy().generation();
            let policy = support::window("p", rate, interval).with_generation(generation);
            draft.set(PolicyEntry::new(policy));
            Ok(())
        });
        edit.await.unwrap();
        let registry = limits.registry();
        let adopted = async {
            loop {
                let revision = registry.revision();
                if registry.get("p").unwrap().policy().deadline() == support::PATIENT {
                    return;
                }
                registry.changed(revision).await;
            }
        };
        timeout(support::PATIENT, adopted).await.unwrap();
    }
    #[cfg(not(feature = "redis"))]
    let _ = (limits, rate, interval);
}

/// Defines a policy where the clients of the limiter share their rates.
async fn define(limits: &Limiter, entry: impl Into<PolicyEntry>) {
    let entry = entry.into();
    #[cfg(feature = "redis")]
    if let Ok(store) = limits.redis_registry() {
        let edit = store.edit(|draft| {
            draft.set(entry.clone());
            Ok(())
        });
        edit.await.unwrap();
        return;
    }
    limits.registry().set(entry);
}

/// Sets the override of a key where the clients of the limiter share their rates.
async fn override_key(limits: &Limiter, of_key: KeyOverride) {
    #[cfg(feature = "redis")]
    if let Ok(store) = limits.redis_registry() {
        let edit = store.edit(|draft| draft.set_override(of_key.clone()));
        edit.await.unwrap();
        return;
    }
    limits.registry().set_override(of_key).unwrap();
}

/// Waits until this client has received the rate.
async fn await_rate(limits: &Limiter, rate: Option<u64>) {
    let registry = limits.registry();
    let synced = async {
        loop {
            let revision = registry.revision();
            // A deleted limiter behaves like an expired one.
            let configured = registry.get("p").filter(|entry| entry.end().is_none());
            if configured.map(|entry| entry.policy().quota().whole()) == rate {
                return;
            }
            registry.changed(revision).await;
        }
    };
    timeout(secs(1) + support::SLACK, synced).await.unwrap();
}

macro_rules! on_every_store {
    ($($part:ident::$behaviour:ident)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$part::$behaviour(super::World::new(super::Kind::Memory)).await;
            })*
        }
        #[cfg(feature = "redis")]
        mod standalone {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$part::$behaviour(super::World::new(super::Kind::Standalone)).await;
            })*
        }
        #[cfg(feature = "redis")]
        mod cluster {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$part::$behaviour(super::World::new(super::Kind::Cluster)).await;
            })*
        }
    };
}

on_every_store! {
    rates::rate_is_set_once_for_all_clients
    rates::one_of_concurrent_rate_setters_succeeds
    rates::set_rate_discards_usage_and_updated_rate_keeps_it
    rates::rate_set_by_one_client_resets_usage_of_all
    rates::raised_rate_keeps_usage
    rates::kind_of_window_bounds_updated_rate
    rates::other_kind_of_window_keeps_settings
    rates::concurrency_policy_has_no_rate
    rates::change_reaches_all_clients
    rates::unknown_policy_has_separate_rejection
    rates::expiry_is_part_of_configuration
    rates::expiry_survives_rate_change
    rates::clients_are_counted_together_or_separately
    rates::waiting_call_follows_changed_rate
    rates::waiting_call_follows_override_of_its_key
    rates::waiting_call_ends_with_configuration
    rates::wait_of_blocked_key_ends_at_once
    rates::wait_that_ends_with_changed_rate_is_a_timeout
    rates::empty_client_id_has_no_rate_per_client
    permits::release_creates_no_permits
    permits::wait_is_exact_for_all_permits
    permits::waiter_is_served_when_permits_are_available
    permits::available_permits_are_rate_minus_recent_usage
    permits::all_permits_are_available_without_enforcement
    permits::impossible_cost_is_rejected_at_once
    lifetime::deletion_removes_configuration_and_usage
    lifetime::usage_from_before_reset_does_not_return
    lifetime::expiry_keeps_usage
    lifetime::policies_of_other_apps_are_kept
    lifetime::number_of_limiters_is_bounded
}
