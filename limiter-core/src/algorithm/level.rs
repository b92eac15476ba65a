//! A quantity that moves at a rate: the tokens of a bucket, the level of a funnel.
//!
//! It is stored as it stood at one moment and brought forward on use, as in J. Turner, "New
//! directions in communications" (1986), with a remainder in place of rounding.

#[cfg(feature = "redis")]
use crate::algorithm::StepState;
use crate::algorithm::ratio::QuotaRatio;
use crate::algorithm::{Mode, StepOutcome, next_permit};
#[cfg(feature = "redis")]
use crate::policy::Algorithm;
use crate::policy::Rate;
use crate::units::MAX_EXACT;

/// The quantity as it stood at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// In thousandths. Below zero where a bucket is in debt.
    pub(super) amount: i64,
    /// Parts of the next thousandth that have come already …
    pub(super) remainder: u64,
    /// … of which so many make one.
    pub(super) parts: u64,
    /// The moment, in microseconds.
    pub(super) at: u64,
    /// From this moment on the state equals absence, under every policy that has charged it.
    pub(super) keep_until: u64,
}

/// What a bucket and a funnel do differently. All amounts are thousandths.
pub(crate) trait LevelKind: Sized {
    fn rate(&self) -> &Rate;
    /// The amount when nothing was used.
    fn idle(&self) -> i64;
    /// The amount after so much has come back.
    fn recovered(&self, amount: i64, by: u64) -> i64;
    /// What has to come back before `cost` fits.
    fn shortfall(&self, amount: i64, cost: u64) -> u64;
    fn charged(&self, amount: i64, cost: u64) -> i64;
    fn remaining(&self, amount: i64) -> u64;
    /// What has to come back until nothing is used.
    fn used(&self, amount: i64) -> u64;
    /// The same with so much less capacity.
    fn without(&self, lent: u64) -> Self;
    /// The amount after so much of it was lent, which takes it from the capacity too.
    fn after_lease(&self, amount: i64, by: u64) -> i64;
    /// The amount after so much of what was lent came back unspent.
    fn given_back(&self, amount: i64, by: u64) -> i64;
    /// The amount after so much of what was lent was spent.
    fn spent(&self, amount: i64, by: u64) -> i64;
}

/// The numbers of a level as a store outside of this process keeps them.
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
    /// The state that they describe under an algorithm, if they are those of a level.
    pub(crate) fn state(self, algorithm: &Algorithm) -> Option<StepState> {
        let Self {
            amount,
            remainder,
            parts,
            at,
            keep_until,
        } = self;
        // Only a bucket can be in debt: a funnel then holds more than its capacity.
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
        let level = Level {
            amount,
            remainder,
            parts,
            at,
            keep_until,
        };
        match algorithm {
            Algorithm::TokenBucket(_) => Some(StepState::TokenBucket(level)),
            Algorithm::Funnel(_) => Some(StepState::Funnel(level)),
            _ => None,
        }
    }
}

#[cfg(feature = "redis")]
impl Level {
    /// Its numbers.
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

/// An amount with room for debts. Amounts are far below what this holds.
pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// So much of an amount as is above zero.
pub(super) fn above_zero(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}

impl Level {
    pub(super) fn is_expired(&self, now: u64) -> bool {
        now >= self.keep_until
    }
}

/// Takes a step, and says what is to be stored now, if that is anything else.
#[inline]
pub(super) fn step(
    meter: &impl LevelKind,
    stored: Option<Level>,
    cost: u64,
    now: u64,
    mode: Mode,
) -> (Option<Level>, StepOutcome) {
    let mut level = view(meter, stored, now);
    // A stored time ahead of the clock is mended on a denial too: it would be ahead at the next
    // call again.
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
            // It is kept for a larger or slower policy, from which this charge is missing too.
            keep_until = (keep_until + meter.rate().time_for(cost, 0)).min(now + MAX_EXACT);
        }
        level.amount = meter.charged(level.amount, cost);
    }

    let reset_after = meter.rate().time_for(meter.used(level.amount), level.remainder);
    keep_until = keep_until.max(now + reset_after);
    // A denial writes nothing else, unless the state would expire before the moment that the answer
    // names (a slower policy looks at what a faster one stored).
    let mended = mode != Mode::Peek && stored.is_some() && (ahead || keep_until > level.keep_until);
    let written = charged || mended;
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

/// The quantity at `now`, read under the policy of this call.
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
    let amount = meter.recovered(stored.amount, by);
    Level {
        amount,
        remainder: if amount == meter.idle() { 0 } else { remainder },
        parts,
        at: now,
        // Time that ran back moves the whole state back.
        keep_until: stored.keep_until - stored.at.saturating_sub(now),
    }
}

impl Level {
    /// The level that is the same part of the quota of another meter.
    pub(super) fn scaled(self, meter: &impl LevelKind, after: &impl LevelKind, ratio: QuotaRatio) -> Self {
        let amount = match meter.idle() {
            // The level of a funnel: what was used.
            0 => signed(ratio.up(self.amount.unsigned_abs())),
            // The tokens of a bucket, which may be owed.
            _ if self.amount < 0 => -signed(ratio.up(self.amount.unsigned_abs())),
            _ => signed(ratio.down(self.amount.unsigned_abs())),
        };
        Self {
            amount,
            // Less than a thousandth has come already, and is left away.
            remainder: 0,
            parts: after.rate().micros,
            ..self
        }
    }
}
