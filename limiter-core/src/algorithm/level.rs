//! An amount that changes at a rate: the tokens of a bucket, the level of a funnel.
//!
//! The amount is stored with its time and brought forward on use, as in J. Turner, "New directions
//! in communications" (1986), with a remainder instead of rounding.
//!
//! The tokens of a bucket are refilled at the rate, up to the capacity; a call takes its cost. Over
//! any time T it admits at most capacity + rate·T. A funnel is a leaky bucket used as a meter: a
//! call adds its cost to the level, which drains at the rate. It admits the same calls as a bucket
//! of the same capacity and rate (ITU-T I.371, annex A, shows the equivalence). They differ when
//! the capacity changes: a bucket keeps the remaining permits, a funnel keeps the usage.
//!
//! Tests: `tests/properties.rs` (`level_keeps_bound_and_equals_exact_fractions`),
//! `tests/differential.rs`, `tests/contract/admission.rs`, `tests/contract/policies.rs` (changed
//! policies).

#[cfg(feature = "redis")]
use crate::algorithm::StepState;
use crate::algorithm::ratio::QuotaRatio;
use crate::algorithm::{Mode, StepOutcome, next_permit};
#[cfg(feature = "redis")]
use crate::policy::Algorithm;
use crate::policy::{Funnel, Rate, TokenBucket};
use crate::units::MAX_EXACT;

/// The amount at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// In thousandths. Negative if a bucket is in debt.
    pub(super) amount: i64,
    /// Parts of the next thousandth …
    pub(super) remainder: u64,
    /// … and the number of parts per thousandth.
    pub(super) parts: u64,
    /// Time of the amount, in microseconds.
    pub(super) at: u64,
    /// From this time the state equals absence, under the policy of the last charge. A charge of
    /// another policy version extends a later time by the refill time of its cost.
    pub(super) keep_until: u64,
}

/// The differences between a bucket and a funnel. All amounts are thousandths.
pub(crate) trait LevelKind: Sized {
    fn rate(&self) -> &Rate;
    /// Returns the amount without usage.
    fn idle(&self) -> i64;
    /// Returns the amount after a refill of `by`.
    fn after_refill(&self, amount: i64, by: u64) -> i64;
    /// Returns the refill that is needed for `cost` to fit.
    fn shortfall(&self, amount: i64, cost: u64) -> u64;
    fn charged(&self, amount: i64, cost: u64) -> i64;
    fn remaining(&self, amount: i64) -> u64;
    /// Returns the refill that is needed until the usage is zero.
    fn used(&self, amount: i64) -> u64;
    /// Returns the algorithm with the capacity reduced by the leased tokens.
    fn without(&self, leased: u64) -> Self;
    /// Returns the amount after a lease of `by`, which also reduces the capacity.
    fn after_lease(&self, amount: i64, by: u64) -> i64;
    /// Returns the amount after `by` leased tokens were returned unspent.
    fn after_return(&self, amount: i64, by: u64) -> i64;
    /// Returns the amount after `by` leased tokens were spent.
    fn after_spend(&self, amount: i64, by: u64) -> i64;
}

/// The numbers of a level in an external store.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredLevel {
    pub(crate) amount: i64,
    pub(crate) remainder: u64,
    pub(crate) parts: u64,
    pub(crate) at: u64,
    pub(crate) keep_until: u64,
}

#[cfg(feature = "redis")]
impl StoredLevel {
    /// Returns the state of these numbers under an algorithm, if they are valid.
    pub(crate) fn state(self, algorithm: &Algorithm) -> Option<StepState> {
        let Self {
            amount,
            remainder,
            parts,
            at,
            keep_until,
        } = self;
        // Only a bucket can be negative: a funnel in debt exceeds its capacity.
        let is_below = amount < 0 && !matches!(algorithm, Algorithm::TokenBucket(_));
        if is_below
            || amount.unsigned_abs() > MAX_EXACT
            || remainder >= parts
            || parts > MAX_EXACT
            || at > keep_until
            || keep_until > 2 * MAX_EXACT
        {
            return None;
        }
        match algorithm {
            Algorithm::TokenBucket(_) => Some(StepState::TokenBucket(self.level())),
            Algorithm::Funnel(_) => Some(StepState::Funnel(self.level())),
            _ => None,
        }
    }

    /// Returns the level of these numbers, which may be invalid.
    #[inline]
    pub(super) fn level(&self) -> Level {
        let Self {
            amount,
            remainder,
            parts,
            at,
            keep_until,
        } = *self;
        Level {
            amount,
            remainder,
            parts,
            at,
            keep_until,
        }
    }
}

#[cfg(feature = "redis")]
impl Level {
    /// Returns the stored numbers.
    pub(super) fn stored(&self) -> StoredLevel {
        let Self {
            amount,
            remainder,
            parts,
            at,
            keep_until,
        } = *self;
        StoredLevel {
            amount,
            remainder,
            parts,
            at,
            keep_until,
        }
    }
}

/// Converts an amount to a signed one, which can represent debts. Amounts are far below the
/// maximum.
pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// Returns the positive part of an amount.
pub(super) fn above_zero(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}

impl Level {
    pub(super) fn is_expired(&self, now: u64) -> bool {
        now >= self.keep_until
    }
}

/// Executes a step; returns the level to store if it changed.
#[inline]
pub(super) fn step(
    meter: &impl LevelKind,
    stored: Option<Level>,
    cost: u64,
    now: u64,
    mode: Mode,
) -> (Option<Level>, StepOutcome) {
    let mut level = view(meter, stored, now);
    // A denial also stores a level that is ahead of the clock: each later call would have to repeat
    // the repair.
    let ahead = stored.is_some_and(|stored| now < stored.at && !stored.is_expired(now));

    let missing = if cost == 0 {
        0
    } else {
        meter.shortfall(level.amount, cost)
    };
    let retry_after = meter.rate().time_for(missing, level.remainder);
    let charged = missing == 0 && mode == Mode::Charge;
    let mut keep_until = level.keep_until;
    if charged {
        let used = meter.used(level.amount);
        let kept_for = keep_until.saturating_sub(now);
        if meter.rate().takes_less(used, level.remainder, kept_for) {
            // A larger or slower policy keeps the level, and the charge counts under that policy
            // too.
            keep_until = (keep_until + meter.rate().time_for(cost, 0)).min(now + MAX_EXACT);
        }
        level.amount = meter.charged(level.amount, cost);
    }

    let reset_after = meter.rate().time_for(meter.used(level.amount), level.remainder);
    keep_until = keep_until.max(now + reset_after);
    // Otherwise a denial writes only if the state would expire before the reported time (a slower
    // policy reads the state of a faster one).
    let repaired = mode != Mode::Peek && stored.is_some() && (ahead || keep_until > level.keep_until);
    let written = charged || repaired;
    if written {
        level.keep_until = keep_until;
    }
    let remaining = meter.remaining(level.amount);
    let next = meter.shortfall(level.amount, next_permit(remaining));
    let outcome = StepOutcome {
        fits: missing == 0,
        remaining,
        retry_after,
        reset_after,
        next_after: meter.rate().time_for(next, level.remainder).min(reset_after),
        expires_after: level.keep_until.saturating_sub(now),
        ..StepOutcome::default()
    };
    (written.then_some(level), outcome)
}

/// Returns the level at `now` under the policy of this call.
#[inline]
pub(super) fn view(meter: &impl LevelKind, stored: Option<Level>, now: u64) -> Level {
    let parts = meter.rate().micros;
    let Some(stored) = stored.filter(|stored| !stored.is_expired(now)) else {
        return Level {
            amount: meter.idle(),
            remainder: 0,
            parts,
            at: now,
            keep_until: now,
        };
    };
    let remainder = meter.rate().convert(stored.remainder, stored.parts);
    let (by, remainder) = meter.rate().accrue(now.saturating_sub(stored.at), remainder);
    let amount = meter.after_refill(stored.amount, by);
    Level {
        amount,
        remainder: if amount == meter.idle() { 0 } else { remainder },
        parts,
        at: now,
        // If the clock stepped back, the whole state moves back.
        keep_until: stored.keep_until - stored.at.saturating_sub(now),
    }
}

impl Level {
    /// Converts the level to the quota of another policy.
    pub(super) fn scaled(self, meter: &impl LevelKind, after: &impl LevelKind, ratio: QuotaRatio) -> Self {
        let amount = match meter.idle() {
            // The usage of a funnel.
            0 => signed(ratio.up(self.amount.unsigned_abs())),
            // The tokens of a bucket, which may be negative.
            _ if self.amount < 0 => -signed(ratio.up(self.amount.unsigned_abs())),
            _ => signed(ratio.down(self.amount.unsigned_abs())),
        };
        Self {
            amount,
            // The fraction of a thousandth is dropped.
            remainder: 0,
            parts: after.rate().micros,
            ..self
        }
    }
}

/// The amount is the remaining tokens; a negative amount is a debt.
impl LevelKind for TokenBucket {
    fn rate(&self) -> &Rate {
        &self.rate
    }

    fn idle(&self) -> i64 {
        signed(self.capacity)
    }

    fn after_refill(&self, tokens: i64, amount: u64) -> i64 {
        self.idle().min(tokens.saturating_add_unsigned(amount))
    }

    fn shortfall(&self, tokens: i64, cost: u64) -> u64 {
        above_zero(signed(cost).saturating_sub(tokens))
    }

    fn charged(&self, tokens: i64, cost: u64) -> i64 {
        tokens.saturating_sub_unsigned(cost)
    }

    fn remaining(&self, tokens: i64) -> u64 {
        above_zero(tokens)
    }

    fn used(&self, tokens: i64) -> u64 {
        above_zero(self.idle().saturating_sub(tokens))
    }

    fn without(&self, leased: u64) -> Self {
        Self {
            capacity: self.capacity.saturating_sub(leased),
            ..*self
        }
    }

    fn after_lease(&self, tokens: i64, amount: u64) -> i64 {
        tokens.saturating_sub_unsigned(amount)
    }

    fn after_return(&self, tokens: i64, amount: u64) -> i64 {
        tokens.saturating_add_unsigned(amount)
    }

    fn after_spend(&self, tokens: i64, _by: u64) -> i64 {
        tokens
    }
}

/// The amount is the level that has not drained. After a reduction of the capacity, and in debt, it
/// exceeds the capacity.
impl LevelKind for Funnel {
    fn rate(&self) -> &Rate {
        &self.rate
    }

    fn idle(&self) -> i64 {
        0
    }

    fn after_refill(&self, level: i64, amount: u64) -> i64 {
        level.saturating_sub_unsigned(amount).max(0)
    }

    fn shortfall(&self, level: i64, cost: u64) -> u64 {
        (above_zero(level) + cost).saturating_sub(self.capacity)
    }

    fn charged(&self, level: i64, cost: u64) -> i64 {
        level.saturating_add_unsigned(cost)
    }

    fn remaining(&self, level: i64) -> u64 {
        self.capacity.saturating_sub(above_zero(level))
    }

    fn used(&self, level: i64) -> u64 {
        above_zero(level)
    }

    fn without(&self, leased: u64) -> Self {
        Self {
            capacity: self.capacity.saturating_sub(leased),
            ..*self
        }
    }

    fn after_lease(&self, level: i64, _by: u64) -> i64 {
        level
    }

    fn after_return(&self, level: i64, _by: u64) -> i64 {
        level
    }

    fn after_spend(&self, level: i64, amount: u64) -> i64 {
        level.saturating_add_unsigned(amount)
    }
}
