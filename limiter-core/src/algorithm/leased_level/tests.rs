//! Random histories of holders who borrow, spend, report, lose what they were told, and vanish.

mod holders;

use fastrand::Rng;

use crate::algorithm;
use crate::algorithm::leased_level::tests::holders::{Held, Holder};
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

/// The server's clock, and the time that really passes.
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

/// A state after some random operations of one policy, and the moment.
fn some_state(rng: &mut Rng, algorithm: &Algorithm, capacity: u64) -> (StepState, u64) {
    let mut state = StepState::Absent;
    let mut time = Time { now: NOW, passed: 0 };
    let mut holder = Holder::default();
    for _ in 0..rng.u8(1..12) {
        time.pass(rng, true);
        let ask = LeaseRequest {
            cost: if rng.bool() { 0 } else { rng.u64(0..=capacity) },
            want: rng.u64(0..=capacity),
            epoch: rng.u64(1..2_000_000),
            report: holder.report(rng, 0),
        };
        let (_, loan) = algorithm::grant_lease(algorithm, &mut state, &ask, time.now);
        if loan.amount > 0 {
            holder.0.push(Held {
                limit: 0,
                epoch: loan.epoch,
                left: loan.amount,
                spent: rng.u64(0..=loan.amount),
                until: 0,
            });
        }
    }
    // A state ahead of the clock is mended by whoever asks.
    algorithm::step(algorithm, &mut state, capacity, time.now, Mode::Refuse);
    (state, time.now)
}

#[test]
fn an_advertised_wait_is_exact_while_something_is_lent() {
    let mut waits = 0;
    each(fastrand::u64(..), 2_000, |rng| {
        let funnel = rng.bool();
        let (algorithm, capacity, _) = limit(rng, funnel);
        let (state, now) = some_state(rng, &algorithm, capacity);
        let cost = rng.u64(1..=capacity);
        let ask = |now| algorithm::step(&algorithm, &mut state.clone(), cost, now, Mode::Peek);
        let outcome = ask(now);
        if !outcome.fits {
            waits += 1;
            assert_eq!(
                ask(now + outcome.retry_after - 1).retry_after,
                1,
                "{state:?} {cost}"
            );
            assert!(ask(now + outcome.retry_after).fits, "{state:?} {cost}");
        }
        // When the state goes, and not before, everything is back.
        if outcome.reset_after > 0 {
            let all = |now| algorithm::step(&algorithm, &mut state.clone(), capacity, now, Mode::Peek);
            assert!(all(now + outcome.reset_after).fits);
            assert!(!all(now + outcome.reset_after - 1).fits);
            assert!(all(now + outcome.reset_after - 1).expires_after > 0);
            // Loans that were reported before their end may keep it for longer than it need be, but
            // not for ever.
            let longer = outcome.expires_after - outcome.reset_after;
            assert!(longer < 4_100_000, "{longer}: {state:?}");
        }
    });
    assert!(waits > 100, "{waits}");
}

/// A denial says when all is lent, a crash costs what was lent until the loans end, and then all
/// comes back.
#[test]
fn what_a_holder_takes_to_its_grave_begins_to_come_back_when_its_loan_ends() {
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
        let ask = LeaseRequest {
            want: 8_000,
            epoch: 500_000,
            ..LeaseRequest::default()
        };
        let (outcome, loan) = algorithm::grant_lease(&algorithm, &mut state, &ask, NOW);
        assert_eq!(
            (loan.amount, loan.life),
            (5_000, 1_000_000),
            "half of what is left"
        );
        assert_eq!((outcome.remaining, outcome.reset_after), (5_000, 6_000_000));
        let later = algorithm::step(&algorithm, &mut state, 6_000, NOW + 300_000, Mode::Charge);
        assert!(!later.fits);
        assert_eq!(
            later.retry_after,
            700_000 + 1_000_000,
            "nothing comes on top while it is lent"
        );
        let (_, second) = algorithm::grant_lease(&algorithm, &mut state, &ask, NOW + 600_000);
        assert_eq!(second.epoch, loan.epoch.wrapping_add(1));
        assert_eq!((second.amount, second.life), (2_000, 900_000));
        // Given back, it is there at once.
        let report = UsageReport {
            epoch: second.epoch,
            spent: 500,
            returned: 1_500,
        };
        let ask = LeaseRequest {
            epoch: 1,
            report,
            ..LeaseRequest::default()
        };
        let (outcome, _) = algorithm::grant_lease(&algorithm, &mut state, &ask, NOW + 600_000);
        assert_eq!(outcome.remaining, 4_500);
        // A report of what has ended says nothing.
        let late = NOW + 5_000_000;
        let before = algorithm::step(&algorithm, &mut state.clone(), 0, late, Mode::Peek);
        let (after, _) = algorithm::grant_lease(&algorithm, &mut state, &ask, late);
        assert_eq!(before.remaining, after.remaining);
    }
}

/// Of two policies that take turns, neither of which ever leaves the key alone.
#[test]
fn a_longer_lease_is_taken_up_while_the_key_stays_busy() {
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
        let mut lend = |epoch, at| {
            let ask = LeaseRequest {
                want: 1_000,
                epoch,
                ..LeaseRequest::default()
            };
            algorithm::grant_lease(&algorithm, &mut state, &ask, NOW + at).1
        };
        assert_eq!(lend(100_000, 0).life, 200_000);
        assert_eq!(
            lend(300_000, 99_999).life,
            100_001,
            "something is lent in this epoch already"
        );
        let longer = lend(300_000, 110_000);
        assert_eq!(longer.life, 590_000, "counted from when the epoch began");
        assert_eq!(lend(100_000, 120_000).life, 580_000, "a shorter one waits");
        assert_eq!(lend(300_000, 410_000).life, 590_000);
    }
}

#[test]
fn with_nothing_lent_a_step_is_an_ordinary_one() {
    each(fastrand::u64(..), 3_000, |rng| {
        let funnel = rng.bool();
        let limits: Vec<_> = (0..2).map(|_| limit(rng, funnel)).collect();
        let (mut plain, mut lent) = (StepState::Absent, StepState::Absent);
        let mut time = Time { now: NOW, passed: 0 };
        for _ in 0..30 {
            time.pass(rng, true);
            let (algorithm, capacity, _) = &limits[rng.usize(0..2)];
            let cost = rng.u64(1..=*capacity);
            let mode = if rng.bool() { Mode::Charge } else { Mode::Refuse };
            let ordinary = algorithm::step(algorithm, &mut plain, cost, time.now, mode);
            assert_eq!(ordinary, step(algorithm, &mut lent, cost, time.now, mode));
        }
    });
}

#[test]
fn a_refund_returns_what_was_used_and_no_more() {
    each(fastrand::u64(..), 2_000, |rng| {
        let funnel = rng.bool();
        let (algorithm, capacity, _) = limit(rng, funnel);
        let (mut state, now) = some_state(rng, &algorithm, capacity);
        let look = |state: &StepState| algorithm::step(&algorithm, &mut state.clone(), 0, now, Mode::Peek);
        let before = look(&state);
        let lent = lent_at(&algorithm, &state, now);
        let amount = rng.u64(0..=capacity * 2);
        let after = algorithm::refund(&algorithm, &mut state, amount, now);
        let most = capacity.saturating_sub(lent);
        assert_eq!(after.remaining, most.min(before.remaining + amount));
        assert!(after.expires_after <= before.expires_after.max(after.reset_after));
    });
}
