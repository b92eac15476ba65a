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
use crate::policy::{Algorithm, CounterWindow, Funnel, TokenBucket};

/// Refunds up to `amount` of the usage and returns the outcome. The usage never becomes negative.
pub(crate) fn refund(algorithm: &Algorithm, state: &mut StepState, amount: u64, now: u64) -> StepOutcome {
    match algorithm {
        Algorithm::SlidingWindow(limit) => sliding_window::refund(limit, state, amount, now),
        Algorithm::CounterWindow(limit) => counter_window::refund(limit, state, amount, now),
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
            counter_window::still_counts(amount, remaining, *window)
        }
        Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_) if remaining == 0 => 0,
        Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_) => amount,
        // Concurrency permits are released only by their holder.
        Algorithm::Concurrency(_) => 0,
    }
}
