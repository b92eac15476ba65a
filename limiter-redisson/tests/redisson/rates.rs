//! Configuration of rates: by one of several clients, and changes for all of them.

use limiter_core::registry::KeyOverride;
use limiter_core::{Enforcement, Key, OnStoreFailure, Policy, Rejection};
use limiter_redisson::{Client, RateType};
use tokio::time::timeout;

use crate::support::{self, micros, millis, secs};
use crate::{World, await_rate, define};

pub(crate) async fn rate_is_set_once_for_all_clients(world: World) {
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

pub(crate) async fn one_of_concurrent_rate_setters_succeeds(world: World) {
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

pub(crate) async fn set_rate_discards_usage_and_updated_rate_keeps_it(world: World) {
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

pub(crate) async fn rate_set_by_one_client_resets_usage_of_all(world: World) {
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

pub(crate) async fn raised_rate_keeps_usage(world: World) {
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

pub(crate) async fn kind_of_window_bounds_updated_rate(world: World) {
    const OF: RateType = RateType::Overall;
    let limiter = world.configured(OF, 5, "1h").await;
    assert!(limiter.try_acquire(4).await.unwrap());
    limiter.update_rate(OF, 20_000, "60d").await.unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 19_996);
    let refused = limiter.update_rate(OF, 2_000_000, "60d").await;
    assert!(matches!(refused, Err(Rejection::Config(_))), "{refused:?}");
    limiter.update_rate(OF, 2_000_000, "50d").await.unwrap();
    assert_eq!(
        limiter.available_permits().await.unwrap(),
        2_000_000,
        "the usage of the exact window is lost"
    );
    let refused = limiter.update_rate(OF, 5, "60d").await;
    assert!(matches!(refused, Err(Rejection::Config(_))), "{refused:?}");
}

/// A reset may select the other kind of window, which has the settings of the earlier policy.
pub(crate) async fn other_kind_of_window_keeps_settings(world: World) {
    let limits = (world.make)();
    let policy = Policy::sliding_window("p").limit(5).window("1h").group("g");
    let policy = policy
        .deadline(support::PATIENT)
        .on_store_failure(OnStoreFailure::FailClosed)
        .enforcement(Enforcement::Shadow)
        .penalty("3 in 1m: 1h")
        .allow_keys(["good"])
        .deny_keys(["bad"])
        .build()
        .unwrap();
    define(&limits, policy.clone()).await;
    let limiter = Client::new(&limits).rate_limiter("p");
    for (rate, kind) in [
        (20_000, "counter_window"),
        (7, "sliding_window"),
        (20_000, "counter_window"),
    ] {
        limiter.set_rate(RateType::Overall, rate, "1h").await.unwrap();
        let entry = limits.registry().get("p").unwrap();
        let changed = entry.policy();
        assert_eq!(changed.algorithm_name(), kind);
        let settings = |policy: &Policy| {
            let store = (policy.deadline(), policy.on_store_failure());
            let lists = (policy.allow_keys().cloned(), policy.deny_keys().cloned());
            let group = policy.group().map(str::to_owned);
            (
                store,
                lists,
                group,
                policy.enforcement(),
                policy.penalty().copied(),
            )
        };
        assert_eq!(settings(changed), settings(&policy), "{rate}");
    }
}

pub(crate) async fn concurrency_policy_has_no_rate(world: World) {
    let limits = (world.make)();
    let permits = Policy::concurrency("p").max(2).build().unwrap();
    define(&limits, permits.clone()).await;
    let limiter = Client::new(&limits).rate_limiter("p");
    for refused in [
        limiter.set_rate(RateType::Overall, 5, "1h").await,
        limiter.update_rate(RateType::Overall, 5, "1h").await,
    ] {
        let Err(Rejection::Config(error)) = refused else {
            unreachable!("{refused:?}")
        };
        let result = error.to_string();
        assert!(
            result.contains("p (concurrency") && result.contains("expected a"),
            "{result}"
        );
    }
    assert_eq!(*limits.registry().get("p").unwrap().policy(), permits);
}

pub(crate) async fn change_reaches_all_clients(world: World) {
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

pub(crate) async fn unknown_policy_has_separate_rejection(world: World) {
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

pub(crate) async fn expiry_is_part_of_configuration(world: World) {
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

pub(crate) async fn expiry_survives_rate_change(world: World) {
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

pub(crate) async fn clients_are_counted_together_or_separately(world: World) {
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

/// A waiting call under the rate from before a reset would take permits beside the new rate.
pub(crate) async fn waiting_call_follows_changed_rate(world: World) {
    let limiter = world.configured(RateType::Overall, 1, "1h").await;
    assert!(limiter.try_acquire(1).await.unwrap());
    let waiting = || timeout(support::PATIENT, limiter.acquire(1).into_future());
    let (waited, set) = tokio::join!(waiting(), limiter.set_rate(RateType::Overall, 1, "1h"));
    assert!(set.is_ok() && matches!(waited, Ok(Ok(()))), "{waited:?}");
    assert!(
        !limiter.try_acquire(1).await.unwrap(),
        "the waiting call has the permit"
    );
    let (waited, set) = tokio::join!(waiting(), limiter.update_rate(RateType::Overall, 2, "1h"));
    assert!(set.is_ok() && matches!(waited, Ok(Ok(()))), "{waited:?}");
    assert!(!limiter.try_acquire(1).await.unwrap());
    let (waited, deleted) = tokio::join!(waiting(), limiter.delete());
    assert!(
        deleted.unwrap() && matches!(waited, Ok(Err(Rejection::NotConfigured { .. }))),
        "{waited:?}"
    );
}

/// An override gives the key of the calls another limit.
pub(crate) async fn waiting_call_follows_override_of_its_key(world: World) {
    let limits = (world.make)();
    let limiter = crate::configured(&limits, RateType::Overall, 1, "1h").await;
    assert!(limiter.try_acquire(1).await.unwrap());
    let larger = KeyOverride::new(support::window("p", 2, "1h"), Key::global());
    let waiting = timeout(support::PATIENT, limiter.acquire(1).into_future());
    let (waited, ()) = tokio::join!(waiting, crate::override_key(&limits, larger));
    assert!(matches!(waited, Ok(Ok(()))), "{waited:?}");
    assert!(!limiter.try_acquire(1).await.unwrap());
}

pub(crate) async fn waiting_call_ends_with_configuration(world: World) {
    let limiter = world.configured(RateType::Overall, 1, "1h").await;
    assert!(limiter.try_acquire(1).await.unwrap());
    limiter.expire(secs(60)).await.unwrap();
    let mut waiting = limiter.acquire(1).timeout(secs(7_200)).into_future();
    assert!(timeout(millis(50), &mut waiting).await.is_err());
    world.clock.advance(secs(60));
    let waited = timeout(support::PATIENT, waiting).await;
    assert!(
        matches!(waited, Ok(Err(Rejection::NotConfigured { .. }))),
        "{waited:?}"
    );
}

/// The rate changes at the end of the timeout.
pub(crate) async fn wait_that_ends_with_changed_rate_is_a_timeout(world: World) {
    let limits = (world.make)();
    let limiter = crate::configured(&limits, RateType::Overall, 1, "1h").await;
    assert!(limiter.try_acquire(1).await.unwrap());
    let mut waiting = limiter.acquire(1).timeout(secs(60)).into_future();
    assert!(timeout(millis(50), &mut waiting).await.is_err());
    define(&limits, support::window("p", 1, "2h")).await;
    world.clock.advance(secs(60));
    let waited = timeout(support::PATIENT, waiting).await;
    assert!(
        matches!(waited, Ok(Err(Rejection::TimedOut { limit, .. })) if limit == secs(60)),
        "{waited:?}"
    );
}

/// The block lasts longer than the configuration, which ends before the timeout.
pub(crate) async fn wait_of_blocked_key_ends_at_once(world: World) {
    let limits = (world.make)();
    let policy = Policy::sliding_window("p").limit(1).window("1h");
    let policy = policy.penalty("1 in 1m: 1d").deadline(support::PATIENT).build();
    define(&limits, policy.unwrap()).await;
    let limiter = Client::new(&limits).rate_limiter("p");
    limiter.set_rate(RateType::Overall, 1, "1h").await.unwrap();
    assert!(limiter.try_acquire(1).await.unwrap());
    assert!(!limiter.try_acquire(1).await.unwrap());
    limiter.expire(secs(60)).await.unwrap();
    let waiting = limiter.acquire(1).timeout(secs(7_200)).into_future();
    let waited = timeout(support::PATIENT, waiting).await;
    let Ok(Err(Rejection::TimedOut { decision, .. })) = waited else {
        unreachable!("{waited:?}")
    };
    assert!(decision.is_some_and(|of| of.is_blocked()));
}

/// Its key would be that of the total usage.
pub(crate) async fn empty_client_id_has_no_rate_per_client(world: World) {
    let limits = (world.make)();
    let limiter = crate::configured(&limits, RateType::Overall, 2, "1h").await;
    let nameless = Client::with_id(&limits, "").rate_limiter("p");
    assert!(nameless.try_acquire(1).await.unwrap(), "the total needs no id");
    limiter.update_rate(RateType::PerClient, 2, "1h").await.unwrap();
    for refused in [
        nameless.try_acquire(1).await.map(drop),
        nameless.acquire(1).await,
        nameless.release(1).await,
        nameless.available_permits().await.map(drop),
    ] {
        let result = refused.unwrap_err().diagnostic().to_string();
        assert!(result.contains("client id is ``, expected"), "{result}");
    }
    assert!(nameless.delete().await.unwrap());
}
