//! The share of one replica in a limit, reduced by the usage in the store's last reply.
//!
//! Redis may have admitted all permits before an outage, so a full share would admit too many. The
//! state of a level is charged down to its part of the store's remaining permits before each
//! decision. For a window, the applied share is smaller until the store's usage no longer counts.
//!
//! Invariant: the last reply of the store never enlarges the share. Tests:
//! `local_fallback/tests.rs`, `local_fallback/bound_tests.rs`, `tests/local_fallback.rs`.

use std::time::Duration;

use crate::algorithm::{Mode, StepOutcome, StepState, force_charge, step};
use crate::policy::{Algorithm, CounterWindow};
use crate::redis::local_fallback::LastRemaining;
use crate::units::micros_ceil;

/// `retry_after` of a cost above the share: the store may be available again by then.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The share of one replica in one limit.
#[derive(Debug)]
pub(crate) struct RemainingShare {
    /// The applied share; for a window, without the usage of other replicas.
    pub(crate) applied: Algorithm,
    /// The full share.
    pub(crate) whole: Algorithm,
    /// The store's remaining permits, while any of its usage counts.
    pub(crate) left: Option<LastRemaining>,
}

impl RemainingShare {
    /// Returns whether a cost exceeds the applied share, permanently or until the store's usage no
    /// longer counts.
    pub(crate) fn is_below(&self, cost: u64) -> bool {
        cost > self.applied.quota()
    }

    /// Charges a level down to its part of the store's remaining permits. Idempotent, since both
    /// are refilled at the same rate.
    pub(crate) fn begin(&self, state: &mut StepState, now: u64) {
        let Some(left) = self.left else { return };
        if self.whole.is_window() {
            return;
        }
        // The state of the share if it had been used like the whole limit.
        let mut store_state = StepState::Absent;
        let used = self.whole.quota() - left.remaining;
        step(
            &self.whole,
            &mut store_state,
            used,
            left.as_of.min(now),
            Mode::Charge,
        );
        if left.debt > 0 {
            force_charge(&self.whole, &mut store_state, left.debt, left.as_of.min(now));
        }
        if state.is_expired(now) {
            *state = store_state;
            return;
        }
        if left.debt > 0 {
            // Both are exhausted, so the times until their refill decide.
            let whole_in = |state| step(&self.whole, state, 0, now, Mode::Peek).reset_after;
            let later = whole_in(&mut store_state).saturating_sub(whole_in(state));
            force_charge(&self.whole, state, refill_in(&self.whole, later), now);
            return;
        }
        let remaining = |state| step(&self.whole, state, 0, now, Mode::Peek).remaining;
        let excess = remaining(state).saturating_sub(remaining(&mut store_state));
        step(&self.whole, state, excess, now, Mode::Charge);
    }

    /// Returns the time until the store's usage leaves capacity for a cost that fits the full
    /// share.
    fn fits_in(&self, cost: u64, now: u64) -> u64 {
        let Some(left) = self.left else { return 0 };
        let over_in = left.until.saturating_sub(now);
        match self.whole {
            // The weight of the usage decreases.
            Algorithm::CounterWindow(window) => {
                over_in.saturating_sub(time_below(window, left, window.limit.saturating_sub(cost)))
            }
            _ => over_in,
        }
    }

    /// Sets `retry_after` where it does not follow from the share alone.
    pub(crate) fn finish(&self, outcome: &mut StepOutcome, cost: u64, now: u64) {
        if cost > self.whole.quota() {
            outcome.fits = false;
            outcome.retry_after = micros_ceil(RETRY_AFTER);
        } else if self.is_below(cost) {
            outcome.fits = false;
            outcome.retry_after = self.fits_in(cost, now).max(1);
        }
        if let (Some(left), true) = (self.left, self.whole.is_window()) {
            outcome.reset_after = outcome.reset_after.max(left.until.saturating_sub(now));
        }
    }
}

/// Returns the amount of a level that is refilled in some time.
pub(crate) fn refill_in(algorithm: &Algorithm, time: u64) -> u64 {
    algorithm.level_rate().map_or(0, |rate| rate.accrue(time, 0).0)
}

/// Returns the usage of a counter window that still counts: it counts in full before its last
/// window, as far as is known, and with decreasing weight within it.
pub(crate) fn weighted_usage(window: CounterWindow, left: LastRemaining, now: u64) -> u64 {
    let used = window.limit.saturating_sub(left.remaining);
    let fades_for = window.window.min(left.until.saturating_sub(left.as_of));
    let still = left.until.saturating_sub(now).min(fades_for);
    let counts = (u128::from(used) * u128::from(still)).div_ceil(u128::from(fades_for.max(1)));
    // Bounded by the recorded usage.
    u64::try_from(counts).unwrap_or(used).min(window.limit)
}

/// Returns the time before the end at which at most `rest` of a counter window's usage still
/// counts: the inverse of [`weighted_usage`].
fn time_below(window: CounterWindow, left: LastRemaining, rest: u64) -> u64 {
    let used = window.limit.saturating_sub(left.remaining).max(1);
    let fades_for = window.window.min(left.until.saturating_sub(left.as_of));
    u64::try_from(u128::from(rest) * u128::from(fades_for) / u128::from(used)).unwrap_or(u64::MAX)
}
