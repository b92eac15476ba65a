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

#[cfg(feature = "redis")]
#[path = "redisson/random.rs"]
mod random;
#[cfg(feature = "redis")]
#[path = "redisson/redis.rs"]
mod redis;

use std::collections::VecDeque;
use std::time::Duration;

use limiter_core::registry::PolicyEntry;
use limiter_core::{Limiter, ManualClock, Rejection};
use limiter_redisson::{Client, RateLimiter, RateType};
#[cfg(feature = "redis")]
use limiter_testing::{RedisCluster, RedisServer};
use support::{Kind, micros, millis, secs};
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
    ($($behaviour:ident)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::World::new(super::Kind::Memory)).await;
            })*
        }
        #[cfg(feature = "redis")]
        mod standalone {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::World::new(super::Kind::Standalone)).await;
            })*
        }
        #[cfg(feature = "redis")]
        mod cluster {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::World::new(super::Kind::Cluster)).await;
            })*
        }
    };
}

on_every_store! {
    rate_is_set_once_for_all_clients
    one_of_concurrent_rate_setters_succeeds
    set_rate_discards_usage_and_updated_rate_keeps_it
    rate_set_by_one_client_resets_usage_of_all
    raised_rate_keeps_usage
    change_reaches_all_clients
    unknown_policy_has_separate_rejection
    expiry_is_part_of_configuration
    expiry_survives_rate_change
    clients_are_counted_together_or_separately
    release_creates_no_permits
    wait_is_exact_for_all_permits
    waiter_is_served_when_permits_are_available
    available_permits_are_rate_minus_recent_usage
    impossible_cost_is_rejected_at_once
    deletion_removes_configuration_and_usage
    usage_from_before_reset_does_not_return
    expiry_keeps_usage
    policies_of_other_apps_are_kept
    number_of_limiters_is_bounded
}

async fn rate_is_set_once_for_all_clients(world: World) {
    let [one, other] = [(); 2].map(|()| world.client().rate_limiter("p"));
    assert!(one.try_set_rate(RateType::Overall, 10, "1m").await.unwrap());
    assert!(!one.try_set_rate(RateType::Overall, 11, "1m").await.unwrap());
    assert!(!other.try_set_rate(RateType::PerClient, 12, "1m").await.unwrap());
    for limiter in [&one, &other] {
        assert_eq!(limiter.name(), "p");
        assert!(limiter.exists().await.unwrap());
        let config = limiter.config().await.unwrap().unwrap();
        let result = (config.rate_type, config.rate, config.interval);
        assert_eq!(result, (RateType::Overall, 10, secs(60)));
    }
}

async fn one_of_concurrent_rate_setters_succeeds(world: World) {
    let clients: Vec<Client> = (0..6).map(|_| world.client()).collect();
    let tries = clients.iter().cloned().zip(1..).map(|(client, rate)| {
        tokio::spawn(async move {
            let limiter = client.rate_limiter("p");
            limiter.try_set_rate(RateType::Overall, rate, "1m").await.unwrap()
        })
    });
    let mut set = Vec::new();
    for (rate, done) in (1..).zip(tries.collect::<Vec<_>>()) {
        if done.await.unwrap() {
            set.push(rate);
        }
    }
    assert_eq!(set.len(), 1, "{set:?}");
    for client in &clients {
        let config = client.rate_limiter("p").config().await.unwrap().unwrap();
        assert_eq!(Some(&config.rate), set.first());
    }
}

async fn set_rate_discards_usage_and_updated_rate_keeps_it(world: World) {
    for of in [RateType::Overall, RateType::PerClient] {
        let limiter = world.configured(of, 5, "1h").await;
        assert!(limiter.try_acquire(4).await.unwrap());
        limiter.update_rate(of, 10, "1h").await.unwrap();
        assert_eq!(limiter.available_permits().await.unwrap(), 6);
        limiter.update_rate(of, 3, "1h").await.unwrap();
        assert_eq!(limiter.available_permits().await.unwrap(), 0);
        limiter.set_rate(of, 5, "1h").await.unwrap();
        assert_eq!(limiter.available_permits().await.unwrap(), 5);
        assert!(limiter.try_acquire(5).await.unwrap());
        assert!(!limiter.try_acquire(1).await.unwrap());
        limiter.set_rate(of, 5, "1h").await.unwrap();
        assert!(
            limiter.try_acquire(5).await.unwrap(),
            "denied clients are reset as well"
        );
    }
}

async fn rate_set_by_one_client_resets_usage_of_all(world: World) {
    let one = world.configured(RateType::PerClient, 2, "1h").await;
    let other = world.client().rate_limiter("p");
    assert!(one.try_acquire(2).await.unwrap() && other.try_acquire(2).await.unwrap());
    one.set_rate(RateType::PerClient, 3, "1h").await.unwrap();
    // On a busy machine a single read of the registry may exceed its time limit.
    let adopted = async {
        while !matches!(other.config().await, Ok(Some(config)) if config.rate == 3) {
            tokio::task::yield_now().await;
        }
    };
    timeout(support::PATIENT, adopted).await.unwrap();
    assert_eq!(other.available_permits().await.unwrap(), 3);
    assert_eq!(one.available_permits().await.unwrap(), 3);
}

async fn raised_rate_keeps_usage(world: World) {
    let limiter = world.configured(RateType::Overall, 10_000, "1h").await;
    assert!(limiter.try_acquire(10_000).await.unwrap());
    limiter
        .update_rate(RateType::Overall, 20_000, "1h")
        .await
        .unwrap();
    assert_eq!(
        limiter.available_permits().await.unwrap(),
        10_000,
        "an exact window"
    );
    limiter.set_rate(RateType::Overall, 20_000, "1h").await.unwrap();
    assert!(limiter.try_acquire(20_000).await.unwrap());
    limiter
        .update_rate(RateType::Overall, 30_000, "1h")
        .await
        .unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 10_000, "two counters");
    limiter.update_rate(RateType::Overall, 100, "1h").await.unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 0);
}

async fn change_reaches_all_clients(world: World) {
    let one = world.configured(RateType::Overall, 5, "1h").await;
    let limits = (world.make)();
    let other = Client::new(&limits).rate_limiter("p");
    assert!(other.try_acquire(5).await.unwrap(), "read at its first use");
    assert!(!one.try_acquire(1).await.unwrap());
    one.update_rate(RateType::Overall, 7, "1h").await.unwrap();
    assert_eq!(
        one.available_permits().await.unwrap(),
        2,
        "the changing client applies the rate at once"
    );
    await_rate(&limits, Some(7)).await;
    assert_eq!(other.available_permits().await.unwrap(), 2);
    assert!(one.delete().await.unwrap());
    await_rate(&limits, None).await;
    assert!(matches!(
        other.try_acquire(1).await,
        Err(Rejection::NotConfigured { .. })
    ));
}

async fn unknown_policy_has_separate_rejection(world: World) {
    let client = world.client();
    let limiter = client.rate_limiter("p");
    let result = |answer: Result<(), Rejection>| {
        assert!(
            matches!(&answer, Err(Rejection::NotConfigured { policy }) if policy == "p"),
            "{answer:?}"
        );
    };
    result(limiter.try_acquire(1).await.map(drop));
    result(limiter.try_acquire_within(1, secs(1)).await.map(drop));
    result(limiter.acquire(1).await);
    result(limiter.release(1).await);
    result(limiter.available_permits().await.map(drop));
    assert_eq!(limiter.config().await.unwrap(), None);
    assert_eq!(limiter.remaining_ttl().await.unwrap(), None);
    assert!(!limiter.exists().await.unwrap());
    assert!(!limiter.expire(secs(1)).await.unwrap());
    assert!(!limiter.clear_expire().await.unwrap());
    assert!(!limiter.delete().await.unwrap());
    limiter.update_rate(RateType::Overall, 1, "1s").await.unwrap();
    assert!(limiter.exists().await.unwrap());
}

async fn expiry_is_part_of_configuration(world: World) {
    let limiter = world.configured(RateType::Overall, 5, "1d").await;
    let other = world.client().rate_limiter("p");
    assert!(limiter.try_acquire(3).await.unwrap());
    assert_eq!(limiter.remaining_ttl().await.unwrap(), None);
    assert!(!limiter.clear_expire().await.unwrap());
    assert!(limiter.expire(secs(60)).await.unwrap());
    assert_eq!(limiter.remaining_ttl().await.unwrap(), Some(secs(60)));
    world.clock.advance(secs(59));
    assert_eq!(other.remaining_ttl().await.unwrap(), Some(secs(1)));
    assert!(limiter.clear_expire().await.unwrap());
    world.clock.advance(secs(60));
    assert!(limiter.exists().await.unwrap());
    assert!(limiter.expire(secs(60)).await.unwrap());
    assert_eq!(other.remaining_ttl().await.unwrap(), Some(secs(60)));

    world.clock.advance(secs(60) - micros(1));
    assert!(other.exists().await.unwrap());
    world.clock.advance(micros(1));
    for limiter in [&limiter, &other] {
        assert!(!limiter.exists().await.unwrap());
        assert_eq!(limiter.config().await.unwrap(), None);
        let refused = limiter.try_acquire(1).await;
        assert!(
            matches!(refused, Err(Rejection::NotConfigured { .. })),
            "{refused:?}"
        );
    }
    assert!(!limiter.expire(secs(60)).await.unwrap());
    assert!(limiter.try_set_rate(RateType::Overall, 5, "1d").await.unwrap());
    assert_eq!(limiter.remaining_ttl().await.unwrap(), None);
    assert_eq!(
        limiter.available_permits().await.unwrap(),
        2,
        "the usage was not changed"
    );
}

async fn expiry_survives_rate_change(world: World) {
    let limiter = world.configured(RateType::Overall, 5, "1d").await;
    limiter.expire(secs(60)).await.unwrap();
    limiter.update_rate(RateType::Overall, 6, "1d").await.unwrap();
    limiter.set_rate(RateType::Overall, 7, "1d").await.unwrap();
    assert_eq!(limiter.remaining_ttl().await.unwrap(), Some(secs(60)));
    // An expired limiter is configured again, without an end.
    world.clock.advance(secs(3 * 3_600));
    let client = world.client();
    client
        .rate_limiter("q")
        .set_rate(RateType::Overall, 1, "1s")
        .await
        .unwrap();
    limiter.set_rate(RateType::Overall, 8, "1d").await.unwrap();
    assert_eq!(limiter.remaining_ttl().await.unwrap(), None);
}

async fn clients_are_counted_together_or_separately(world: World) {
    let one = world.configured(RateType::PerClient, 2, "1h").await;
    let named = Client::with_id(&(world.make)(), "worker-7");
    assert_eq!(named.id(), "worker-7");
    let [other, again] = [(); 2].map(|()| Client::with_id(&(world.make)(), named.id()).rate_limiter("p"));
    assert!(one.try_acquire(2).await.unwrap() && other.try_acquire(1).await.unwrap());
    assert!(!one.try_acquire(1).await.unwrap());
    assert!(again.try_acquire(1).await.unwrap(), "the same client");
    assert!(!again.try_acquire(1).await.unwrap() && !other.try_acquire(1).await.unwrap());
    let [a, b] = [(); 2].map(|()| world.client());
    assert_ne!(a.id(), b.id());

    one.update_rate(RateType::Overall, 2, "1h").await.unwrap();
    assert!(
        one.try_acquire(2).await.unwrap(),
        "the total usage is counted separately"
    );
}

async fn release_creates_no_permits(world: World) {
    let limiter = world.configured(RateType::Overall, 5, "1m").await;
    limiter.release(5).await.unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 5);
    assert!(limiter.try_acquire(3).await.unwrap());
    limiter.release(2).await.unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 4);
    limiter.release(1_000).await.unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 5);
    assert!(limiter.try_acquire(5).await.unwrap() && !limiter.try_acquire(1).await.unwrap());

    // Released permits leave the interval once.
    limiter.release(2).await.unwrap();
    world.clock.advance(secs(60));
    assert_eq!(limiter.available_permits().await.unwrap(), 5);
    assert!(limiter.try_acquire(5).await.unwrap() && !limiter.try_acquire(1).await.unwrap());
}

async fn wait_is_exact_for_all_permits(world: World) {
    let limiter = world.configured(RateType::Overall, 3, "1s").await;
    assert!(limiter.try_acquire(1).await.unwrap());
    world.clock.advance(millis(400));
    assert!(limiter.try_acquire(2).await.unwrap());
    // The oldest permit leaves after 600 ms, and two that were acquired together after a second.
    world.clock.advance(millis(600));
    assert!(!limiter.try_acquire(2).await.unwrap());
    world.clock.advance(millis(400) - micros(1));
    assert!(!limiter.try_acquire(2).await.unwrap());
    world.clock.advance(micros(1));
    assert!(limiter.try_acquire(2).await.unwrap());
}

async fn waiter_is_served_when_permits_are_available(world: World) {
    let limiter = world.configured(RateType::Overall, 2, "10s").await;
    assert!(limiter.try_acquire_within(2, secs(0)).await.unwrap());
    let too_short = secs(10) - micros(1);
    let in_vain = async {
        tokio::join!(
            limiter.try_acquire_within(1, too_short),
            limiter.acquire(1).timeout(secs(9)).into_future(),
            async {
                tokio::time::sleep(millis(50)).await;
                world.clock.advance(too_short);
            }
        )
    };
    let (acquired, timed_out, ()) = timeout(secs(30), in_vain).await.unwrap();
    assert!(!acquired.unwrap());
    assert!(
        matches!(timed_out, Err(Rejection::TimedOut { .. })),
        "{timed_out:?}"
    );
    for of_all in [false, true] {
        let waiting = limiter.clone();
        let waiter = tokio::spawn(async move {
            if of_all {
                waiting.acquire(2).await.map(|()| true)
            } else {
                waiting.try_acquire_within(2, secs(20)).await
            }
        });
        let served = async {
            while !waiter.is_finished() {
                world.clock.advance(millis(100));
                tokio::time::sleep(millis(1)).await;
            }
        };
        timeout(secs(30), served).await.unwrap();
        assert!(waiter.await.unwrap().unwrap());
        assert!(!limiter.try_acquire(1).await.unwrap());
    }
}

async fn available_permits_are_rate_minus_recent_usage(world: World) {
    const RATE: u64 = 6;
    let limiter = world.configured(RateType::Overall, RATE, "1s").await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut used = VecDeque::new();
    for step in 0..300 {
        world.clock.advance(micros(random.u64(..400_000)));
        let now = world.clock.now();
        while used.front().is_some_and(|at| now.since(*at) >= secs(1)) {
            used.pop_front();
        }
        let free = RATE - used.len() as u64;
        assert_eq!(limiter.available_permits().await.unwrap(), free, "step {step}");
        let permits = random.u64(1..=3);
        if random.u8(..4) == 0 {
            limiter.release(permits).await.unwrap();
            used.drain(..used.len().min(usize::try_from(permits).unwrap()));
        } else {
            let granted = limiter.try_acquire(permits).await.unwrap();
            assert_eq!(granted, permits <= free, "step {step}");
            if granted {
                used.extend((0..permits).map(|_| now));
            }
        }
    }
}

async fn impossible_cost_is_rejected_at_once(world: World) {
    let limiter = world.configured(RateType::Overall, 5, "1h").await;
    for refused in [
        limiter.try_acquire(6).await.map(drop),
        limiter.acquire(6).await,
        limiter.try_acquire_within(6, secs(60)).await.map(drop),
    ] {
        assert!(matches!(refused, Err(Rejection::NeverFits { .. })), "{refused:?}");
    }
    let result = |refused: Result<(), Rejection>| refused.unwrap_err().diagnostic().to_string();
    for refused in [
        limiter.try_acquire(0).await.map(drop),
        limiter.acquire(0).await,
        limiter.release(0).await,
    ] {
        let result = result(refused);
        assert!(
            result.ends_with("permits is `0`, expected at least 1"),
            "{result}"
        );
    }
    for (rate, interval, expected) in [
        (
            0,
            "1m",
            "rate is `0`, expected whole permits from 1 to 4398046511104",
        ),
        (u64::MAX, "1m", "expected whole permits from 1 to 4398046511104"),
        (10_001, "51d", "interval is"),
        (1, "0s", "interval is"),
        (1, "month", "interval is"),
        (1, "-1s", "-1s"),
    ] {
        for refused in [
            limiter.set_rate(RateType::Overall, rate, interval).await,
            limiter.update_rate(RateType::Overall, rate.max(1), "").await,
        ] {
            assert!(matches!(refused, Err(Rejection::Config(_))), "{refused:?}");
        }
        let set = limiter.set_rate(RateType::Overall, rate, interval).await;
        let result = result(set);
        assert!(result.contains(expected), "{result}");
    }
    let nameless = world.client().rate_limiter("");
    let result = result(nameless.try_set_rate(RateType::Overall, 1, "1s").await.map(drop));
    assert!(result.contains("policy name"), "{result}");
    assert_eq!(
        limiter.config().await.unwrap().unwrap().rate,
        5,
        "nothing has changed"
    );
}

async fn deletion_removes_configuration_and_usage(world: World) {
    for of in [RateType::Overall, RateType::PerClient] {
        let limiter = world.configured(of, 5, "1h").await;
        assert!(limiter.try_acquire(5).await.unwrap());
        assert!(limiter.delete().await.unwrap());
        assert!(!limiter.delete().await.unwrap() && !limiter.exists().await.unwrap());
        assert!(limiter.try_set_rate(of, 5, "1h").await.unwrap());
        assert_eq!(limiter.available_permits().await.unwrap(), 5);
    }
}

async fn usage_from_before_reset_does_not_return(world: World) {
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

async fn expiry_keeps_usage(world: World) {
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

async fn policies_of_other_apps_are_kept(world: World) {
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

async fn number_of_limiters_is_bounded(world: World) {
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
