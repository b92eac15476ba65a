//! Old and new policy alternate call by call, as during a rollout.

use limiter_core::Policy;

use crate::promise::{self, Grant};
use crate::support::{KEY, Subject, bucket, funnel, micros, millis, secs, window};

/// Returns the whole permits that each policy admitted with one call every 70 ms in turn, and those
/// that the smaller one would have admitted alone.
async fn alternate(subject: &Subject, old: &Policy, new: &Policy, calls: u64) -> (Vec<Grant>, u64) {
    let (mut grants, mut alone) = (Vec::new(), 0);
    for call in 0..calls {
        let policy = if call % 2 == 0 { old } else { new };
        let decision = subject.call(policy).await;
        if decision.is_allowed() {
            grants.push(Grant::of(&decision, 1, call % 2 == 1));
        }
        let smaller = subject.limits.check(old, "alone").await.unwrap();
        alone += u64::from(smaller.is_allowed());
        subject.clock.advance(millis(70));
    }
    (grants, alone)
}

pub(crate) async fn alternating_buckets_create_and_lose_no_permits(subject: Subject) {
    for (old, new, capacity, rate) in [
        (bucket("a", 5, "2/s"), bucket("a", 20, "2/s"), 20, 2),
        (bucket("b", 5, "2/s"), bucket("b", 5, "7/s"), 5, 7),
        (bucket("c", 5, "7/3s"), bucket("c", 8, "3/s"), 8, 3),
    ] {
        let (grants, alone) = alternate(&subject, &old, &new, 300).await;
        promise::level(&grants, capacity * 1_000, (rate * 1_000, 1_000_000)).unwrap();
        assert!(
            grants.len() as u64 >= alone,
            "{old} and {new}: {} of {alone}",
            grants.len()
        );
        subject.clock.advance(secs(60));
    }
}

pub(crate) async fn alternating_funnels_create_and_lose_no_permits(subject: Subject) {
    for (old, new, capacity, rate) in [
        (funnel("a", 5, "2/s"), funnel("a", 20, "2/s"), 20, 2),
        (funnel("b", 5, "2/s"), funnel("b", 5, "7/s"), 5, 7),
        (funnel("c", 5, "7/3s"), funnel("c", 8, "3/s"), 8, 3),
    ] {
        let (grants, alone) = alternate(&subject, &old, &new, 300).await;
        promise::level(&grants, capacity * 1_000, (rate * 1_000, 1_000_000)).unwrap();
        assert!(
            grants.len() as u64 >= alone,
            "{old} and {new}: {} of {alone}",
            grants.len()
        );
        subject.clock.advance(secs(60));
    }
}

pub(crate) async fn alternating_windows_create_and_lose_no_permits(subject: Subject) {
    for (old, new, limits) in [
        (
            window("a", 5, "2s"),
            window("a", 20, "2s"),
            [(5, 2_000_000), (20, 2_000_000)],
        ),
        (
            window("b", 5, "2s"),
            window("b", 30, "5s"),
            [(5, 2_000_000), (30, 5_000_000)],
        ),
    ] {
        let (grants, alone) = alternate(&subject, &old, &new, 300).await;
        promise::window_of_each(&grants, limits).unwrap();
        assert!(
            grants.len() as u64 >= alone,
            "{old} and {new}: {} of {alone}",
            grants.len()
        );
        subject.clock.advance(secs(60));
    }
}

/// A change that is rolled back restores no permits that were used in between.
pub(crate) async fn alternating_change_creates_no_permits(subject: Subject) {
    for (small, large) in [
        (bucket("b", 2, "1/h"), bucket("b", 10, "1/h")),
        (funnel("f", 2, "1/h"), funnel("f", 10, "1/h")),
        (window("w", 2, "1h"), window("w", 10, "1h")),
    ] {
        let mut admitted = 0;
        for _ in 0..10 {
            for policy in [&small, &large] {
                admitted += u64::from(subject.call(policy).await.is_allowed());
            }
        }
        assert!((2..=10).contains(&admitted), "{small} and {large}: {admitted}");
    }
}

/// Permits of a small bucket are missing from the large one while it refills.
pub(crate) async fn permits_of_small_bucket_count_in_large_one(subject: Subject) {
    let (small, large) = (bucket("p", 10, "1/s"), bucket("p", 100, "1/s"));
    let mut grants = Vec::new();
    for (policy, cost, pause) in [(&large, 100_u64, 50), (&small, 10, 50), (&large, 100, 0)] {
        let decision = subject.call_of(policy, cost).await;
        if decision.is_allowed() {
            grants.push(Grant::of(&decision, cost, false));
        }
        subject.clock.advance(secs(pause));
    }
    promise::level(&grants, 100_000, (1_000, 1_000_000)).unwrap();
}

/// Permits of a short window still count in a long one that was in use.
pub(crate) async fn permits_of_short_window_count_in_long_one(subject: Subject) {
    let (short, long) = (window("p", 5, "1s"), window("p", 100, "10s"));
    let mut grants = Vec::new();
    for (policy, cost, pause) in [(&long, 1_u64, 9_500), (&short, 5, 1_000), (&long, 100, 0)] {
        let decision = subject.call_of(policy, cost).await;
        if decision.is_allowed() {
            grants.push(Grant::of(&decision, cost, policy == &long));
        }
        subject.clock.advance(millis(pause));
    }
    promise::window_of_each(&grants, [(5, 1_000_000), (100, 10_000_000)]).unwrap();
}

/// Rates with permanent remainders, polled at odd times: after a long time the count equals the
/// formula.
pub(crate) async fn frequently_polled_rate_loses_nothing(subject: Subject) {
    // Permits per microseconds; the longest gap between two polls; a capacity of which half is
    // never filled or emptied.
    for (rate, permits, period, gap, capacity) in [
        ("7/3s", 7, 3_000_000, 5_000, 1_000_u64),
        ("0.001/s", 1, 1_000_000_000, 2_000_000, 1_000),
        ("1_000_000/s", 1, 1, 40, 100_000),
        ("999_983/day", 999_983, 86_400_000_000, 1_000, 1_000),
        ("1/30d", 1, 2_592_000_000_000, 2_000_000_000, 1_000),
    ] {
        for policy in [bucket("p", capacity, rate), funnel("p", capacity, rate)] {
            let start = subject.clock.now();
            assert!(subject.call_of(&policy, capacity / 2).await.is_allowed());
            let mut used = u128::from(capacity / 2) * 1_000;
            let mut gaps = fastrand::Rng::with_seed(7);
            for _ in 0..250 {
                subject.clock.advance(micros(gaps.u64(1..=gap)));
                assert!(subject.call_of(&policy, 0.001).await.is_allowed());
                used += 1;
            }
            let elapsed = subject.clock.now().since(start).as_micros();
            let gained = elapsed * permits * 1_000 / period;
            let left = subject.remaining(&policy).await.as_thousandths();
            assert!(gained > 50, "{policy}: the trial has no result");
            assert_eq!(left + used, u128::from(capacity) * 1_000 + gained, "{policy}");
            subject.limits.reset(&policy, KEY).await.unwrap();
        }
    }
}
