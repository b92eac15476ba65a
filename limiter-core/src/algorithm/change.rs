//! Corrections of the usage outside of a decision: refunds and unconditional charges.
//!
//! The cost of a call may be known only after its decision. A correction changes the state of one
//! limit at the present time and returns the outcome of a peek. A refund names the time at which
//! the usage at the decision is fully refilled, so that permits that were refilled in the meantime
//! are not refunded again.
//!
//! Invariant: the usage never becomes negative. Tests: `leased_level/tests.rs`,
//! `tests/contract/refunds.rs`, and the differential test
//! `redis/token_lease/leased_limit/tests.rs`.

use crate::algorithm::{Mode, StepOutcome, StepState, counter_window, fixed_window, sliding_window, step};
use crate::policy::{Algorithm, CounterWindow, FixedWindow, Funnel, Rate, SlidingWindow, TokenBucket};

/// Refunds up to `amount` of the usage and returns the outcome. The usage never becomes negative.
pub(crate) fn refund(algorithm: &Algorithm, state: &mut StepState, amount: u64, now: u64) -> StepOutcome {
    match algorithm {
        Algorithm::SlidingWindow(limit) => sliding_window::refund(limit, state, amount, now),
        Algorithm::CounterWindow(_) => counter_window::refund(state, amount, now),
        Algorithm::FixedWindow(limit) => fixed_window::refund(limit, state, amount, now),
        _ => {
            state.expand_fast_form(algorithm);
            crate::algorithm::leased_level::refund(algorithm, state, amount, now);
        }
    }
    step(algorithm, state, 0, now, Mode::Peek)
}

/// Charges an amount unconditionally and returns the outcome. The part above the remaining permits
/// is a debt: no cost fits until it is refilled.
pub(crate) fn force_charge(
    algorithm: &Algorithm,
    state: &mut StepState,
    amount: u64,
    now: u64,
) -> StepOutcome {
    match algorithm {
        Algorithm::SlidingWindow(limit) => sliding_window::force_charge(limit, state, amount, now),
        Algorithm::CounterWindow(limit) => counter_window::force_charge(limit, state, amount, now),
        Algorithm::FixedWindow(limit) => fixed_window::force_charge(limit, state, amount, now),
        _ => {
            state.expand_fast_form(algorithm);
            crate::algorithm::leased_level::force_charge(algorithm, state, amount, now);
        }
    }
    step(algorithm, state, 0, now, Mode::Peek)
}

/// A correction of the usage outside of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageCorrection {
    /// Reduces the usage, to zero at most.
    Refund {
        /// Time at which the usage at the decision is fully refilled if no other call is made; 0 if
        /// unknown. Permits that were refilled since the decision are not refunded again.
        whole_at: u64,
    },
    /// Charges unconditionally.
    ForceCharge,
}

/// The usage of a limit at a decision that is refunded later. Times are microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastUsage {
    pub(crate) decided_at: u64,
    /// Time at which it is fully refilled under the policy of the decision.
    pub(crate) whole_at: u64,
}

impl PastUsage {
    /// Returns the time at which the usage is fully refilled under a policy that replaced the one
    /// of the decision and kept the usage. The time of the change is unknown, so the earliest
    /// time is returned: a refund creates no permits. `None` if the policy of the decision
    /// computes the refund, because no other one refills the usage earlier.
    pub(crate) fn whole_under(self, before: &Algorithm, after: &Algorithm) -> Option<u64> {
        match (before, after) {
            // A bucket keeps its tokens, so a smaller capacity reduces its usage.
            (Algorithm::TokenBucket(old), Algorithm::TokenBucket(new)) => {
                let less = old.capacity.saturating_sub(new.capacity);
                Some(self.refilled_at(&old.rate, &new.rate, less))
            }
            (Algorithm::Funnel(old), Algorithm::Funnel(new)) => {
                Some(self.refilled_at(&old.rate, &new.rate, 0))
            }
            // The times of the permits are stored.
            (
                Algorithm::SlidingWindow(SlidingWindow { window: old, .. }),
                Algorithm::SlidingWindow(SlidingWindow { window: new, .. }),
            ) if new < old => Some(self.whole_at.saturating_sub(old - new)),
            (
                Algorithm::CounterWindow(CounterWindow { window: old, .. }),
                Algorithm::CounterWindow(CounterWindow { window: new, .. }),
            )
            | (
                Algorithm::FixedWindow(FixedWindow { window: old, .. }),
                Algorithm::FixedWindow(FixedWindow { window: new, .. }),
            ) if new < old => Some(self.whole_at.min(self.decided_at.saturating_add(*new))),
            _ => None,
        }
    }

    /// Returns the time at which a level is refilled at the faster rate, if its usage is less by
    /// this amount.
    fn refilled_at(self, old: &Rate, new: &Rate, less: u64) -> u64 {
        let Self { decided_at, whole_at } = self;
        let at_old_rate = whole_at.saturating_sub(old.time_for(less, 0));
        if old == new {
            return at_old_rate;
        }
        let (used, _) = old.accrue(whole_at.saturating_sub(decided_at), 0);
        let at_new_rate = decided_at.saturating_add(new.time_for(used.saturating_sub(less), 0));
        at_old_rate.min(at_new_rate)
    }
}

/// Applies a correction and returns the outcome.
pub(crate) fn change(
    algorithm: &Algorithm,
    state: &mut StepState,
    amount: u64,
    change: UsageCorrection,
    now: u64,
) -> StepOutcome {
    match change {
        UsageCorrection::Refund { whole_at: 0 } => refund(algorithm, state, amount, now),
        UsageCorrection::Refund { whole_at } => {
            // If the usage is refilled by `whole_at`, no later call used permits, and the refund is
            // exact. Otherwise the missing amount is rounded down, by less than a thousandth.
            let is_level = matches!(algorithm, Algorithm::TokenBucket(_) | Algorithm::Funnel(_));
            let has_no_later_usage = is_level
                && step(algorithm, state, 0, now, Mode::Peek).reset_after <= whole_at.saturating_sub(now);
            let missing = match has_no_later_usage {
                true => amount,
                false => missing_until(algorithm, whole_at, amount, now),
            };
            refund(algorithm, state, missing, now)
        }
        UsageCorrection::ForceCharge => force_charge(algorithm, state, amount, now),
    }
}

/// Returns the part of an amount that is not yet refilled if its limit is full again at `whole_at`.
/// Permits of a window expire together, levels refill at their rate, and permits of two counters
/// lose weight in their last window.
pub(crate) fn missing_until(algorithm: &Algorithm, whole_at: u64, amount: u64, now: u64) -> u64 {
    let remaining = whole_at.saturating_sub(now);
    match algorithm {
        Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
            rate.accrue(remaining, 0).0.min(amount)
        }
        Algorithm::CounterWindow(CounterWindow { window, .. }) => {
            counter_window::weighted(amount, remaining, *window)
        }
        Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_) if remaining == 0 => 0,
        Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_) => amount,
        // Concurrency permits are released only by their holder.
        Algorithm::Concurrency(_) => 0,
    }
}
