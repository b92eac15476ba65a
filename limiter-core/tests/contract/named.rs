//! Policies that are looked up by name.

use std::pin::pin;
use std::time::Duration;

use limiter_core::registry::KeyOverride;
use limiter_core::{
    Amount, Enforcement, Inheritance, Key, OnDenial, Origin, Policy, Rejection, StoreErrorKind,
};

use crate::support::{KEY, PATIENT, Subject, bucket, funnel, left, micros, millis, secs, wait_of, window};

pub(crate) async fn name_and_policy_denote_one_limit(subject: Subject) {
    for policy in [bucket("b", 5, "1/h"), funnel("f", 5, "1/h"), window("w", 5, "1h")] {
        subject.limits.registry().set(&policy);
        let named = subject.limits.named(policy.name());
        assert_eq!(named.check(KEY).cost(2).await.unwrap().remaining(), 3, "{policy}");
        assert_eq!(subject.call(&policy).await.remaining(), 2);
        assert_eq!(named.peek(KEY).await.unwrap().remaining(), 2);
        named.acquire(KEY).cost(2).timeout(secs(0)).await.unwrap();
        assert!(named.acquire(KEY).timeout(secs(0)).await.is_err());
        assert!(!named.check(KEY).await.unwrap().is_allowed());
        named.refund(KEY).cost(3).await.unwrap();
        assert_eq!(left(&subject.peek(&policy).await), Amount::from(3_u32));
        named.reset(KEY).await.unwrap();
        assert_eq!(left(&subject.peek(&policy).await), Amount::from(5_u32));
        let never = named.check(KEY).cost(6).await;
        assert!(matches!(never, Err(Rejection::NeverFits { .. })), "{never:?}");
        assert!(matches!(
            named.check(KEY).cost(-1).await,
            Err(Rejection::Config(_))
        ));
    }
}

/// For every way in which an earlier denial was cached.
pub(crate) async fn registry_change_applies_to_next_call(subject: Subject) {
    let registry = subject.limits.registry();
    for (small, large) in [
        (funnel("f", 2, "1/h"), funnel("f", 4, "1/h")),
        (window("w", 2, "1h"), window("w", 4, "1h")),
    ] {
        registry.set(&small);
        let named = subject.limits.named(small.name());
        assert!(named.check(KEY).cost(2).await.unwrap().is_allowed());
        for _ in 0..2 {
            assert!(!named.check(KEY).await.unwrap().is_allowed());
        }
        registry.set(&large);
        assert_eq!(named.check(KEY).await.unwrap().remaining(), 1, "{large}");
        registry.set(&small);
        assert!(wait_of(&named.check(KEY).await.unwrap()) > secs(0), "{small}");
    }
}

pub(crate) async fn unknown_policy_is_allowed_and_counted(subject: Subject) {
    let (limits, policy) = (&subject.limits, bucket("p", 1, "1/h"));
    let registry = limits.registry();
    let named = limits.named("p");
    let free = named.check(KEY).cost(1_000).await.unwrap();
    assert_eq!((free.origin(), free.is_allowed()), (Origin::NotConfigured, true));
    assert_eq!((free.limits().len(), free.decided_at()), (0, subject.clock.now()));
    assert!(named.acquire(KEY).await.is_ok() && named.refund(KEY).await.is_ok());
    named.reset(KEY).await.unwrap();
    let missing = limits.policy("p", KEY);
    assert!(
        matches!(missing, Err(Rejection::NotConfigured { .. })),
        "{missing:?}"
    );
    assert_eq!(registry.not_configured(), 5);
    assert!(subject.redis_keys().is_empty(), "the store was not queried");

    registry.set(&policy);
    assert!(named.check(KEY).await.unwrap().is_allowed());
    assert!(!named.check(KEY).await.unwrap().is_allowed());
    assert!(registry.remove("p") && !registry.remove("p"));
    assert_eq!(named.check(KEY).await.unwrap().origin(), Origin::NotConfigured);
    registry.set(&policy);
    assert!(!named.check(KEY).await.unwrap().is_allowed(), "the usage is kept");
    assert_eq!(registry.not_configured(), 6);
}

pub(crate) async fn key_override_applies_until_its_end(subject: Subject) {
    let (registry, clock) = (subject.limits.registry(), &subject.clock);
    for sized in [
        (|capacity| funnel("f", capacity, "1/h")) as fn(u32) -> _,
        |limit| window("w", limit.into(), "1h"),
    ] {
        let base = sized(2);
        registry.set(&base);
        let named = subject.limits.named(base.name());
        assert!(named.check("ann").cost(2).await.unwrap().is_allowed());
        assert!(!named.check("ann").await.unwrap().is_allowed());

        let end = clock.now().after(secs(60));
        registry
            .set_override(KeyOverride::new(sized(5), "ann").until(end))
            .unwrap();
        assert_eq!(named.check("ann").await.unwrap().remaining(), 2, "{base}");
        let grouped = Key::from("ann").in_group("others");
        for other in [Key::from("bob"), grouped] {
            assert_eq!(named.peek(&other).await.unwrap().remaining(), 2, "{other:?}");
        }
        assert_eq!(
            subject.limits.policy(base.name(), "ann").unwrap().quota().whole(),
            5
        );
        clock.advance(secs(60) - micros(1));
        assert!(named.check("ann").await.unwrap().is_allowed());
        clock.advance(micros(1));
        assert!(
            !named.check("ann").await.unwrap().is_allowed(),
            "the usage is kept"
        );
        assert_eq!(
            registry.overrides(base.name()).len(),
            1,
            "an expired override is still listed"
        );

        registry.set_override(KeyOverride::new(sized(9), "ann")).unwrap();
        assert!(named.check("ann").await.unwrap().is_allowed());
        assert!(registry.remove_override(base.name(), "ann"));
        assert!(!named.check("ann").await.unwrap().is_allowed());
    }
}

pub(crate) async fn named_and_given_policies_are_decided_together(subject: Subject) {
    let (limits, burst) = (&subject.limits, bucket("burst", 5, "1/h"));
    limits.registry().set(window("daily", 2, "1d"));
    let daily = limits.policy("daily", KEY).unwrap();
    let both = [(&burst, KEY), (&daily, KEY)];
    assert!(limits.check_all(both).cost(2).await.unwrap().is_allowed());
    let denied = limits.check_all(both).await.unwrap();
    assert_eq!(denied.denied_by().unwrap().policy().name(), "daily");
    assert_eq!(limits.named("daily").peek(KEY).await.unwrap().remaining(), 0);
    assert_eq!(subject.remaining(&burst).await.whole(), 3);
}

pub(crate) async fn handle_by_name_has_every_policy_operation(subject: Subject) {
    let (limits, registry) = (&subject.limits, subject.limits.registry());
    for configured in [false, true] {
        let export = limits.named("export");
        let permits = [
            export.acquire_concurrency(KEY).await.unwrap(),
            export.acquire_concurrency(KEY).cost(1).await.unwrap(),
        ];
        assert_eq!(
            export.acquire_concurrency(KEY).timeout(secs(0)).await.is_err(),
            configured
        );
        drop(permits);

        let tokens = limits.named("tokens");
        let reservation = tokens.reserve(KEY).cost(80).await.unwrap();
        assert_eq!(
            tokens.reserve(KEY).cost(30).timeout(secs(0)).await.is_err(),
            configured
        );
        reservation.settle(30).await.unwrap();
        let each = tokens.reserve(KEY).cost(20).await.unwrap();
        each.settle_each([30]).await.unwrap();
        tokens.charge(KEY).cost(50).await.unwrap();
        let owing = tokens.peek(KEY).await.unwrap();
        assert_eq!(owing.is_allowed(), !configured, "{owing:?}");
        tokens.refund(KEY).cost(20).await.unwrap();
        assert_eq!(tokens.blocked_until(KEY).await.unwrap(), None);

        let cheap = limits.named("cheap");
        assert!(!cheap.admit(KEY).await.unwrap().is_degraded());
        assert_eq!(cheap.admit(KEY).await.unwrap().is_degraded(), configured);

        registry.set(
            Policy::concurrency("export")
                .max(2)
                .deadline(PATIENT)
                .build()
                .unwrap(),
        );
        registry.set(bucket("tokens", 100, "1/h"));
        let cheap = Policy::token_bucket("cheap")
            .capacity(1)
            .rate("1/h")
            .deadline(PATIENT);
        registry.set(cheap.on_denial(OnDenial::Degrade).build().unwrap());
    }
}

pub(crate) async fn key_override_matches_plain_and_escaped_colons(subject: Subject) {
    let registry = subject.limits.registry();
    registry.set(bucket("p", 1, "1/h"));
    let named = subject.limits.named("p");
    let user = |value: &str| Key::from("user:").part(value);
    let has = async |key: &Key<'_>| named.peek(key).await.unwrap().remaining();
    registry
        .set_override(KeyOverride::new(bucket("p", 5, "1/h"), "user:2001:db8::7"))
        .unwrap();
    assert_eq!(has(&user("2001:db8::7")).await, 5);
    assert_eq!(has(&Key::from("user:2001:db8::7")).await, 5);
    assert_eq!(has(&user("2001:db8::8")).await, 1);
    // An override with the exact escaping takes precedence.
    registry
        .set_override(KeyOverride::new(bucket("p", 9, "1/h"), user("2001:db8::7")))
        .unwrap();
    assert_eq!(has(&user("2001:db8::7")).await, 9);
    assert_eq!(has(&Key::from("user:2001:db8::7")).await, 5);
    assert!(
        named
            .check(user("2001:db8::7"))
            .cost(9)
            .await
            .unwrap()
            .is_allowed()
    );
    assert_eq!(
        has(&Key::from("user:2001:db8::7")).await,
        5,
        "each key has its own state"
    );
}

pub(crate) async fn ended_override_uncovers_override_with_plain_colons(subject: Subject) {
    let (registry, clock) = (subject.limits.registry(), &subject.clock);
    registry.set(bucket("p", 1, "1/h"));
    let named = subject.limits.named("p");
    let user = Key::from("user:").part("2001:db8::7");
    let plain = KeyOverride::new(bucket("p", 5, "1/h"), "user:2001:db8::7");
    registry.set_override(plain).unwrap();
    let end = clock.now().after(secs(60));
    let exact = KeyOverride::new(bucket("p", 9, "1/h"), &user).until(end);
    registry.set_override(exact).unwrap();
    assert_eq!(named.peek(&user).await.unwrap().remaining(), 9);
    clock.set(end);
    assert_eq!(named.peek(&user).await.unwrap().remaining(), 5);
}

pub(crate) async fn key_override_uses_alignment_of_policy(subject: Subject) {
    let (registry, clock) = (subject.limits.registry(), &subject.clock);
    let hour = |limit: u32| {
        Policy::fixed_window("p")
            .limit(limit)
            .window("1h")
            .deadline(PATIENT)
    };
    registry.set(hour(1).aligned("utc").build().unwrap());
    registry
        .set_override(KeyOverride::new(hour(2).build().unwrap(), KEY))
        .unwrap();
    let named = subject.limits.named("p");
    let into_the_hour = clock.now().as_micros() % 3_600_000_000;
    clock.advance(micros(3_600_000_000 - into_the_hour) + secs(3_000));
    assert!(named.check(KEY).cost(2).await.unwrap().is_allowed());
    assert_eq!(wait_of(&named.check(KEY).await.unwrap()), secs(600));

    let odd = Policy::fixed_window("p").limit(1).window("7h").deadline(PATIENT);
    registry
        .set_override(KeyOverride::new(odd.build().unwrap(), "odd"))
        .unwrap();
    assert!(named.check("odd").await.unwrap().is_allowed());
    let into_the_period = clock.now().as_micros() % 25_200_000_000;
    let wait = wait_of(&named.check("odd").await.unwrap());
    assert_eq!(wait, micros(25_200_000_000 - into_the_period));
}

/// Polls a future once, which does not complete.
async fn begin_wait<F: Future + Unpin>(wait: &mut F) {
    assert!(tokio::time::timeout(Duration::ZERO, wait).await.is_err());
}

/// The generation after a reset is unused, so the calls that wait need not wait any longer.
pub(crate) async fn reset_in_registry_ends_waits(subject: Subject) {
    let (limits, registry) = (&subject.limits, subject.limits.registry());
    let (policy, day) = (bucket("p", 2, "1/h"), secs(86_400));
    registry.set(&policy);
    subject.use_up(&policy).await;
    let mut acquire = limits.named("p").acquire(KEY).timeout(day).into_future();
    let mut reserve = limits.named("p").reserve(KEY).timeout(day).into_future();
    begin_wait(&mut acquire).await;
    begin_wait(&mut reserve).await;
    registry.change(&policy, Inheritance::Reset).unwrap();
    let both = async { tokio::join!(acquire, reserve) };
    let (acquired, reservation) = tokio::time::timeout(PATIENT, both).await.unwrap();
    assert!(acquired.is_ok(), "{acquired:?}");
    reservation.unwrap().cancel().await.unwrap();
    let left = limits.named("p").peek(KEY).await.unwrap();
    assert_eq!(
        left.remaining(),
        1,
        "the permit of the new generation was returned"
    );
}

pub(crate) async fn waiting_call_follows_policy_within_its_timeout(subject: Subject) {
    let (limits, registry) = (&subject.limits, subject.limits.registry());
    registry.set(window("w", 1, "1h"));
    assert!(limits.named("w").check(KEY).await.unwrap().is_allowed());
    let mut larger = limits.named("w").acquire(KEY).timeout(secs(60)).into_future();
    begin_wait(&mut larger).await;
    registry.set(window("w", 2, "1h"));
    let larger = tokio::time::timeout(PATIENT, larger).await.unwrap();
    assert!(larger.is_ok(), "{larger:?}");

    let mut full = limits.named("w").acquire(KEY).timeout(secs(60)).into_future();
    begin_wait(&mut full).await;
    subject.clock.advance(secs(40));
    registry.set(window("w", 2, "2h"));
    begin_wait(&mut full).await;
    subject.clock.advance(secs(20));
    let full = tokio::time::timeout(PATIENT, full).await.unwrap();
    let timed_out = matches!(&full, Err(Rejection::TimedOut { limit, .. }) if *limit == secs(60));
    assert!(timed_out, "{full:?}");
}

/// The permits that come back by themselves are those of the policy that granted the reservation.
pub(crate) async fn reservation_is_settled_under_policy_that_granted_it(subject: Subject) {
    let (limits, registry) = (&subject.limits, subject.limits.registry());
    let slow = bucket("p", 10, "1/h");
    registry.set(&slow);
    subject.use_up(&slow).await;
    let reserve = limits.named("p").reserve(KEY).cost(10).timeout(secs(3_600));
    let mut reserve = reserve.into_future();
    begin_wait(&mut reserve).await;
    registry.set(bucket("p", 10, "10/s"));
    begin_wait(&mut reserve).await;
    subject.clock.advance(secs(1));
    let reservation = tokio::time::timeout(PATIENT, reserve).await.unwrap();
    subject.clock.advance(millis(500));
    reservation.unwrap().cancel().await.unwrap();
    assert_eq!(limits.named("p").peek(KEY).await.unwrap().remaining(), 10);
}

pub(crate) async fn reset_in_registry_ends_wait_for_concurrency(subject: Subject) {
    let (limits, registry) = (&subject.limits, subject.limits.registry());
    let policy = Policy::concurrency("c").max(1).deadline(PATIENT).build().unwrap();
    registry.set(&policy);
    let _held = limits.named("c").acquire_concurrency(KEY).await.unwrap();
    let mut waiting = pin!(
        limits
            .named("c")
            .acquire_concurrency(KEY)
            .timeout(secs(86_400))
            .into_future()
    );
    begin_wait(&mut waiting).await;
    registry.change(&policy, Inheritance::Reset).unwrap();
    let permit = tokio::time::timeout(PATIENT, waiting).await.unwrap().unwrap();
    assert_eq!(limits.named("c").peek(KEY).await.unwrap().remaining(), 0);
    drop(permit);
}

/// The mode of its policy decides a call by name as it decides a call with the policy.
pub(crate) async fn shutdown_rejects_only_enforced_named_calls(subject: Subject) {
    let (limits, registry) = (&subject.limits, subject.limits.registry());
    for (name, enforcement) in [
        ("off", Enforcement::Off),
        ("shadow", Enforcement::Shadow),
        ("enforced", Enforcement::Enforce),
    ] {
        let bucket = Policy::token_bucket(name).capacity(1).rate("1/h");
        registry.set(bucket.enforcement(enforcement).build().unwrap());
    }
    limits.shutdown(secs(1)).await;
    let off = limits.named("off").check(KEY).await.unwrap();
    assert_eq!((off.is_allowed(), off.origin()), (true, Origin::Off));
    let shadow = limits.named("shadow").check(KEY).await.unwrap();
    assert!(shadow.is_allowed() && shadow.would_deny());
    assert!(limits.named("off").acquire(KEY).await.is_ok());
    // Nothing was charged, so nothing is refunded or charged.
    assert!(limits.named("off").refund(KEY).await.is_ok());
    assert!(limits.named("off").charge(KEY).await.is_ok());
    assert!(limits.named("enforced").refund(KEY).await.is_err());
    assert!(limits.named("enforced").charge(KEY).await.is_err());
    for closed in [
        limits.named("enforced").check(KEY).await,
        limits.named("unknown").check(KEY).await,
        limits.named("enforced").peek(KEY).await,
    ] {
        let Err(Rejection::Unavailable { error, .. }) = closed else {
            unreachable!("{closed:?}")
        };
        assert_eq!(error.kind(), StoreErrorKind::ShutDown);
    }
}
