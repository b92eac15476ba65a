//! The choice of evicted keys, and the additional permits that evictions admit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::algorithm::{Mode, StepOutcome};
use crate::error::StoreErrorKind;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::clock::{Clock, ManualClock};
use crate::{Limiter, Rejection};

fn evicting(clock: &ManualClock, max_keys: usize) -> MemoryStore {
    MemoryStore::new(Clock::Manual(clock.clone()), max_keys).evicting()
}

fn bucket(name: &str, rate: &str) -> Policy {
    Policy::token_bucket(name)
        .capacity(10)
        .rate(rate)
        .build()
        .unwrap()
}

fn request<'a>(requests: impl IntoIterator<Item = LimitRequest<'a>>, mode: Mode) -> DecisionRequest<'a> {
    DecisionRequest::new(requests, mode, false).unwrap()
}

/// One policy per algorithm whose usage expires at a different time for each key.
fn policies() -> [Policy; 5] {
    [
        bucket("bucket", "1/s"),
        Policy::funnel("funnel").capacity(10).rate("3/s").build().unwrap(),
        Policy::sliding_window("exact")
            .limit(10)
            .window("7s")
            .build()
            .unwrap(),
        Policy::counter_window("counters")
            .limit(10)
            .window("5s")
            .build()
            .unwrap(),
        Policy::fixed_window("fixed")
            .limit(10)
            .window("9s")
            .build()
            .unwrap(),
    ]
}

/// A store without a bound, from which the test removes the key that expires first where the other
/// store has to evict one.
struct Model {
    store: MemoryStore,
    present: BTreeSet<(usize, u32)>,
}

impl Model {
    fn expires_after(&self, policies: &[Policy], (policy, key): (usize, u32)) -> u64 {
        let key = key.to_string();
        let limit_request = LimitRequest::new(&policies[policy], key.as_str());
        let verdict = self
            .store
            .decide_now(&request([limit_request], Mode::Peek))
            .unwrap();
        verdict.outcomes[0].expires_after
    }

    /// Evicts keys so that all of these keys fit. Returns whether any was evicted.
    fn make_room(&mut self, policies: &[Policy], max_keys: usize, wanted: &[(usize, u32)]) -> bool {
        let expiries: BTreeMap<_, _> = self
            .present
            .iter()
            .map(|place| (*place, self.expires_after(policies, *place)))
            .collect();
        self.present.retain(|place| expiries[place] > 0);
        let new = wanted
            .iter()
            .filter(|place| !self.present.contains(place))
            .count();
        let missing = (self.present.len() + new).saturating_sub(max_keys);
        for _ in 0..missing {
            let victims = self.present.iter().filter(|place| !wanted.contains(place));
            let victim = *victims.min_by_key(|place| expiries[place]).unwrap();
            self.present.remove(&victim);
            let key = victim.1.to_string();
            let limit_request = LimitRequest::new(&policies[victim.0], key.as_str());
            self.store.forget(&request([limit_request], Mode::Peek).limits[0]);
        }
        missing > 0
    }
}

/// In a small table the victim is the key that is closest to idle, and an eviction changes nothing
/// but that this key starts over.
#[test]
fn eviction_equals_reset_of_key_closest_to_idle() {
    const MAX_KEYS: usize = 8;
    let (policies, mut evictions) = (policies(), 0);
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let clock = ManualClock::new();
        let store = evicting(&clock, MAX_KEYS);
        let mut model = Model {
            store: MemoryStore::new(Clock::Manual(clock.clone()), usize::MAX),
            present: BTreeSet::new(),
        };
        for step in 0..300 {
            // Longer than the pause between two searches for expired keys.
            clock.advance(Duration::from_micros(random.u64(1_001..700_000)));
            let (key, cost) = (random.u32(0..6), random.u32(1..=4));
            let first = random.usize(0..policies.len());
            let count = random.usize(1..=2);
            let places: Vec<_> = (0..count)
                .map(|number| ((first + number) % policies.len(), key))
                .collect();
            let text = key.to_string();
            let requests = || {
                let requests = places.iter().map(|place| &policies[place.0]);
                let requests = requests.map(|policy| LimitRequest::new(policy, text.as_str()).cost(cost));
                request(requests, Mode::Charge)
            };
            let before = model.store.decide_now(&request(
                places
                    .iter()
                    .map(|place| LimitRequest::new(&policies[place.0], text.as_str()).cost(cost)),
                Mode::Peek,
            ));
            let fits = before.unwrap().outcomes.iter().all(|outcome| outcome.fits);
            if fits {
                evictions += u32::from(model.make_room(&policies, MAX_KEYS, &places));
                model.present.extend(&places);
            }
            let [ours, theirs] =
                [&store, &model.store].map(|store| store.decide_now(&requests()).unwrap().outcomes);
            let outcomes_of = |outcomes: &[StepOutcome]| outcomes.to_vec();
            assert_eq!(
                outcomes_of(&ours),
                outcomes_of(&theirs),
                "seed {seed}, step {step}: {places:?}"
            );
            assert!(store.keys() <= MAX_KEYS);
        }
    }
    assert!(evictions > 1_000, "{evictions}");
}

/// Over any time a key is admitted one quota more for each time that it was evicted, and no more.
#[test]
fn eviction_admits_at_most_one_quota_more() {
    let clock = ManualClock::new();
    let store = evicting(&clock, 1);
    let policy = bucket("p", "1/h");
    let admitted = |key: &str| {
        let all = std::iter::from_fn(|| {
            let verdict = store.decide_now(&request([LimitRequest::new(&policy, key)], Mode::Charge));
            verdict.unwrap().outcomes[0].fits.then_some(())
        });
        all.count()
    };
    assert_eq!(admitted("a"), 10);
    assert_eq!(admitted("a"), 0);
    for _ in 0..5 {
        assert_eq!(admitted("b"), 10, "the new key replaces the other key");
        assert_eq!(admitted("a"), 10);
    }
}

/// New keys that are hardly used evict each other, not a key whose usage lasts long.
#[test]
fn busy_key_survives_flood_of_new_keys() {
    let clock = ManualClock::new();
    let store = evicting(&clock, 1_000);
    let policy = bucket("p", "1/h");
    let call = |key: &str, cost: u32| {
        let limit_request = LimitRequest::new(&policy, key).cost(cost);
        store
            .decide_now(&request([limit_request], Mode::Charge))
            .unwrap()
            .outcomes[0]
    };
    assert!(call("busy", 10).fits);
    for key in 0..20_000 {
        clock.advance(Duration::from_micros(10));
        assert!(call(&key.to_string(), 1).fits);
        assert!(store.keys() <= 1_000);
    }
    assert!(!call("busy", 1).fits);
}

/// Periods of the calendar are compared by the calendar, however far it is from the process's
/// clock.
#[test]
fn calendar_window_is_compared_by_calendar() {
    let noon = Timestamp::from_micros(86_400_000_000 * 20_000 + 43_200_000_000);
    let day = Policy::fixed_window("day").limit(9).window("1d").aligned("utc");
    let day = day.build().unwrap();
    let first_use = Policy::fixed_window("first use").limit(9).window("6h");
    let first_use = first_use.build().unwrap();
    let new = bucket("new", "1/h");
    // Twelve hours of the day remain, or one.
    for (ahead, victim) in [(0, &first_use), (11 * 3_600_000_000, &day)] {
        let clock = ManualClock::starting_at(noon);
        clock.set_calendar_ahead(ahead);
        let store = evicting(&clock, 2);
        let call = |policy, key: &str, mode| {
            let verdict = store.decide_now(&request([LimitRequest::new(policy, key)], mode));
            verdict.unwrap().outcomes[0].remaining
        };
        for policy in [&day, &first_use] {
            call(policy, "k", Mode::Charge);
        }
        call(&new, "k", Mode::Charge);
        for policy in [&day, &first_use] {
            let left = if policy == victim { 9 } else { 8 };
            assert_eq!(call(policy, "other", Mode::Peek), 9);
            assert_eq!(call(policy, "k", Mode::Peek), left, "{policy}, {ahead}");
        }
    }
}

#[test]
fn decision_does_not_evict_its_own_keys() {
    let clock = ManualClock::new();
    let [one, other, third] = ["one", "other", "third"].map(|name| bucket(name, "1/h"));
    let store = evicting(&clock, 2);
    let call = |policies: &[&Policy], key: &str, cost: u32| {
        let requests = policies
            .iter()
            .map(|policy| LimitRequest::new(policy, key).cost(cost));
        store.decide_now(&request(requests, Mode::Charge))
    };
    // `one` is closest to idle, but it belongs to the decision that needs space.
    assert!(call(&[&one], "a", 1).is_ok());
    assert!(call(&[&third], "b", 9).is_ok());
    let verdict = call(&[&one, &other], "a", 1).unwrap();
    let left: Vec<u64> = verdict.outcomes.iter().map(|outcome| outcome.remaining).collect();
    assert_eq!(left, [8_000, 9_000]);
    // The table cannot hold three keys.
    let error = call(&[&one, &other, &third], "c", 1).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert_eq!(store.keys(), 2, "the failed decision evicts no key");
    let verdict = call(&[&one, &other], "a", 1).unwrap();
    assert_eq!(verdict.outcomes[0].remaining, 7_000);
}

#[test]
fn threads_never_exceed_bound() {
    let store = Arc::new(MemoryStore::new(Clock::System, 64).evicting());
    let policy = bucket("p", "1/h");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, policy) = (Arc::clone(&store), &policy);
            scope.spawn(move || {
                for number in 0..5_000 {
                    let key = format!("{thread}:{number}");
                    let verdict =
                        store.decide_now(&request([LimitRequest::new(policy, key.as_str())], Mode::Charge));
                    assert!(verdict.is_ok(), "{verdict:?}");
                    assert!(store.keys.count() <= 64);
                }
            });
        }
    });
    assert_eq!(store.keys(), 64);
}

/// Permits are counted apart, and are released by their holders alone.
#[tokio::test]
async fn held_permits_are_never_evicted() {
    let limits = Limiter::in_process().max_keys(2).evict_when_full().build();
    let exports = Policy::concurrency("export").max(1).build().unwrap();
    let calls = bucket("calls", "1/h");
    let held = [
        limits.acquire_concurrency(&exports, "a").await.unwrap(),
        limits.acquire_concurrency(&exports, "b").await.unwrap(),
    ];
    for key in 0..1_000 {
        assert!(limits.check(&calls, key).await.unwrap().is_allowed());
        let full = limits
            .acquire_concurrency(&exports, format!("new {key}"))
            .await
            .unwrap_err();
        assert!(
            matches!(&full, Rejection::Unavailable { error, .. } if error.kind() == StoreErrorKind::Full),
            "{full:?}"
        );
    }
    for key in ["a", "b"] {
        let denied = limits.acquire_concurrency(&exports, key).await.unwrap_err();
        assert!(matches!(denied, Rejection::Limited(_)), "{denied:?}");
    }
    drop(held);
    assert!(limits.acquire_concurrency(&exports, "new").await.is_ok());
}
