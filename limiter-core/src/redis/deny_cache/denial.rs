//! One denial, and what it says later on, of the same limits and other costs.

use crate::algorithm::Outcome;
use crate::identity::Identity;
use crate::policy::{Algorithm, Funnel, TokenBucket};
use crate::redis::deny_cache::Charge;
use crate::request::{Request, Verdict};
use crate::support::one_or_many::Few;
use crate::units::Timestamp;

/// A decision that denied.
#[derive(Debug)]
pub(crate) struct Denial {
    limits: Few<Denied>,
    submission: Submitted,
    /// From this moment of this process's clock on the store is asked.
    until: u64,
    /// The store's own time.
    decided_at: Timestamp,
}

/// One limit of it, as it was asked for and as it was answered.
#[derive(Debug)]
struct Denied {
    identity: Identity,
    algorithm: Algorithm,
    /// In the algorithm's own unit.
    cost: u64,
    /// Its outcome, without the delay that nobody is told who is denied.
    fits: bool,
    remaining: u64,
    retry_after: u64,
    reset_after: u64,
    expires_after: u64,
}

/// When the question was submitted that was denied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    /// In microseconds of this process's clock.
    pub(crate) at: u64,
    pub(crate) generation: u64,
}

/// After how many microseconds all limits of a verdict have room again; none if they all have.
pub(crate) fn denied_for(verdict: &Verdict) -> Option<u64> {
    let denying = verdict.outcomes.iter().filter(|outcome| !outcome.fits);
    denying.map(|outcome| outcome.retry_after).max()
}

/// What a denial means for a question.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The store would deny it, at this moment of its own.
    Denied(Timestamp),
    /// Nothing.
    Unknown,
    /// Nothing, and the store's answer to the question may well make it untrue.
    Superseded,
}

/// What a denial means for one limit of a question.
enum Later {
    Known(Outcome),
    Unknown,
    Superseded,
}

impl Denial {
    /// What is to be kept of a verdict that denies, for so many microseconds.
    pub(crate) fn new(request: &Request<'_>, verdict: &Verdict, submission: Submitted, lasts: u64) -> Self {
        let limits = request.limits.iter().zip(&verdict.outcomes);
        Self {
            limits: limits
                .map(|(limit, outcome)| Denied {
                    identity: limit.identity,
                    algorithm: *limit.policy.algorithm(),
                    cost: limit.cost,
                    fits: outcome.fits,
                    remaining: outcome.remaining,
                    retry_after: outcome.retry_after,
                    reset_after: outcome.reset_after,
                    expires_after: outcome.expires_after,
                })
                .collect(),
            submission,
            until: submission.at.saturating_add(lasts),
            decided_at: verdict.decided_at,
        }
    }

    /// How many limits it is about.
    pub(crate) fn len(&self) -> usize {
        self.limits.len()
    }

    /// Whether it is about these limits, in this order.
    pub(crate) fn is_about<'a>(&self, charges: impl Iterator<Item = Charge<'a>>) -> bool {
        let asked = charges.map(|charge| charge.identity);
        self.limits.iter().map(|denied| denied.identity).eq(asked)
    }

    /// Whether it is about the limits of another.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let others = other.limits.iter().map(|denied| denied.identity);
        self.limits.iter().map(|denied| denied.identity).eq(others)
    }

    /// What the store would answer to a question about the same limits; `told` hears the outcome of each. A clock that has
    /// stepped back tells nothing.
    pub(crate) fn answer<'a>(
        &self,
        charges: impl Iterator<Item = Charge<'a>>,
        generation: u64,
        now: u64,
        mut told: impl FnMut(Outcome),
    ) -> Answer {
        if !self.holds(generation, now) {
            return Answer::Unknown;
        }
        let passed = now - self.submission.at;
        let mut unknown = false;
        for (denied, charge) in self.limits.iter().zip(charges) {
            match denied.after(passed, charge) {
                Later::Known(outcome) => told(outcome),
                Later::Unknown => unknown = true,
                // Whatever is known of the others, the call may be charged.
                Later::Superseded => return Answer::Superseded,
            }
        }
        if unknown {
            return Answer::Unknown;
        }
        Answer::Denied(Timestamp::from_micros(
            self.decided_at.as_micros().saturating_add(passed),
        ))
    }

    /// Whether it tells more than a later one: it was submitted later, or denied less, while it holds.
    pub(crate) fn outweighs(&self, other: &Self, now: u64) -> bool {
        let pairs = || self.limits.iter().zip(other.limits.iter());
        let denied_less = pairs()
            .all(|(own, other)| own.algorithm == other.algorithm && own.cost <= other.cost)
            && pairs().any(|(own, other)| own.cost < other.cost);
        self.holds(other.submission.generation, now)
            && (denied_less || self.submission.at > other.submission.at)
    }

    fn holds(&self, generation: u64, now: u64) -> bool {
        self.submission.generation == generation && (self.submission.at..self.until).contains(&now)
    }
}

impl Denied {
    /// The outcome after some time, for another cost as well where that can be told.
    fn after(&self, passed: u64, asked: Charge<'_>) -> Later {
        if self.algorithm != *asked.algorithm || (!self.fits && asked.cost < self.cost) {
            return Later::Superseded;
        }
        let left = |span: u64| span.saturating_sub(passed);
        let retry_after = if !self.fits {
            self.retry_after_for(asked.cost).map(left)
        } else if asked.cost <= self.remaining {
            Some(0)
        } else {
            None
        };
        let Some(retry_after) = retry_after else {
            return Later::Unknown;
        };
        let (fits, reset_after) = (retry_after == 0, left(self.reset_after));
        let least = if fits { asked.cost } else { 0 };
        Later::Known(Outcome {
            fits,
            remaining: self.remaining.max(self.remains_of(reset_after)).max(least),
            retry_after,
            reset_after,
            // When the first of it comes back is not kept.
            next_after: reset_after,
            expires_after: left(self.expires_after),
            ..Outcome::default()
        })
    }

    /// How long this cost, or a larger one, had to wait then. What a level lacks comes at its rate, so that is known to the
    /// microsecond, and rounded up; the moments at which the permits of a window come back are not.
    fn retry_after_for(&self, cost: u64) -> Option<u64> {
        let told = self.retry_after;
        match &self.algorithm {
            _ if cost == self.cost => Some(told),
            Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
                Some(told.saturating_add(rate.time_for(cost - self.cost, 0)))
            }
            // All permits of a period come back together, when it ends.
            Algorithm::FixedWindow(_) => Some(told),
            Algorithm::SlidingWindow(_) | Algorithm::CounterWindow(_) | Algorithm::Concurrency(_) => None,
        }
    }

    /// What remains at least when nothing is used any more after this time. Of a level only that is missing which comes
    /// back until then.
    fn remains_of(&self, reset_after: u64) -> u64 {
        match &self.algorithm {
            Algorithm::TokenBucket(TokenBucket { capacity, rate })
            | Algorithm::Funnel(Funnel { capacity, rate, .. }) => {
                let (whole, part) = rate.accrue(reset_after, 0);
                capacity.saturating_sub(whole + u64::from(part > 0))
            }
            _ => 0,
        }
    }
}
