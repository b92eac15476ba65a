//! Creation and removal of keys.

use std::time::Duration;

use crate::error::StoreErrorKind;
use crate::memory::*;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::clock::ManualClock;

fn charge_request<'a>(policy: &'a Policy, key: &'a str) -> DecisionRequest<'a> {
    DecisionRequest::new([LimitRequest::new(policy, key)], Mode::Charge, false).expect("a valid request")
}

#[test]
fn idle_keys_are_removed_during_decisions() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(Clock::Manual(clock.clone()), usize::MAX);
    let policy = Policy::token_bucket("p")
        .capacity(5)
        .rate(5)
        .build()
        .expect("valid");
    for key in 0..10_000 {
        store
            .decide_now(&charge_request(&policy, &key.to_string()))
            .expect("decided");
    }
    assert_eq!(store.keys(), 10_000);
    for _ in 0..SHARDS * 4 {
        clock.advance(Duration::from_millis(100));
        store
            .decide_now(&charge_request(&policy, "busy"))
            .expect("decided");
    }
    assert_eq!(store.keys(), 1);
}

#[test]
fn full_store_rejects_new_key_and_serves_others() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(Clock::Manual(clock.clone()), 640);
    let policy = Policy::token_bucket("p")
        .capacity(5)
        .rate(5)
        .build()
        .expect("valid");
    let refused = (0..10_000)
        .filter(|key| {
            let answer = store.decide_now(&charge_request(&policy, &key.to_string()));
            answer.is_err_and(|error| error.kind() == StoreErrorKind::Full)
        })
        .count();
    assert_eq!((store.keys(), refused), (640, 10_000 - 640));
    assert!(store.decide_now(&charge_request(&policy, "0")).is_ok());
    clock.advance(Duration::from_secs(1));
    assert!(store.decide_now(&charge_request(&policy, "new")).is_ok());
}

#[test]
fn full_store_accepts_key_when_any_shard_has_idle_key() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(Clock::Manual(clock.clone()), 1);
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate(1)
        .build()
        .expect("valid");
    for key in 0..100 {
        let (key, other) = (key.to_string(), format!("other than {key}"));
        assert!(store.decide_now(&charge_request(&policy, &key)).is_ok(), "{key}");
        assert!(
            store.decide_now(&charge_request(&policy, &other)).is_err(),
            "{other}"
        );
        clock.advance(Duration::from_secs(1));
        assert_eq!(store.keys(), 1, "{key}");
    }
}

#[test]
fn several_limits_are_stored_atomically() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(Clock::Manual(clock.clone()), 3);
    let [one, other] = ["one", "other"].map(|name| {
        let policy = Policy::token_bucket(name).capacity(1).rate(1);
        policy.build().expect("valid")
    });
    let both = |key| {
        DecisionRequest::new(
            [LimitRequest::new(&one, key), LimitRequest::new(&other, key)],
            Mode::Charge,
            false,
        )
    };
    let both = |key| store.decide_now(&both(key).expect("a valid request"));
    assert!(both("ann").is_ok());
    assert!(
        both("bob").is_err(),
        "the table can hold one more key, but not two"
    );
    assert_eq!(store.keys(), 2);
    let denied = both("ann").expect("decided");
    assert!(denied.outcomes.iter().all(|outcome| !outcome.fits));
    clock.advance(Duration::from_secs(1));
    assert!(both("bob").is_ok());
}

const HOUR: u64 = 3_600_000_000;
const SIGNED_HOUR: i64 = 3_600_000_000;

/// A calendar period, alone and together with a bucket, which uses monotonic time.
#[test]
fn calendar_periods_follow_changes_of_system_clock() {
    let day = Policy::fixed_window("day").limit(1).window("1d");
    let day = day.aligned("utc").build().expect("valid");
    let bucket = Policy::token_bucket("b")
        .capacity(9)
        .rate("1/h")
        .build()
        .expect("valid");
    for alone in [true, false] {
        let requests = || {
            let [day, bucket] = [&day, &bucket].map(|policy| LimitRequest::new(policy, "k"));
            let requests = if alone { vec![day] } else { vec![bucket, day] };
            DecisionRequest::new(requests, Mode::Charge, false).expect("a valid request")
        };
        // At noon.
        let noon = Timestamp::from_micros(24 * HOUR * 20_000 + 12 * HOUR);
        let clock = ManualClock::starting_at(noon);
        let store = MemoryStore::new(Clock::Manual(clock.clone()), usize::MAX);
        let fits = || {
            let verdict = store.decide_now(&requests()).expect("decided");
            assert_eq!(verdict.decided_at, clock.now(), "allowed and denied");
            verdict.outcomes.iter().all(|outcome| outcome.fits)
        };
        assert!(fits() && !fits());
        // The machine was suspended for 14 hours, which monotonic time does not include.
        clock.set_calendar_ahead(14 * SIGNED_HOUR);
        assert!(fits() && !fits(), "it is 02:00 of the next day");
        // A clock set back by four hours creates no permits and extends the period by no more than
        // a day.
        clock.set_calendar_ahead(10 * SIGNED_HOUR);
        assert!(!fits());
        clock.advance(Duration::from_micros(26 * HOUR));
        assert!(fits() && !fits());
        // The monotonic clock reads midnight; the calendar day must not expire before its end.
        clock.set(noon.after(Duration::from_micros(240 * HOUR)));
        clock.set_calendar_ahead(-10 * SIGNED_HOUR);
        assert!(fits() && !fits());
        clock.advance(Duration::from_micros(12 * HOUR));
        for _ in 0..2 * SHARDS {
            clock.advance(Duration::from_millis(1));
            assert!(!fits());
        }
        clock.advance(Duration::from_micros(10 * HOUR));
        assert!(fits() && !fits());
    }
}

/// A calendar period expires by the calendar; other states expire by monotonic time.
#[test]
fn idle_keys_expire_by_the_clock_of_their_algorithm() {
    let [day, first_use] = ["day", "first use"].map(|name| Policy::fixed_window(name).limit(9).window("1d"));
    let (day, first_use) = (day.aligned("utc").build(), first_use.build());
    let bucket = Policy::token_bucket("b").capacity(5).rate(5).build();
    let [day, first_use, bucket] = [day, first_use, bucket].map(|policy| policy.expect("valid"));
    let noon = Timestamp::from_micros(24 * HOUR * 20_000 + 12 * HOUR);
    let clock = ManualClock::starting_at(noon);
    let store = MemoryStore::new(Clock::Manual(clock.clone()), usize::MAX);
    let charge = |policy, key: &str| store.decide_now(&charge_request(policy, key)).expect("decided");
    let keys_after_a_round = || {
        for _ in 0..SHARDS * 4 {
            clock.advance(Duration::from_millis(1));
            charge(&bucket, "busy");
        }
        store.keys()
    };
    for key in 0..100 {
        for policy in [&day, &first_use, &bucket] {
            charge(policy, &key.to_string());
        }
    }
    // The clock is set back by a year, as with an empty battery.
    clock.set_calendar_ahead(-365 * 24 * SIGNED_HOUR);
    clock.advance(Duration::from_secs(2));
    assert_eq!(keys_after_a_round(), 201, "the buckets are full");
    clock.advance(Duration::from_micros(24 * HOUR));
    assert_eq!(keys_after_a_round(), 101, "a day has passed");
    // The clock is corrected and moved ahead: the day has ended.
    clock.set_calendar_ahead(12 * SIGNED_HOUR);
    assert_eq!(keys_after_a_round(), 1);

    charge(&first_use, "k");
    charge(&day, "k");
    clock.set_calendar_ahead(40 * SIGNED_HOUR);
    assert_eq!(
        keys_after_a_round(),
        2,
        "by monotonic time, the period has just begun"
    );
}

/// A small step back of the calendar after midnight returns to a day of which the usage counts. A
/// full store removes the ended day at once.
#[test]
fn ended_calendar_period_is_kept_for_small_step_back() {
    let day = Policy::fixed_window("day").limit(1).window("1d");
    let day = day.aligned("utc").build().expect("valid");
    let bucket = Policy::token_bucket("b").capacity(5).rate(5).build();
    let bucket = bucket.expect("valid");
    let before_midnight = Timestamp::from_micros(24 * HOUR * 20_000 - 1_000_000);
    let clock = ManualClock::starting_at(before_midnight);
    let store = MemoryStore::new(Clock::Manual(clock.clone()), usize::MAX);
    let full = MemoryStore::new(Clock::Manual(clock.clone()), 1);
    let is_charged = |store: &MemoryStore, policy, key: &str| {
        let verdict = store.decide_now(&charge_request(policy, key));
        verdict.is_ok_and(|verdict| verdict.fits())
    };
    assert!(is_charged(&store, &day, "k") && is_charged(&full, &day, "k"));
    assert!(!is_charged(&full, &day, "other"), "the store is full");
    clock.advance(Duration::from_millis(1_500));
    assert!(is_charged(&full, &day, "other"), "the day has ended");
    for _ in 0..SHARDS * 4 {
        clock.advance(Duration::from_millis(1));
        is_charged(&store, &bucket, "busy");
    }
    clock.set_calendar_ahead(-2_000_000);
    assert!(!is_charged(&store, &day, "k"), "the day is charged");
    clock.set_calendar_ahead(0);
    assert!(is_charged(&store, &day, "k"), "another day");
}
