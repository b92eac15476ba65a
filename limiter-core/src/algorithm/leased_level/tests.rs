//! Random histories of holders that lease tokens, spend them, report, lose replies, and disappear.

mod holders;

use fastrand::Rng;

use crate::algorithm;
use crate::algorithm::leased_level::tests::holders::{HeldLease, Holder};
use crate::algorithm::leased_level::*;
use crate::policy::{Funnel, Rate, TokenBucket};

const NOW: u64 = 1_700_000_000_000_000;

#[expect(clippy::print_stdout, reason = "the seed repeats a failed run")]
fn each(seed: u64, rounds: u64, mut play: impl FnMut(&mut Rng)) {
    println!("seed {seed}");
    for round in 0..rounds {
        play(&mut Rng::with_seed(
            seed ^ round.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        ));
    }
}

fn limit(rng: &mut Rng, funnel: bool) -> (Algorithm, u64, Rate) {
    let capacity = match rng.u8(0..4) {
        0 => rng.u64(1..3_000),
        _ => rng.u64(1..40) * 1_000,
    };
    let rate = match rng.u8(0..4) {
        0 => "7/3s".parse().unwrap(),
        1 => Rate::per(
            rng.u32(1..9),
            std::time::Duration::from_micros(rng.u64(1..3_000_000)),
        )
        .unwrap(),
        _ => Rate::per_second(rng.u32(1..40)).unwrap(),
    };
    let algorithm = if funnel {
        Algorithm::Funnel(Funnel {
            capacity,
            rate,
            paced: false,
        })
    } else {
        Algorithm::TokenBucket(TokenBucket { capacity, rate })
    };
    (algorithm, capacity, rate)
}

/// The server's clock and monotonic time.
#[derive(Clone, Copy)]
struct Time {
    now: u64,
    passed: u64,
}

impl Time {
    fn pass(&mut self, rng: &mut Rng, steps_back: bool) {
        let span = match rng.u8(0..6) {
            0 | 1 => 0,
            2 => rng.u64(1..50),
            3 | 4 => rng.u64(1..300_000),
            _ => rng.u64(1..3_000_000),
        };
        self.now += span;
        self.passed += span;
        if steps_back && rng.u8(0..15) == 0 {
            self.now -= rng.u64(1..2_000_000);
        }
    }
}

/// Returns a state after random operations under one policy, and the time.
fn some_state(rng: &mut Rng, algorithm: &Algorithm, capacity: u64) -> (StepState, u64) {
    let mut state = StepState::Absent;
    let mut time = Time { now: NOW, passed: 0 };
    let mut holder = Holder::default();
    for _ in 0..rng.u8(1..12) {
        time.pass(rng, true);
        let request = LeaseRequest {
            cost: if rng.bool() { 0 } else { rng.u64(0..=capacity) },
            want: rng.u64(0..=capacity),
            epoch: rng.u64(1..2_000_000),
            report: holder.report(rng, 0),
        };
        let (_, loan) = algorithm::grant_lease(algorithm, &mut state, &request, time.now);
        if loan.amount > 0 {
            holder.0.push(HeldLease {
                limit: 0,
                epoch: loan.epoch,
                left: loan.amount,
                spent: rng.u64(0..=loan.amount),
                until: 0,
            });
        }
    }
    if let (StepState::Leased(leased), true) = (&mut state, rng.bool()) {
        leased.loans.steady = [rng.u32(0..600_000), rng.u32(0..600_000)];
        leased.loans.fraction = rng.u32(0..1_000_000);
    }
    // The step repairs a state ahead of the clock.
    algorithm::step(algorithm, &mut state, capacity, time.now, Mode::Refuse);
    (state, time.now)
}

#[test]
fn retry_after_is_exact_with_leased_tokens() {
    let mut waits = 0;
    each(fastrand::u64(..), 2_000, |rng| {
        let funnel = rng.bool();
        let (algorithm, capacity, _) = limit(rng, funnel);
        let (state, now) = some_state(rng, &algorithm, capacity);
        let cost = rng.u64(1..=capacity);
        let request = |now| algorithm::step(&algorithm, &mut state.clone(), cost, now, Mode::Peek);
        let outcome = request(now);
        if !outcome.fits {
            waits += 1;
            assert_eq!(
                request(now + outcome.retry_after - 1).retry_after,
                1,
                "{state:?} {cost}"
            );
            assert!(request(now + outcome.retry_after).fits, "{state:?} {cost}");
        }
        // When the state expires, and not earlier, all permits are available.
        if outcome.reset_after > 0 {
            let all = |now| algorithm::step(&algorithm, &mut state.clone(), capacity, now, Mode::Peek);
            assert!(all(now + outcome.reset_after).fits);
            assert!(!all(now + outcome.reset_after - 1).fits);
            assert!(all(now + outcome.reset_after - 1).expires_after > 0);
            // Leases that were reported early may extend the state, but only for a bounded time.
            let longer = outcome.expires_after - outcome.reset_after;
            assert!(longer < 4_100_000, "{longer}: {state:?}");
        }
    });
    assert!(waits > 100, "{waits}");
}

/// A denial reports when all tokens are leased; a crash costs the leased tokens until the leases
/// end, and then all are refilled.
#[test]
fn tokens_of_crashed_holder_are_refilled_after_lease() {
    let rate = Rate::per_second(1).unwrap();
    for algorithm in [
        Algorithm::TokenBucket(TokenBucket {
            capacity: 10_000,
            rate,
        }),
        Algorithm::Funnel(Funnel {
            paced: false,
            capacity: 10_000,
            rate,
        }),
    ] {
        let mut state = StepState::Absent;
        let request = LeaseRequest {
            want: 8_000,
            epoch: 500_000,
            ..LeaseRequest::default()
        };
        let (outcome, loan) = algorithm::grant_lease(&algorithm, &mut state, &request, NOW);
        assert_eq!(
            (loan.amount, loan.life),
            (5_000, 1_000_000),
            "half of the remaining tokens"
        );
        assert_eq!((outcome.remaining, outcome.reset_after), (5_000, 6_000_000));
        let later = algorithm::step(&algorithm, &mut state, 6_000, NOW + 300_000, Mode::Charge);
        assert!(!later.fits);
        assert_eq!(
            later.retry_after,
            700_000 + 1_000_000,
            "leased tokens reduce the capacity"
        );
        let (_, second) = algorithm::grant_lease(&algorithm, &mut state, &request, NOW + 600_000);
        assert_eq!(second.epoch, loan.epoch.wrapping_add(1));
        assert_eq!((second.amount, second.life), (2_000, 900_000));
        // Returned tokens are available at once.
        let report = UsageReport {
            epoch: second.epoch,
            spent: 500,
            returned: 1_500,
        };
        let request = LeaseRequest {
            epoch: 1,
            report,
            ..LeaseRequest::default()
        };
        let (outcome, _) = algorithm::grant_lease(&algorithm, &mut state, &request, NOW + 600_000);
        assert_eq!(outcome.remaining, 4_500);
        // A report of an ended epoch is ignored.
        let late = NOW + 5_000_000;
        let before = algorithm::step(&algorithm, &mut state.clone(), 0, late, Mode::Peek);
        let (after, _) = algorithm::grant_lease(&algorithm, &mut state, &request, late);
        assert_eq!(before.remaining, after.remaining);
    }
}

/// The life of a state contains the end of its leases. A report ends the lease earlier.
#[test]
fn report_shortens_life_of_state() {
    let rate = Rate::per_second(1).unwrap();
    let bucket = TokenBucket {
        capacity: 10_000,
        rate,
    };
    let funnel = Funnel {
        paced: false,
        capacity: 10_000,
        rate,
    };
    for algorithm in [Algorithm::TokenBucket(bucket), Algorithm::Funnel(funnel)] {
        let mut state = StepState::Absent;
        let request = LeaseRequest {
            want: 5_000,
            epoch: 5_000_000,
            ..LeaseRequest::default()
        };
        let (_, loan) = algorithm::grant_lease(&algorithm, &mut state, &request, NOW);
        let request = LeaseRequest {
            epoch: 1,
            report: UsageReport {
                epoch: loan.epoch,
                spent: loan.amount,
                returned: 0,
            },
            ..LeaseRequest::default()
        };
        let (outcome, _) = algorithm::grant_lease(&algorithm, &mut state, &request, NOW + 200_000);
        assert_eq!(outcome.reset_after, 5_000_000);
        assert_eq!(outcome.expires_after, 5_000_000);
    }
}

/// Two policies alternate, and the key is never idle.
#[test]
fn longer_lease_applies_while_key_is_busy() {
    let rate = Rate::per_second(1).unwrap();
    let limits = [
        Algorithm::TokenBucket(TokenBucket {
            capacity: 1_000_000,
            rate,
        }),
        Algorithm::Funnel(Funnel {
            paced: false,
            capacity: 1_000_000,
            rate,
        }),
    ];
    for algorithm in limits {
        let mut state = StepState::Absent;
        let mut lease = |epoch, at| {
            let request = LeaseRequest {
                want: 1_000,
                epoch,
                ..LeaseRequest::default()
            };
            algorithm::grant_lease(&algorithm, &mut state, &request, NOW + at).1
        };
        assert_eq!(lease(100_000, 0).life, 200_000);
        assert_eq!(
            lease(300_000, 99_999).life,
            100_001,
            "the current epoch has leased tokens"
        );
        let longer = lease(300_000, 110_000);
        assert_eq!(longer.life, 590_000, "counted from the start of the epoch");
        assert_eq!(
            lease(100_000, 120_000).life,
            580_000,
            "a shorter lease does not apply yet"
        );
        assert_eq!(lease(300_000, 410_000).life, 590_000);
    }
}

#[test]
fn step_without_leases_equals_plain_step() {
    each(fastrand::u64(..), 3_000, |rng| {
        let funnel = rng.bool();
        let limits: Vec<_> = (0..2).map(|_| limit(rng, funnel)).collect();
        let (mut plain, mut leased) = (StepState::Absent, StepState::Absent);
        let mut time = Time { now: NOW, passed: 0 };
        for _ in 0..30 {
            time.pass(rng, true);
            let (algorithm, capacity, _) = &limits[rng.usize(0..2)];
            let cost = rng.u64(1..=*capacity);
            let mode = if rng.bool() { Mode::Charge } else { Mode::Refuse };
            let ordinary = algorithm::step(algorithm, &mut plain, cost, time.now, mode);
            assert_eq!(ordinary, step(algorithm, &mut leased, cost, time.now, mode));
        }
    });
}

#[test]
fn refund_is_limited_to_usage() {
    each(fastrand::u64(..), 2_000, |rng| {
        let funnel = rng.bool();
        let (algorithm, capacity, _) = limit(rng, funnel);
        let (mut state, now) = some_state(rng, &algorithm, capacity);
        let peek = |state: &StepState| algorithm::step(&algorithm, &mut state.clone(), 0, now, Mode::Peek);
        let before = peek(&state);
        let leased = leased_at(&algorithm, &state, now);
        let amount = rng.u64(0..=capacity * 2);
        let after = algorithm::refund(&algorithm, &mut state, amount, now);
        let max = capacity.saturating_sub(leased);
        assert_eq!(after.remaining, max.min(before.remaining + amount));
        assert!(after.expires_after <= before.expires_after.max(after.reset_after));
    });
}

/// A reservation that is cancelled leaves a full limit, at each time and each rate.
#[test]
fn refund_without_later_usage_leaves_a_full_limit() {
    each(fastrand::u64(..), 2_000, |rng| {
        let funnel = rng.bool();
        let (algorithm, capacity, rate) = limit(rng, funnel);
        let mut state = StepState::Absent;
        let cost = rng.u64(1..=capacity);
        let charged = algorithm::step(&algorithm, &mut state, cost, NOW, Mode::Charge);
        let whole_at = NOW + charged.reset_after;
        let now = NOW + rng.u64(0..=rate.time_for(cost, 0));
        let refund = algorithm::UsageCorrection::Refund { whole_at };
        let after = algorithm::change(&algorithm, &mut state, cost, refund, now);
        assert_eq!(
            (after.remaining, after.reset_after),
            (capacity, 0),
            "{algorithm:?} {cost}"
        );
    });
}

/// Permits that were refilled since the decision are not refunded again.
#[test]
fn refund_beside_other_usage_gives_at_most_the_missing_amount() {
    each(fastrand::u64(..), 2_000, |rng| {
        let funnel = rng.bool();
        let (algorithm, capacity, rate) = limit(rng, funnel);
        let (mut state, mut without) = (StepState::Absent, StepState::Absent);
        let cost = rng.u64(1..=capacity);
        let charged = algorithm::step(&algorithm, &mut state, cost, NOW, Mode::Charge);
        let whole_at = NOW + charged.reset_after;
        let later = NOW + rng.u64(0..=charged.reset_after);
        let other = rng.u64(1..=capacity);
        // A call that is admitted beside the reservation is also admitted without it.
        if algorithm::step(&algorithm, &mut state, other, later, Mode::Charge).fits {
            algorithm::step(&algorithm, &mut without, other, later, Mode::Charge);
        }
        let now = later + rng.u64(0..=charged.reset_after);
        let refund = algorithm::UsageCorrection::Refund { whole_at };
        let after = algorithm::change(&algorithm, &mut state, cost, refund, now);
        let most = algorithm::step(&algorithm, &mut without, 0, now, Mode::Peek).remaining;
        // Times are whole microseconds.
        let rounding = rate.accrue(1, 0).0 + 1;
        assert!(after.remaining <= most + rounding, "{algorithm:?} {cost} {other}");
    });
}
