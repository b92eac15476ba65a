//! Unconditional charges and refunds of windows with counters.
//!
//! Tests: `debt_is_repaid_before_any_cost_fits`,
//! `forced_charge_creates_state_and_zero_charge_does_not`,
//! `refund_increases_remaining_by_its_amount`, `month_admits_its_limit_once`.

use crate::algorithm::*;
use crate::policy::Policy;

const NOW: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;

fn policies() -> [Policy; 2] {
    [
        Policy::counter_window("c").limit(10).window("10s").build(),
        Policy::fixed_window("f").limit(10).window("10s").build(),
    ]
    .map(Result::unwrap)
}

#[test]
fn debt_is_repaid_before_any_cost_fits() {
    for (policy, waits) in policies().iter().zip([12, 10]) {
        let algorithm = policy.algorithm();
        let mut state = StepState::Absent;
        assert!(step(algorithm, &mut state, 8, NOW, Mode::Charge).fits);
        force_charge(algorithm, &mut state, 4, NOW);
        let denied = step(algorithm, &mut state, 1, NOW, Mode::Charge);
        assert!(!denied.fits && denied.remaining == 0, "{policy}");
        // 2.5 of the 12 permits of the counter window have to expire in its second period.
        let wait = denied.retry_after;
        assert!(
            (waits * SECOND..(waits + 1) * SECOND).contains(&wait),
            "{policy}: {wait}"
        );
        let early = step(algorithm, &mut state, 1, NOW + wait - 1, Mode::Peek);
        assert_eq!((early.fits, early.retry_after), (false, 1), "{policy}");
        assert!(
            step(algorithm, &mut state, 1, NOW + wait, Mode::Charge).fits,
            "{policy}"
        );
        force_charge(algorithm, &mut state, u64::MAX, NOW + wait);
        assert!(
            !step(algorithm, &mut state, 1, NOW + wait, Mode::Peek).fits,
            "{policy}"
        );
        assert!(state.is_expired(NOW + wait + 2 * 10 * SECOND), "{policy}");
    }
}

#[test]
fn forced_charge_creates_state_and_zero_charge_does_not() {
    for policy in policies() {
        let algorithm = policy.algorithm();
        let mut state = StepState::Absent;
        force_charge(algorithm, &mut state, 0, NOW);
        assert!(matches!(state, StepState::Absent));
        force_charge(algorithm, &mut state, 12, NOW);
        assert_eq!(refund(algorithm, &mut state, 3, NOW).remaining, 1, "{policy}");
        assert_eq!(refund(algorithm, &mut state, 100, NOW).remaining, 10, "{policy}");
        assert!(state.is_expired(NOW), "{policy}");
    }
}

/// At any time a refund increases the remaining permits by its amount, up to the usage.
#[test]
fn refund_increases_remaining_by_its_amount() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..2_000 {
        let policies = policies();
        let algorithm = policies[round % 2].algorithm();
        let (mut state, mut now) = (StepState::Absent, NOW);
        for _ in 0..20 {
            now += random.u64(..6 * SECOND);
            step(algorithm, &mut state, random.u64(..8), now, Mode::Charge);
            if random.u8(..3) == 0 {
                let before = step(algorithm, &mut state, 0, now, Mode::Peek);
                let amount = random.u64(..12);
                let after = refund(algorithm, &mut state, amount, now);
                let expected = (before.remaining + amount).min(10);
                assert_eq!(after.remaining, expected, "seed {seed}: {algorithm:?}");
                assert!(
                    after.reset_after <= before.reset_after,
                    "seed {seed}: {algorithm:?}"
                );
                assert_eq!(
                    after.reset_after == 0,
                    expected == 10,
                    "seed {seed}: {algorithm:?}"
                );
            }
        }
    }
}

/// Months have different lengths over several years.
#[test]
fn month_admits_its_limit_once() {
    let policy = Policy::fixed_window("m")
        .limit(2)
        .window("month")
        .aligned("-05:30");
    let policy = policy.build().unwrap();
    let (mut state, mut now) = (StepState::Absent, NOW);
    for _ in 0..30 {
        let first = step(policy.algorithm(), &mut state, 2, now, Mode::Charge);
        assert!(first.fits && first.reset_after <= 31 * 86_400 * SECOND);
        let wait = step(policy.algorithm(), &mut state, 1, now, Mode::Charge).retry_after;
        assert_eq!(wait, first.reset_after);
        now += wait - 1;
        assert!(!step(policy.algorithm(), &mut state, 1, now, Mode::Charge).fits);
        now += 1;
    }
}
