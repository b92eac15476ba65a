//! Usage after a policy change: kept, converted proportionally, or discarded.

use std::time::SystemTime;

use limiter_core::{Amount, ConfigError, Inheritance, Limiter, ManualClock, Policy, RedisBuilder};
use limiter_testing::{RedisCluster, RedisServer};

use crate::support::{
    KEY, Kind, PATIENT, Subject, bucket, funnel, left, micros, millis, only, secs, wait_of, window,
};
use crate::waiting::{served, settle, waiter};

fn counted(limit: u64) -> Policy {
    let policy = Policy::counter_window("cw").limit(limit).window("10s");
    policy.deadline(PATIENT).build().unwrap()
}

fn fixed(limit: u64) -> Policy {
    let policy = Policy::fixed_window("fw").limit(limit).window("10s");
    policy.deadline(PATIENT).build().unwrap()
}

/// The policies with a tenth of their quota and of their rate.
pub(crate) fn pairs() -> [(Policy, Policy); 4] {
    [
        (bucket("b", 10, "1/s"), bucket("b", 100, "10/s")),
        (funnel("f", 10, "1/s"), funnel("f", 100, "10/s")),
        (counted(10), counted(100)),
        (fixed(10), fixed(100)),
    ]
}

/// Another replica of the subject; in process the subject itself.
fn replica(subject: &Subject) -> Limiter {
    let configured = |builder: RedisBuilder| {
        let builder = builder.namespace(&subject.namespace).clock(&subject.clock);
        builder.build().unwrap()
    };
    match subject.kind {
        Kind::Memory => subject.limits.clone(),
        Kind::Standalone => configured(Limiter::redis(RedisServer::shared().url())),
        Kind::Cluster => configured(Limiter::redis_cluster(RedisCluster::shared().urls())),
    }
}

pub(crate) async fn reset_change_discards_all_usage(subject: Subject) {
    let registry = subject.limits.registry();
    let exact = window("w", 10, "10s");
    for small in pairs().map(|(small, _)| small).into_iter().chain([exact]) {
        registry.set(&small);
        let named = subject.limits.named(small.name());
        assert!(named.check(KEY).cost(10).await.unwrap().is_allowed(), "{small}");
        assert!(!named.check(KEY).await.unwrap().is_allowed(), "{small}");
        for _ in 0..2 {
            registry.change(&small, Inheritance::Reset).unwrap();
            assert_eq!(named.check(KEY).cost(10).await.unwrap().remaining(), 0, "{small}");
        }
        // A plain `set` keeps the state.
        registry.set(&small);
        assert!(!named.check(KEY).await.unwrap().is_allowed(), "{small}");
        assert_eq!(registry.get(small.name()).unwrap().policy().generation(), 2);
    }
    let flight = Policy::concurrency("c").max(1).deadline(PATIENT).build().unwrap();
    let held = subject.limits.acquire_concurrency(&flight, KEY).await.unwrap();
    let next = flight.with_generation(1);
    let other = subject.limits.acquire_concurrency(&next, KEY).await.unwrap();
    assert!(held.is_valid() && other.is_valid());
}

pub(crate) async fn usage_keeps_its_fraction_of_new_quota(subject: Subject) {
    for (small, large) in pairs() {
        for (before, after, used, expected) in [(&small, &large, 6_u32, 40_u32), (&large, &small, 60, 4)] {
            assert!(subject.call_of(before, used).await.is_allowed());
            let at = subject.clock.now().after(micros(1));
            subject.clock.set(at);
            let after = after.clone().proportional_to(before, at).unwrap();
            for _ in 0..2 {
                let peeked = subject.limits.peek(&after, KEY).await.unwrap();
                assert_eq!(left(&peeked).whole(), u64::from(expected), "{before} to {after}");
            }
            assert!(subject.call_of(&after, expected).await.is_allowed(), "{after}");
            assert!(!subject.call(&after).await.is_allowed(), "{after}");
            // A key without usage stays unused.
            let peeked = subject.limits.peek(&after, "other").await.unwrap();
            assert_eq!(left(&peeked), after.quota());
            subject.limits.reset(&after, KEY).await.unwrap();
        }
    }
}

/// A change of other settings keeps the conversion of keys that were not called since.
pub(crate) async fn change_of_settings_keeps_conversion(subject: Subject) {
    // The registry compares the moment of the change with the system's clock.
    let today = ManualClock::starting_at(SystemTime::now().into());
    let subject = Subject::with_clock(subject.kind, today);
    let (limits, clock, registry) = (&subject.limits, &subject.clock, subject.limits.registry());
    for (small, large) in pairs() {
        for set in [true, false] {
            registry.change(&large, Inheritance::Reset).unwrap();
            let named = limits.named(large.name());
            assert!(named.check(KEY).cost(60).await.unwrap().is_allowed());
            clock.advance(micros(1));
            registry
                .change_at(&small, Inheritance::Proportional, clock.now())
                .unwrap();
            let patient = small.clone().with_max_deadline(secs(20));
            if set {
                registry.set(patient);
            } else {
                registry.change(patient, Inheritance::AsIs).unwrap();
            }
            assert_eq!(
                left(&named.peek(KEY).await.unwrap()),
                Amount::from(4_u32),
                "{small}"
            );
        }
    }
}

/// Two seconds at the old rate and one at the new one, without a call in between.
pub(crate) async fn refill_uses_rate_of_its_time(subject: Subject) {
    for (small, large) in pairs().into_iter().take(2) {
        assert!(subject.call_of(&small, 7).await.is_allowed());
        subject.clock.advance(secs(2));
        let at = subject.clock.now();
        let large = large.proportional_to(&small, at).unwrap();
        subject.clock.advance(secs(1));
        assert_eq!(subject.call(&large).await.remaining(), 59, "{large}");
        // The policy is a plain one when no earlier usage can remain.
        subject.clock.advance(secs(1_000));
        assert_eq!(subject.call(&large).await.remaining(), 99, "{large}");
    }
}

pub(crate) async fn previous_policy_decides_until_scheduled_change(subject: Subject) {
    for (small, large) in pairs() {
        let at = subject.clock.now().after(secs(1));
        let large = large.proportional_to(&small, at).unwrap();
        let decision = subject.call_of(&large, 5).await;
        assert_eq!(decision.remaining(), 5, "{large}");
        assert_eq!(only(&decision).policy().quota(), small.quota(), "{large}");
        let denied = subject.call_of(&large, 6).await;
        assert!(wait_of(&denied) > secs(0), "{large}");
        subject.clock.set(at);
        let peeked = subject.limits.peek(&large, KEY).await.unwrap();
        // A level has refilled a tenth meanwhile; a window has not decayed yet.
        let expected = if large.name().len() == 1 { 60 } else { 50 };
        assert_eq!(left(&peeked).whole(), expected, "{large}");
    }
}

/// A cost that only the new quota admits is denied until the change, also for an unused key.
pub(crate) async fn cost_above_previous_quota_waits_for_change(subject: Subject) {
    for (small, large) in pairs() {
        let at = subject.clock.now().after(secs(30));
        let large = large.proportional_to(&small, at).unwrap();
        let denied = subject.call_of(&large, 50).await;
        assert!(wait_of(&denied) > secs(0), "{large}");
        let waiting = waiter(&subject, &large, 50, secs(60));
        settle(&subject, &large).await;
        assert!(!waiting.is_finished(), "{large}");
        subject.clock.set(at);
        // The waiter queries again within about a second of the clock.
        while !waiting.is_finished() {
            settle(&subject, &large).await;
            subject.clock.advance(millis(100));
        }
        served(waiting).await;
    }
}

/// A change replaces a scheduled one: the policy before both is converted to the last one.
pub(crate) async fn replaced_change_converts_policy_in_force(subject: Subject) {
    for (small, large) in pairs() {
        assert!(subject.call_of(&large, 60).await.is_allowed());
        let at = subject.clock.now().after(secs(3_600));
        let scheduled = small.clone().proportional_to(&large, at).unwrap();
        let now = subject.clock.now().after(micros(1));
        for at in [now, at] {
            let last = large.clone().proportional_to(&scheduled, at).unwrap();
            assert_eq!(last.before(), Some((&large, at)), "{large}");
        }
        subject.clock.set(now);
        let last = large.clone().proportional_to(&scheduled, now).unwrap();
        let peeked = subject.limits.peek(&last, KEY).await.unwrap();
        assert_eq!(left(&peeked).whole(), 40, "{large}");
    }
}

/// A limit that was charged since the change is not converted again, by any replica.
pub(crate) async fn replicas_convert_a_limit_once(subject: Subject) {
    let other = replica(&subject);
    for (small, large) in pairs() {
        assert!(subject.call_of(&small, 5).await.is_allowed());
        subject.clock.advance(micros(1));
        let large = large.proportional_to(&small, subject.clock.now()).unwrap();
        assert!(subject.call_of(&large, 10).await.is_allowed());
        for limits in [&other, &subject.limits, &other] {
            let peeked = limits.peek(&large, KEY).await.unwrap();
            assert_eq!(left(&peeked).whole(), 40, "{large}");
        }
        assert!(other.check(&large, KEY).cost(40).await.unwrap().is_allowed());
        assert!(!subject.call(&large).await.is_allowed(), "{large}");
        // A replica that has not received the change charges under its own policy.
        assert!(
            !other.check(&small, KEY).cost(10).await.unwrap().is_allowed(),
            "{small}"
        );
    }
}

/// For every way in which a denial before the change was cached.
pub(crate) async fn cached_denial_ends_at_policy_change(subject: Subject) {
    for (small, large) in pairs() {
        assert!(subject.call_of(&small, 7).await.is_allowed());
        assert!(!subject.call_of(&small, 5).await.is_allowed());
        subject.clock.advance(micros(1));
        let large = large.proportional_to(&small, subject.clock.now()).unwrap();
        assert_eq!(subject.call_of(&large, 5).await.remaining(), 25, "{large}");
    }
}

pub(crate) async fn refunds_and_debts_apply_to_converted_state(subject: Subject) {
    for (small, large) in pairs() {
        assert!(subject.call_of(&small, 9).await.is_allowed());
        subject.clock.advance(micros(1));
        let at = subject.clock.now();
        let large = large.proportional_to(&small, at).unwrap();
        subject.limits.refund(&large, KEY).cost(10).await.unwrap();
        assert_eq!(subject.remaining(&large).await, Amount::from(20_u32), "{large}");
        subject.limits.charge(&large, KEY).cost(15).await.unwrap();
        assert_eq!(subject.remaining(&large).await, Amount::from(5_u32), "{large}");
    }
    // The debt is half of the quota before and after.
    let (small, large) = (bucket("debt", 10, "1/s"), bucket("debt", 100, "1/s"));
    subject.limits.charge(&small, KEY).cost(15).await.unwrap();
    subject.clock.advance(micros(1));
    let large = large.proportional_to(&small, subject.clock.now()).unwrap();
    let wait = wait_of(&subject.call(&large).await);
    assert!(wait > secs(50) && wait <= secs(51), "{wait:?}");
}

pub(crate) async fn several_limits_are_converted_for_one_decision(subject: Subject) {
    let changed = pairs().map(|(small, large)| (small, large, subject.clock.now().after(micros(1))));
    for (small, _, _) in &changed {
        assert!(subject.call_of(small, 8).await.is_allowed());
    }
    subject.clock.advance(micros(1));
    let changed = changed.map(|(small, large, at)| large.proportional_to(&small, at).unwrap());
    let plain = window("w", 30, "1h");
    let requests = || changed.iter().chain([&plain]).map(|policy| (policy, KEY));
    let decision = subject.limits.check_all(requests()).cost(15).await.unwrap();
    let remaining: Vec<u64> = decision
        .limits()
        .iter()
        .map(|limit| limit.remaining().whole())
        .collect();
    assert_eq!(remaining, [5, 5, 5, 5, 15]);
    assert!(
        !subject
            .limits
            .check_all(requests())
            .cost(6)
            .await
            .unwrap()
            .is_allowed()
    );
    assert_eq!(subject.remaining(&plain).await, Amount::from(15_u32));
}

pub(crate) async fn registry_text_contains_policy_changes(subject: Subject) {
    let registry = subject.limits.registry();
    for (small, large) in pairs() {
        registry.set(&small);
        let named = subject.limits.named(small.name());
        assert!(named.check(KEY).cost(5).await.unwrap().is_allowed());
        subject.clock.advance(micros(1));
        registry
            .change_at(&large, Inheritance::Proportional, subject.clock.now())
            .unwrap();
        assert_eq!(
            named.check(KEY).cost(10).await.unwrap().remaining(),
            40,
            "{large}"
        );
        registry.change(&large, Inheritance::AsIs).unwrap();
        assert_eq!(
            named.check(KEY).cost(10).await.unwrap().remaining(),
            30,
            "{large}"
        );
    }
    let exact = window("w", 10, "10s");
    registry.set(&exact);
    let refused = registry.change(&exact, Inheritance::Proportional);
    assert!(matches!(refused, Err(ConfigError::Invalid { .. })), "{refused:?}");
    assert_eq!(registry.get("w").unwrap().policy(), &exact);
}
