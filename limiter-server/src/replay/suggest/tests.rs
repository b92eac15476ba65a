use std::task::{Context, Poll, Waker};

use limiter_core::{Limiter, ManualClock, Policy, Timestamp};
use proptest::prelude::*;

use crate::replay::suggest::events::MAX_EVENTS;
use crate::replay::suggest::{DenialTarget, EventLog, Percent, SuggestedBucket, Suggestion};

const START: u64 = 1_767_268_800_000_000;

/// A call: microseconds since the last one, key and cost.
type RecordedCall = (u64, u64, u64);

fn suggestion(calls: &[RecordedCall], target: DenialTarget) -> Option<Suggestion> {
    let (mut events, mut at) = (EventLog::with_max_events(MAX_EVENTS), START);
    for (step, key, cost) in calls {
        at += step;
        events.record(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), at, cost * 1_000);
    }
    Suggestion::compute(None, events, target)
}

/// Returns the calls and keys that the limiter denies.
fn denied_by_limiter(calls: &[RecordedCall], capacity: u64, rate: &str) -> (u64, u64) {
    let clock = ManualClock::new();
    let limits = Limiter::in_process().clock(&clock).build();
    let policy = Policy::token_bucket("p")
        .capacity(capacity)
        .rate(rate)
        .build()
        .unwrap();
    let (mut denied, mut keys, mut at) = (0, std::collections::BTreeSet::new(), START);
    for (step, key, cost) in calls {
        at += step;
        clock.set(Timestamp::from_micros(at));
        let name = key.to_string();
        let check = std::pin::pin!(limits.check(&policy, &name).cost(*cost).into_future());
        let Poll::Ready(decision) = check.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("not ready at once")
        };
        // A cost above the capacity is rejected.
        if !decision.is_ok_and(|decision| decision.is_allowed()) {
            denied += 1;
            keys.insert(*key);
        }
    }
    (denied, keys.len() as u64)
}

fn calls(costs: std::ops::Range<u64>) -> impl Strategy<Value = Vec<RecordedCall>> {
    let step = prop_oneof![3 => Just(0), 2 => 0..2_000_000_u64, 1 => 0..600_000_000_u64];
    proptest::collection::vec((step, 0..5_u64, costs), 1..100)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn capacity_for_calls_is_smallest_that_meets_target(calls in calls(1..2), part in 0..300_000_u64) {
        let suggestion = suggestion(&calls, DenialTarget::DeniedCallsPerMillion(part)).unwrap();
        let accepted = calls.len() as u64 * part / 1_000_000;
        for bucket in &suggestion.buckets {
            let rate = bucket.rate.to_string();
            let (denied, keys) = denied_by_limiter(&calls, bucket.capacity, &rate);
            prop_assert_eq!((denied, keys), (bucket.denied_calls, bucket.denied_keys));
            prop_assert!(denied <= accepted, "{} of {}", denied, accepted);
            if bucket.capacity > 1 {
                let (denied, _) = denied_by_limiter(&calls, bucket.capacity - 1, &rate);
                prop_assert!(denied > accepted, "capacity {} at {}", bucket.capacity - 1, rate);
            }
        }
    }

    /// With different costs the denied calls do not always fall with the capacity, so only the
    /// capacity below the suggested one is certain to miss the target.
    #[test]
    fn capacity_for_calls_with_costs_meets_target(calls in calls(0..9), part in 0..300_000_u64) {
        let Some(suggestion) = suggestion(&calls, DenialTarget::DeniedCallsPerMillion(part)) else {
            return Ok(());
        };
        let accepted = suggestion.calls * part / 1_000_000;
        for bucket in &suggestion.buckets {
            let rate = bucket.rate.to_string();
            let denied = denied_by_limiter(&calls, bucket.capacity, &rate);
            prop_assert_eq!(denied, (bucket.denied_calls, bucket.denied_keys));
            prop_assert!(denied.0 <= accepted, "{} of {}", denied.0, accepted);
            if bucket.capacity > 1 {
                let (denied, _) = denied_by_limiter(&calls, bucket.capacity - 1, &rate);
                prop_assert!(denied > accepted, "capacity {} at {}", bucket.capacity - 1, rate);
            }
        }
    }

    #[test]
    fn capacity_for_keys_is_smallest_that_meets_target(calls in calls(0..9), part in 0..1_000_000_u64) {
        let Some(suggestion) = suggestion(&calls, DenialTarget::DeniedKeysPerMillion(part)) else {
            return Ok(());
        };
        let accepted = suggestion.keys * part / 1_000_000;
        for bucket in &suggestion.buckets {
            let rate = bucket.rate.to_string();
            let denied = denied_by_limiter(&calls, bucket.capacity, &rate);
            prop_assert_eq!(denied, (bucket.denied_calls, bucket.denied_keys));
            prop_assert!(denied.1 <= accepted);
            if bucket.capacity > 1 {
                let (_, denied) = denied_by_limiter(&calls, bucket.capacity - 1, &rate);
                prop_assert!(denied > accepted, "capacity {} at {}", bucket.capacity - 1, rate);
            }
        }
    }

    #[test]
    fn recommended_rate_is_lowest_that_refills_within_a_minute(calls in calls(1..2)) {
        let suggestion = suggestion(&calls, DenialTarget::default()).unwrap();
        let policy = |bucket: &SuggestedBucket| {
            let policy = Policy::token_bucket("p").capacity(bucket.capacity);
            policy.rate(bucket.rate.to_string().as_str()).build().unwrap()
        };
        let expected = suggestion.buckets.iter().find(|bucket| policy(bucket).window().as_secs_f64() <= 60.0);
        prop_assert_eq!(suggestion.recommendation(), expected);
    }
}

#[test]
fn steady_traffic_needs_little_capacity() {
    // One call a second for an hour, and a burst of 30 every ten minutes.
    let mut calls: Vec<RecordedCall> = Vec::new();
    for second in 0..3_600 {
        calls.push((1_000_000, 1, 1));
        if second % 600 == 0 {
            calls.extend(std::iter::repeat_n((0, 1, 1), 29));
        }
    }
    let suggestion = suggestion(&calls, DenialTarget::DeniedCallsPerMillion(0)).unwrap();
    assert_eq!(suggestion.buckets.len(), 20);
    let recommended = suggestion.recommendation().unwrap();
    assert_eq!((recommended.denied_calls, recommended.denied_keys), (0, 0));
    assert!((30..=60).contains(&recommended.capacity), "{recommended:?}");
    assert!(
        suggestion
            .buckets
            .is_sorted_by_key(|bucket| std::cmp::Reverse(bucket.capacity))
    );
}

#[test]
fn percentages_are_exact() {
    for (text, part) in [
        ("0.1", 1_000),
        ("0.1%", 1_000),
        ("99.9", 999_000),
        ("100", 1_000_000),
        ("0", 0),
    ] {
        assert_eq!(text.parse(), Ok(Percent(part)), "{text}");
    }
    for text in ["", "-1", "101", "0.00001", "x"] {
        assert!(text.parse::<Percent>().is_err(), "{text}");
    }
    assert_eq!(Percent(1_000).to_string(), "0.1");
    assert_eq!(
        DenialTarget::DeniedKeysPerMillion(1_000).to_string(),
        "no call denied for 99.9 % of keys"
    );
}
