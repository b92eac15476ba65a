//! Conversion of a stored state at a proportional policy change: the usage remains the same
//! fraction of the quota.
//!
//! A state from before the change is evaluated at the time of the change under the previous policy;
//! its amounts are multiplied by the new quota divided by the old one; then it continues under the
//! new policy. All rounding is against the caller. A state from after the change is not modified,
//! so the conversion is idempotent: a converted state is stored with the time of the conversion.
//!
//! In any time T across the change, the larger quota at the faster rate bounds the admitted
//! permits. Proof: let L ≤ quota remain at the change, and the change divide T into T₁ and T₂. The
//! policies admit at most `quota + rate·T₁ − L` before the change and
//! `L·(new quota / quota) + new rate·T₂` after it, together at most
//! `max(quota, new quota) + max(rate, new rate)·T`.
//!
//! Tests: below (`larger_quota_and_faster_rate_bound_admission`), `tests/contract/inheritance.rs`,
//! `tests/differential.rs` (`stores_agree_on_conversions`).

use crate::algorithm::counter_window::WindowCounters;
use crate::algorithm::fixed_window::PeriodCount;
use crate::algorithm::ratio::{QuotaRatio, ScaleChange};
use crate::algorithm::{StepState, UsageCorrection, leased_level, missing_until};
use crate::policy::{Algorithm, Funnel, TokenBucket};

/// Converts a state that was stored before the change and returns true, or returns false. Must be
/// called after the change.
pub(crate) fn scale(scaling: &ScaleChange<'_>, state: &mut StepState, now: u64) -> bool {
    let ScaleChange { before, after, at } = *scaling;
    let ratio = QuotaRatio::from_algorithms(before, after);
    if now < at || state.is_expired(now) {
        return false;
    }
    state.expand_fast_form(before);
    let scaled = match (&*state, before, after) {
        (StepState::TokenBucket(_) | StepState::Funnel(_) | StepState::Leased(_), _, _) => {
            leased_level::scale(scaling, state, ratio, now)
        }
        (
            StepState::CounterWindow(counters),
            Algorithm::CounterWindow(before),
            Algorithm::CounterWindow(after),
        ) => (counters.at < at).then(|| {
            let scaled = counters.scaled(before, after, ratio, at);
            let scaled = scaled.map(|counters| WindowCounters { at: now, ..counters });
            scaled.map_or(StepState::Absent, StepState::CounterWindow)
        }),
        (StepState::FixedWindow(count), Algorithm::FixedWindow(before), Algorithm::FixedWindow(after)) => {
            (count.at < at).then(|| {
                let scaled = count.scaled(before, after, ratio, at);
                let scaled = scaled.map(|count| PeriodCount { at: now, ..count });
                scaled.map_or(StepState::Absent, StepState::FixedWindow)
            })
        }
        _ => None,
    };
    let Some(scaled) = scaled else { return false };
    *state = if scaled.is_expired(now) {
        StepState::Absent
    } else {
        scaled
    };
    true
}

/// Scales a refund or charge that belongs to usage from before the policy change. A refund is
/// limited to the usage that had not yet been refilled at the moment of the change, and refills at
/// the new rate. For windows whose periods have changed the refund is zero, because the remaining
/// usage is unknown.
pub(crate) fn scale_change(
    scaling: &ScaleChange<'_>,
    amount: u64,
    change: UsageCorrection,
) -> (u64, UsageCorrection) {
    let ScaleChange { before, after, at } = *scaling;
    let ratio = QuotaRatio::from_algorithms(before, after);
    let UsageCorrection::Refund { whole_at } = change else {
        return (ratio.up(amount), change);
    };
    let missing = ratio.down(missing_until(before, whole_at, amount, at));
    let whole_at = match (before, after) {
        (
            Algorithm::TokenBucket(TokenBucket { rate: old, .. })
            | Algorithm::Funnel(Funnel { rate: old, .. }),
            Algorithm::TokenBucket(TokenBucket { rate: new, .. })
            | Algorithm::Funnel(Funnel { rate: new, .. }),
        ) => {
            let (used, _) = old.accrue(whole_at.saturating_sub(at), 0);
            at.saturating_add(new.time_for(ratio.down(used), 0))
        }
        (Algorithm::CounterWindow(old), Algorithm::CounterWindow(new)) if old.window == new.window => {
            whole_at
        }
        (Algorithm::FixedWindow(old), Algorithm::FixedWindow(new))
            if (old.window, old.periods) == (new.window, new.periods) =>
        {
            whole_at
        }
        _ => return (0, change),
    };
    (missing, UsageCorrection::Refund { whole_at })
}

#[cfg(test)]
mod tests {
    use crate::algorithm::scale::*;
    use crate::algorithm::{Mode, change, step};
    use crate::policy::Policy;

    const NOW: u64 = 1_700_000_000_000_000;
    const SECOND: u64 = 1_000_000;

    fn scaled(before: &Policy, after: &Policy, state: &mut StepState, at: u64, now: u64) -> bool {
        let scaling = ScaleChange {
            before: before.algorithm(),
            after: after.algorithm(),
            at,
        };
        scale(&scaling, state, now)
    }

    fn bucket(capacity: u64, rate: &str) -> Policy {
        Policy::token_bucket("p")
            .capacity(capacity)
            .rate(rate)
            .build()
            .unwrap()
    }

    fn funnel(capacity: u64, rate: &str) -> Policy {
        Policy::funnel("p").capacity(capacity).rate(rate).build().unwrap()
    }

    fn remaining(policy: &Policy, state: &StepState, now: u64) -> u64 {
        step(policy.algorithm(), &mut state.clone(), 0, now, Mode::Peek).remaining
    }

    #[test]
    fn half_full_level_stays_half_full_at_new_rate() {
        for (small, large) in [
            (bucket(10, "1/s"), bucket(100, "10/s")),
            (funnel(10, "1/s"), funnel(100, "10/s")),
        ] {
            let mut state = StepState::Absent;
            step(small.algorithm(), &mut state, 7_000, NOW, Mode::Charge);
            // Two seconds under the first policy, then one second under the second.
            let (at, now) = (NOW + 2 * SECOND, NOW + 3 * SECOND);
            assert!(scaled(&small, &large, &mut state, at, now));
            assert_eq!(remaining(&large, &state, now), 60_000, "{large}");
            assert!(
                !scaled(&small, &large, &mut state, at, now + 1),
                "a second conversion changes nothing"
            );
            // The reverse change.
            let (at, now) = (now + 1, now + 1 + SECOND);
            assert!(scaled(&large, &small, &mut state, at, now));
            assert_eq!(remaining(&small, &state, now), 7_000, "{small}");
        }
    }

    #[test]
    fn debt_keeps_its_fraction_of_quota() {
        let (large, small) = (bucket(100, "1/s"), bucket(10, "1/s"));
        let mut state = StepState::Absent;
        change(
            large.algorithm(),
            &mut state,
            150_000,
            UsageCorrection::ForceCharge,
            NOW,
        );
        assert!(scaled(&large, &small, &mut state, NOW + 1, NOW + 1));
        let denied = step(small.algorithm(), &mut state, 1_000, NOW + 1, Mode::Charge);
        assert_eq!(denied.retry_after, 6 * SECOND);
    }

    #[test]
    fn usage_of_window_is_rounded_up() {
        let counted = |limit: u64| {
            Policy::counter_window("p")
                .limit(limit)
                .window("10s")
                .build()
                .unwrap()
        };
        let fixed = |limit: u64| {
            Policy::fixed_window("p")
                .limit(limit)
                .window("10s")
                .build()
                .unwrap()
        };
        for (large, small) in [(counted(100), counted(10)), (fixed(100), fixed(10))] {
            let mut state = StepState::Absent;
            step(large.algorithm(), &mut state, 41, NOW, Mode::Charge);
            assert!(scaled(&large, &small, &mut state, NOW + 1, NOW + SECOND));
            assert_eq!(remaining(&small, &state, NOW + SECOND), 5, "{small}");
            assert!(!scaled(&large, &small, &mut state, NOW + 1, NOW + SECOND));
            assert!(!scaled(
                &large,
                &small,
                &mut StepState::Absent,
                NOW + 1,
                NOW + SECOND
            ));
        }
    }

    /// The charges before the change plus all permits after it.
    #[test]
    fn larger_quota_and_faster_rate_bound_admission() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..4_000 {
            let mut quota = || random.u64(1..60);
            let (one, other) = (quota(), quota());
            let rates = [random.u64(1..9), random.u64(1..9)];
            let [old, new] = [(one, rates[0]), (other, rates[1])].map(|(quota, rate)| match round % 2 {
                0 => bucket(quota, &format!("{rate}/s")),
                _ => funnel(quota, &format!("{rate}/s")),
            });
            let (mut state, mut now, mut admitted) = (StepState::Absent, NOW, 0);
            let at = NOW + random.u64(1..3 * SECOND);
            let end = NOW + 6 * SECOND;
            while now < end {
                let policy = if now < at { &old } else { &new };
                scaled(&old, &new, &mut state, at, now);
                let cost = 1_000 * random.u64(1..8);
                if cost <= policy.algorithm().quota()
                    && step(policy.algorithm(), &mut state, cost, now, Mode::Charge).fits
                {
                    admitted += cost;
                }
                now += random.u64(1..SECOND / 2);
            }
            let max = 1_000 * (one.max(other) + 6 * rates[0].max(rates[1]));
            assert!(
                admitted <= max,
                "{seed}: {round}, {admitted} of {max}, {old} then {new}"
            );
        }
    }
}
