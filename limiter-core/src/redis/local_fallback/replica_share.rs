//! What a replica may admit of one limit, and how what the store had left bears on it.

use std::time::Duration;

use crate::algorithm::{Mode, StepOutcome, StepState, force_charge, step};
use crate::policy::{Algorithm, CounterWindow, Funnel, TokenBucket};
use crate::redis::local_fallback::last_known::LastRemaining;
use crate::units::micros_ceil;

/// When to ask again for a cost that is above the share. The store is back by then, or it is not.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What a replica may admit of one limit.
#[derive(Debug)]
pub(crate) struct ReplicaShare {
    /// The share that is applied: a window's without what is used elsewhere.
    pub(crate) applied: Algorithm,
    /// All of it.
    pub(crate) whole: Algorithm,
    /// What the store had left, as long as some of it is used.
    pub(crate) left: Option<LastRemaining>,
}

impl ReplicaShare {
    /// Whether a cost can never fit, or not before what the store had left is of no account any
    /// more.
    pub(crate) fn is_below(&self, cost: u64) -> bool {
        cost > self.applied.quota()
    }

    /// Takes from a level what it has beyond its part of what the store had left. Done again it
    /// takes nothing more, since both come back at the same rate.
    pub(crate) fn begin(&self, state: &mut StepState, now: u64) {
        let Some(left) = self.left else { return };
        if self.whole.is_window() {
            return;
        }
        // The share as it would stand had it been used as the whole was.
        let mut heard = StepState::Absent;
        let used = self.whole.quota() - left.remaining;
        step(&self.whole, &mut heard, used, left.as_of.min(now), Mode::Charge);
        if left.owed > 0 {
            force_charge(&self.whole, &mut heard, left.owed, left.as_of.min(now));
        }
        if state.is_expired(now) {
            *state = heard;
            return;
        }
        if left.owed > 0 {
            // Nothing remains of either, so they are told apart by when they are whole again.
            let whole_in = |state| step(&self.whole, state, 0, now, Mode::Peek).reset_after;
            let later = whole_in(&mut heard).saturating_sub(whole_in(state));
            force_charge(&self.whole, state, comes_in(&self.whole, later), now);
            return;
        }
        let remaining = |state| step(&self.whole, state, 0, now, Mode::Peek).remaining;
        let beyond = remaining(state).saturating_sub(remaining(&mut heard));
        step(&self.whole, state, beyond, now, Mode::Charge);
    }

    /// Time until what the store had given leaves room for a cost that the share as a whole has
    /// room for.
    fn room_in(&self, cost: u64, now: u64) -> u64 {
        let Some(left) = self.left else { return 0 };
        let over_in = left.until.saturating_sub(now);
        match self.whole {
            // What was given counts less and less.
            Algorithm::CounterWindow(window) => {
                over_in.saturating_sub(counts_so_little(window, left, window.limit.saturating_sub(cost)))
            }
            _ => over_in,
        }
    }

    /// Says when to ask again, where that is not only up to the share.
    pub(crate) fn finish(&self, outcome: &mut StepOutcome, cost: u64, now: u64) {
        if cost > self.whole.quota() {
            outcome.fits = false;
            outcome.retry_after = micros_ceil(ASK_AGAIN_AFTER);
        } else if self.is_below(cost) {
            outcome.fits = false;
            outcome.retry_after = self.room_in(cost, now).max(1);
        }
        if let (Some(left), true) = (self.left, self.whole.is_window()) {
            outcome.reset_after = outcome.reset_after.max(left.until.saturating_sub(now));
        }
    }
}

/// What comes back of a level in some time.
pub(crate) fn comes_in(algorithm: &Algorithm, time: u64) -> u64 {
    match algorithm {
        Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
            rate.accrue(time, 0).0
        }
        _ => 0,
    }
}

/// How much still counts of what had been used of a counter window: in its last window what had
/// been used counts less and less, and before, as far as is known, in full.
pub(crate) fn still_counts(window: CounterWindow, left: LastRemaining, now: u64) -> u64 {
    let used = window.limit.saturating_sub(left.remaining);
    let fades_for = window.window.min(left.until.saturating_sub(left.as_of));
    let still = left.until.saturating_sub(now).min(fades_for);
    let counts = (u128::from(used) * u128::from(still)).div_ceil(u128::from(fades_for.max(1)));
    // Not more than had been used.
    u64::try_from(counts).unwrap_or(used).min(window.limit)
}

/// How long before its end no more than `rest` still counts of what had been used of a counter
/// window: the inverse of [`still_counts`].
fn counts_so_little(window: CounterWindow, left: LastRemaining, rest: u64) -> u64 {
    let used = window.limit.saturating_sub(left.remaining).max(1);
    let fades_for = window.window.min(left.until.saturating_sub(left.as_of));
    u64::try_from(u128::from(rest) * u128::from(fades_for) / u128::from(used)).unwrap_or(u64::MAX)
}
