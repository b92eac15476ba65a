use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::algorithm::{StepOutcome, UsageCorrection};
use crate::policy::Policy;
use crate::redis::local_fallback::*;
use crate::request::LimitRequest;
use crate::support::clock::ManualClock;

fn policies() -> [Policy; 6] {
    [
        Policy::token_bucket("b")
            .capacity(10)
            .rate("4/s")
            .build()
            .unwrap(),
        Policy::funnel("f").capacity(10).rate("4/s").build().unwrap(),
        Policy::sliding_window("w")
            .limit(10)
            .window("2s")
            .build()
            .unwrap(),
        Policy::counter_window("c")
            .limit(10)
            .window("2s")
            .build()
            .unwrap(),
        Policy::fixed_window("x").limit(10).window("2s").build().unwrap(),
        Policy::fixed_window("a")
            .limit(10)
            .window("2s")
            .aligned("utc")
            .build()
            .unwrap(),
    ]
}

/// A share is never exceeded, for any replies of the store and any sequence of outages.
#[test]
fn share_is_never_exceeded() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..600 {
        let policy = &policies()[round % 6];
        let replicas = random.u32(1..5);
        let share = policy.algorithm().share(replicas);
        let clock = ManualClock::new();
        let fallback = LocalFallback::new(Clock::Manual(clock.clone()), 100);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for _ in 0..200 {
            clock.advance(Duration::from_millis(random.u64(0..300)));
            let cost = random.u32(0..3);
            let request =
                DecisionRequest::new([LimitRequest::new(policy, "k").cost(cost)], Mode::Charge, false)
                    .unwrap();
            if random.bool() {
                let quota = policy.algorithm().quota();
                let outcome = StepOutcome {
                    remaining: random.u64(..=quota),
                    reset_after: random.u64(1..2_500_000),
                    ..StepOutcome::default()
                };
                let decided_at = clock.now();
                let outcomes = [outcome].into_iter().collect();
                fallback.on_verdict(&request, &Verdict::new(decided_at, outcomes), decided_at);
            } else {
                let verdict = fallback.decide(&request, replicas).unwrap();
                if verdict.outcomes[0].fits && cost > 0 {
                    admitted.push((clock.now().as_micros(), request.limits[0].cost));
                }
            }
        }
        let (mut until, mut sum) = (0, 0);
        for (at, cost) in &admitted {
            let Algorithm::FixedWindow(window) = share else {
                break;
            };
            if *at >= until {
                (until, sum) = (window.end(*at), 0);
            }
            sum += cost;
            assert!(
                sum <= window.limit,
                "seed {seed}, {policy} over {replicas}: {sum}"
            );
        }
        for (first, (from, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for (at, cost) in &admitted[first..] {
                sum += cost;
                let bound = match share {
                    Algorithm::SlidingWindow(window) if at - from >= window.window => break,
                    Algorithm::SlidingWindow(window) => window.limit,
                    Algorithm::CounterWindow(window) => {
                        window.limit + window.limit * (at - from) / window.window
                    }
                    Algorithm::FixedWindow(_) => break,
                    Algorithm::Concurrency(_) => unreachable!("concurrency limits have no rate"),
                    Algorithm::TokenBucket(crate::policy::TokenBucket { capacity, rate })
                    | Algorithm::Funnel(crate::policy::Funnel { capacity, rate, .. }) => {
                        capacity + rate.accrue(at - from, rate.micros - 1).0
                    }
                };
                assert!(
                    sum <= bound,
                    "seed {seed}, {policy} over {replicas}: {sum} in {} µs",
                    at - from
                );
            }
        }
    }
}

/// With an exhausted limit and one replica, the fallback admits calls when the store would.
#[test]
fn single_replica_continues_from_store_state() {
    for policy in policies() {
        let clock = ManualClock::new();
        let store = MemoryStore::new(Clock::Manual(clock.clone()), 10);
        let fallback = LocalFallback::new(Clock::Manual(clock.clone()), 100);
        let request = DecisionRequest::new([LimitRequest::new(&policy, "k")], Mode::Charge, false).unwrap();
        for _ in 0..13 {
            clock.advance(Duration::from_millis(10));
            fallback.on_verdict(&request, &store.decide_now(&request).unwrap(), clock.now());
        }
        let (mut whole, mut part) = (0, 0);
        for _ in 0..500 {
            clock.advance(Duration::from_millis(7));
            whole += i32::from(store.decide_now(&request).unwrap().outcomes[0].fits);
            part += i32::from(fallback.decide(&request, 1).unwrap().outcomes[0].fits);
            assert!(part <= whole, "{policy}");
        }
        // Fractions of a permit are not reported, and all permits of a window count as granted with
        // the newest one.
        assert!(whole - part <= 1, "{policy}: {part} of {whole}");
    }
}

/// A denial caused by the store's usage ends exactly at its reported `retry_after`.
#[test]
fn counter_window_denial_ends_exactly_with_weight() {
    let policy = Policy::counter_window("c")
        .limit(100)
        .window("1h")
        .build()
        .unwrap();
    let hour = 3_600_000_000;
    for (remaining, cost, reset_after) in [
        (0, 1, 2 * hour),
        (10, 30, 2 * hour),
        (0, 100, hour),
        (7, 8, hour / 2),
    ] {
        let clock = ManualClock::new();
        let fallback = LocalFallback::new(Clock::Manual(clock.clone()), 100);
        let request =
            DecisionRequest::new([LimitRequest::new(&policy, "k").cost(cost)], Mode::Charge, false).unwrap();
        let outcome = StepOutcome {
            remaining,
            reset_after,
            ..StepOutcome::default()
        };
        let decided_at = clock.now();
        let outcomes = [outcome].into_iter().collect();
        fallback.on_verdict(&request, &Verdict::new(decided_at, outcomes), decided_at);
        let fits = |fallback: &LocalFallback| fallback.decide(&request, 1).unwrap().outcomes[0];
        let denied = fits(&fallback);
        assert!(!denied.fits && denied.retry_after > 0, "{remaining} {cost}");
        clock.advance(Duration::from_micros(denied.retry_after - 1));
        assert!(!fits(&fallback).fits, "{remaining} {cost}: too late");
        clock.advance(Duration::from_micros(1));
        assert!(fits(&fallback).fits, "{remaining} {cost}: too early");
    }
}

/// The store's last grants may count for longer than the share's own period.
#[test]
fn refund_after_end_of_share_period_is_ignored() {
    let policy = &policies()[4];
    let request = |cost: u32, mode| {
        DecisionRequest::new([LimitRequest::new(policy, "k").cost(cost)], mode, false).unwrap()
    };
    let clock = ManualClock::new();
    let fallback = LocalFallback::new(Clock::Manual(clock.clone()), 100);
    let given = |cost| fallback.decide(&request(cost, Mode::Charge), 1).unwrap();
    let advance = |millis| clock.advance(Duration::from_millis(millis));
    let _ = given(1);
    advance(1_000);
    let outcome = StepOutcome {
        fits: true,
        remaining: 9,
        reset_after: 2_000_000,
        ..StepOutcome::default()
    };
    let verdict = Verdict::new(clock.now(), [outcome].into_iter().collect());
    fallback.on_verdict(&request(1, Mode::Charge), &verdict, clock.now());
    advance(500);
    let outcome = given(2).outcomes[0];
    assert_eq!(outcome.reset_after, 1_500_000, "when the store's period ends");

    let whole_at = outcome.whole_at;
    assert_eq!(whole_at, clock.now().as_micros() + 500_000);
    advance(1_000);
    let _ = given(3);
    let settled = fallback.apply_change(&request(2, Mode::Peek), UsageCorrection::Refund { whole_at }, 1);
    assert!(settled.is_ok());
    advance(500);
    let left = fallback.decide(&request(0, Mode::Peek), 1).unwrap();
    assert_eq!(left.outcomes[0].remaining, 7);
}

/// A settlement after the usage came back takes back no permits that other calls recorded since.
#[test]
fn late_refund_leaves_later_permits_unreported() {
    for (policy, is_reported) in policies()
        .iter()
        .flat_map(|policy| [(policy, false), (policy, true)])
    {
        let request = |cost: u32, mode| {
            DecisionRequest::new([LimitRequest::new(policy, "k").cost(cost)], mode, false).unwrap()
        };
        let clock = ManualClock::new();
        let fallback = LocalFallback::new(Clock::Manual(clock.clone()), 100);
        let charge = |cost| {
            let request = request(cost, Mode::Charge);
            let verdict = fallback.decide(&request, 1).unwrap();
            fallback.record(&request, &verdict, 1);
            verdict
        };
        let reported = || {
            let limits = fallback.unreported().batch(10);
            let report = fallback.take_unreported(&limits[0], policy, clock.now());
            fallback.unreported().finish(limits[0].identity, clock.now());
            report.unwrap().amount
        };
        let first = charge(5);
        let units = request(1, Mode::Charge).limits[0].cost;
        if is_reported {
            assert_eq!(reported(), 5 * units, "{policy}");
        }
        let outcome = first.outcomes[0];
        let whole_at = match outcome.whole_at {
            0 => clock.now().as_micros() + outcome.reset_after,
            whole_at => whole_at,
        };
        clock.advance(Duration::from_secs(8));
        assert!(charge(4).fits(), "{policy}");
        let refund = UsageCorrection::Refund { whole_at };
        fallback.apply_change(&request(5, Mode::Peek), refund, 1).unwrap();
        assert_eq!(reported(), 4 * units, "{policy}, {is_reported}");
    }
}

fn from_remaining(remaining: u64, until: u64) -> LastRemaining {
    LastRemaining {
        remaining,
        debt: 0,
        as_of: 0,
        until,
        decided_at: 5_000_000,
    }
}

#[test]
fn latest_reply_counts_until_it_expires() {
    let table = LastKnown::new(100);
    table.record(7, from_remaining(3, 1_000));
    table.record(7, from_remaining(2, 1_000));
    assert_eq!(table.get(7, 999), Some(from_remaining(2, 1_000)));
    assert_eq!(table.get(7, 1_000), None);
    let decided_at = |decided_at| LastRemaining {
        decided_at,
        ..from_remaining(9, 1_000)
    };
    table.record(7, decided_at(4_999_999));
    assert_eq!(table.get(7, 999), Some(from_remaining(2, 1_000)));
    table.record(7, decided_at(3_000_000));
    assert_eq!(
        table.get(7, 999),
        Some(decided_at(3_000_000)),
        "the clock stepped back"
    );
    table.forget(7);
    assert_eq!(table.get(7, 0), None);
}

#[test]
fn full_table_keeps_latest_entries() {
    let table = LastKnown::new(64 * SHARDS);
    let hasher = RandomState::new();
    let kept = |keys: std::ops::Range<u32>| {
        keys.filter(|key| table.get(hasher.hash_one(key), 0).is_some())
            .count()
    };
    for key in 0..100_000_u32 {
        table.record(hasher.hash_one(key), from_remaining(1, 1_000_000));
    }
    let count: usize = table
        .shards
        .iter()
        .map(|shard| shard.lock())
        .map(|shard| shard.young.len() + shard.old.len())
        .sum();
    assert!((32 * SHARDS..=64 * SHARDS).contains(&count), "{count}");
    assert_eq!(kept(99_000..100_000), 1_000);
    assert_eq!(kept(0..90_000), 0);
}
