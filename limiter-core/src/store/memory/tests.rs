//! Keys come and go.

use super::*;
use crate::clock::ManualClock;
use crate::policy::Policy;
use crate::request::Ask;
use std::time::Duration;

fn ask<'a>(policy: &'a Policy, key: &'a str) -> Request<'a> {
    Request::new([Ask::new(policy, key)], Mode::Charge, false).expect("a valid request")
}

#[test]
fn idle_keys_leave_by_themselves() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(Clock::Manual(clock.clone()), usize::MAX);
    let policy = Policy::token_bucket("p")
        .capacity(5)
        .rate(5)
        .build()
        .expect("valid");
    for key in 0..10_000 {
        store
            .decide_now(&ask(&policy, &key.to_string()))
            .expect("decided");
    }
    assert_eq!(store.keys(), 10_000);
    for _ in 0..SHARDS * 4 {
        clock.advance(Duration::from_millis(100));
        store.decide_now(&ask(&policy, "busy")).expect("decided");
    }
    assert_eq!(store.keys(), 1);
}

#[test]
fn a_full_store_answers_a_new_key_with_full_and_serves_the_others() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(Clock::Manual(clock.clone()), 640);
    let policy = Policy::token_bucket("p")
        .capacity(5)
        .rate(5)
        .build()
        .expect("valid");
    let refused = (0..10_000)
        .filter(|key| {
            let answer = store.decide_now(&ask(&policy, &key.to_string()));
            answer.is_err_and(|error| error.kind() == StoreErrorKind::Full)
        })
        .count();
    assert_eq!((store.keys(), refused), (640, 10_000 - 640));
    assert!(store.decide_now(&ask(&policy, "0")).is_ok());
    clock.advance(Duration::from_secs(1));
    assert!(store.decide_now(&ask(&policy, "new")).is_ok());
}

#[test]
fn a_full_store_has_room_as_soon_as_one_key_of_whatever_shard_is_idle() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(Clock::Manual(clock.clone()), 1);
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate(1)
        .build()
        .expect("valid");
    for key in 0..100 {
        let (key, other) = (key.to_string(), format!("other than {key}"));
        assert!(store.decide_now(&ask(&policy, &key)).is_ok(), "{key}");
        assert!(store.decide_now(&ask(&policy, &other)).is_err(), "{other}");
        clock.advance(Duration::from_secs(1));
        assert_eq!(store.keys(), 1, "{key}");
    }
}

#[test]
fn several_limits_find_room_for_all_of_them_or_store_nothing() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(Clock::Manual(clock.clone()), 3);
    let [one, other] = ["one", "other"].map(|name| {
        let policy = Policy::token_bucket(name).capacity(1).rate(1);
        policy.build().expect("valid")
    });
    let both = |key| Request::new([Ask::new(&one, key), Ask::new(&other, key)], Mode::Charge, false);
    let both = |key| store.decide_now(&both(key).expect("a valid request"));
    assert!(both("ann").is_ok());
    assert!(
        both("bob").is_err(),
        "there is room for one more key, not for two"
    );
    assert_eq!(store.keys(), 2);
    let denied = both("ann").expect("decided");
    assert!(denied.outcomes.iter().all(|outcome| !outcome.fits));
    clock.advance(Duration::from_secs(1));
    assert!(both("bob").is_ok());
}
