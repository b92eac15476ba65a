//! A level that one policy alone has charged, which nearly every level is: it then needs no divisions, and no other moment
//! than that of the last charge.
//!
//! What is left is counted in parts of a thousandth, as many as a microsecond brings a whole number of. With the same policy a
//! bucket and a funnel are the same thing. Whatever is unlike that (another policy, a clock that stepped back, a refund, a loan)
//! is done to the [`Level`] that it stands for, and this is made of it again where it can be.

use super::Outcome;
use super::level::Level;
use crate::policy::{Algorithm, Funnel, Rate, TokenBucket};
use crate::units::MAX_EXACT;

/// What is left of a quota that comes back at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steady {
    /// In parts; at most the whole.
    left: u64,
    /// As of this moment, in microseconds.
    at: u64,
    /// What there is when nothing is used, in parts …
    whole: u64,
    /// … of which so many make a thousandth …
    parts: u64,
    /// … and so many come in a microsecond.
    gain: u64,
}

/// The quota and the rate of an algorithm that runs on a level.
#[inline]
fn of(algorithm: &Algorithm) -> Option<(u64, &Rate)> {
    match algorithm {
        Algorithm::TokenBucket(TokenBucket { capacity, rate })
        | Algorithm::Funnel(Funnel { capacity, rate }) => Some((*capacity, rate)),
        Algorithm::SlidingWindow(_) => None,
    }
}

impl Steady {
    /// Nothing is used yet, at this moment. `None` where 64 bits do not hold the parts, or the time in which they come is
    /// beyond what is exact.
    pub(super) fn unused(algorithm: &Algorithm, now: u64) -> Option<Self> {
        let (quota, rate) = of(algorithm)?;
        let whole = quota.checked_mul(rate.micros)?;
        let steady = Self {
            left: whole,
            at: now,
            whole,
            parts: rate.micros,
            gain: rate.thousandths,
        };
        (whole / rate.thousandths < MAX_EXACT).then_some(steady)
    }

    /// What stands for a level that was charged at this moment, and is kept until nothing of it is used.
    pub(super) fn of_level(algorithm: &Algorithm, level: &Level, now: u64, reset_after: u64) -> Option<Self> {
        if level.at != now || level.keep_until != now + reset_after {
            return None;
        }
        let unused = Self::unused(algorithm, now)?;
        let used_or_left = level.amount.checked_mul(level.parts)?;
        let left = match algorithm {
            Algorithm::TokenBucket(_) => used_or_left.checked_add(level.remainder)?,
            _ => unused
                .whole
                .checked_sub(used_or_left.checked_sub(level.remainder)?)?,
        };
        (left <= unused.whole && level.parts == unused.parts).then_some(Self { left, ..unused })
    }

    /// The level that this stands for.
    pub(super) fn level(&self, algorithm: &Algorithm) -> Level {
        let used = self.whole - self.left;
        let (amount, remainder) = match algorithm {
            Algorithm::TokenBucket(_) => (self.left / self.parts, self.left % self.parts),
            _ => {
                let amount = used.div_ceil(self.parts);
                (amount, amount * self.parts - used)
            }
        };
        Level {
            amount,
            remainder,
            parts: self.parts,
            at: self.at,
            keep_until: self.at + used.div_ceil(self.gain),
        }
    }

    /// Whether nothing is used at `now`.
    pub(super) fn is_spent(&self, now: u64) -> bool {
        self.left_at(now) == self.whole
    }

    /// What is left at a moment that is not before the last charge.
    #[inline]
    fn left_at(&self, now: u64) -> u64 {
        let gained = now.saturating_sub(self.at).saturating_mul(self.gain);
        self.left.saturating_add(gained).min(self.whole)
    }

    /// Takes a step, if it is one of the policy that has charged it, and time has not run back.
    #[inline]
    pub(super) fn step(&mut self, algorithm: &Algorithm, cost: u64, now: u64, charge: bool) -> Option<Left> {
        let (quota, rate) = of(algorithm)?;
        let same = self.parts == rate.micros
            && self.gain == rate.thousandths
            && quota.checked_mul(self.parts) == Some(self.whole);
        if !same || now < self.at {
            return None;
        }
        let cost = cost.checked_mul(self.parts)?;
        let left = self.left_at(now);
        let missing = cost.saturating_sub(left);
        if !charge || missing > 0 {
            return Some(Left { left, missing });
        }
        self.left = left - cost;
        self.at = now;
        Some(Left {
            left: self.left,
            missing,
        })
    }
}

/// What all numbers of an outcome are computed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// What is left after the step, in parts.
    left: u64,
    /// What was missing for the cost to fit.
    missing: u64,
}

impl Left {
    #[inline]
    pub(super) fn fits(self) -> bool {
        self.missing == 0
    }

    /// The numbers, under the algorithm that took the step.
    pub(super) fn outcome(self, algorithm: &Algorithm) -> Outcome {
        let Some((quota, rate)) = of(algorithm) else {
            return Outcome::default();
        };
        let used = quota.saturating_mul(rate.micros).saturating_sub(self.left);
        let reset_after = rate.time_for_parts(used);
        Outcome {
            fits: self.fits(),
            remaining: rate.thousandths_of(self.left),
            retry_after: rate.time_for_parts(self.missing),
            reset_after,
            expires_after: reset_after,
        }
    }
}
