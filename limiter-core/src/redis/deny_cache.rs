//! Denies calls for an exhausted limit without asking Redis, until a permit comes back.
//!
//! Only time gives permits back, apart from refunds, resets and changes of the policy. So after a
//! denial the cache repeats the decision on the state that Redis reported, at the present moment,
//! with the same step function (`algorithm::step`). It asks Redis as soon as the call could fit, or
//! the decision would change the state.
//!
//! Invariants: an answer equals the answer of Redis, number by number, as long as no other process
//! and no other list of limits charges them. Refunds and resets by this limiter take effect at
//! once, those by other processes after the maximum age at the latest. The age counts from the
//! submission of the question, and Redis decided later, so no permit is used before it is there.
//!
//! Tests: `deny_cache/tests.rs`, `tests/denials.rs`, `tests/differential/deny_cache.rs`.

mod denial;
mod shard;
pub(crate) mod thread_cache;

use std::iter;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::algorithm::{Mode, StepResult};
use crate::identity::Identity;
use crate::policy::Algorithm;
use crate::redis::deny_cache::denial::{Denial, DenialAnswer, StartedAt, denied_for};
use crate::redis::deny_cache::shard::DenialShard;
use crate::request::{DecisionRequest, Verdict};
use crate::support::clock::Clock;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Timestamp, micros_ceil};

/// A power of two, as is the next: a quotient is then a shift.
const SHARDS: usize = 64;
const GENERATIONS: usize = 1_024;
/// Above the number of those that are being forgotten, which the bits below it count.
const FORGOTTEN: u64 = 1 << 32;
/// So many limits are kept at most, and the last half of so many surely: some 12 MB when all of
/// them are denied at once.
const MAX_LIMITS: usize = 65_536;

/// What was denied, and when to ask again.
#[derive(Debug)]
pub(crate) struct DenyCache {
    /// None when nothing is to be kept.
    shards: Box<[DenialShard]>,
    /// How often the limits of a part of all identities were forgotten, in [`FORGOTTEN`]s, and how
    /// many are about to be. A denial counts only as long as none of its limits was, which holds as
    /// well for one that is still on its way, or is about several limits. That others share the
    /// number costs them a question.
    generations: Box<[AtomicU64]>,
    cap_micros: u64,
    clock: Clock,
}

/// A question on its way to the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightToken {
    started: Instant,
    /// The moment of a test's clock, in microseconds. The system's is told when there is a denial
    /// to keep: it goes on with the monotonic clock, so that it need not be read for what is
    /// allowed.
    injected: Option<u64>,
    generation: u64,
}

impl InFlightToken {
    /// When the question was submitted, in microseconds of this process's clock, or a moment
    /// earlier.
    fn at(&self, clock: &Clock) -> u64 {
        self.injected.unwrap_or_else(|| {
            let now = clock.now().as_micros();
            now.saturating_sub(micros_ceil(self.started.elapsed()))
        })
    }
}

impl DenyCache {
    /// Answers for so long at most; never, when it is zero.
    pub(crate) fn new(clock: Clock, cap: Duration) -> Self {
        let shards = if cap.is_zero() { 0 } else { SHARDS };
        Self {
            shards: (0..shards)
                .map(|_| DenialShard::new(MAX_LIMITS / (2 * SHARDS)))
                .collect(),
            generations: (0..GENERATIONS).map(|_| AtomicU64::new(0)).collect(),
            cap_micros: micros_ceil(cap),
            clock,
        }
    }

    /// The denial that the store would answer, if that is known.
    pub(crate) fn answer(&self, request: &DecisionRequest<'_>) -> Option<Verdict> {
        if request.mode != Mode::Charge {
            return None;
        }
        let mut outcomes = SmallVec::new();
        let decided_at = self.lookup(charges(request), |algorithm, result| {
            outcomes.push(result.outcome(algorithm));
        })?;
        Some(Verdict::new(decided_at, outcomes))
    }

    /// The denial that the store would answer to a charge of one limit, if it is known. Collects
    /// nothing and leaves the numbers uncomputed.
    #[inline]
    pub(crate) fn answer_one(&self, charge: LimitCost<'_>) -> Option<(Timestamp, StepResult)> {
        let mut found = None;
        let decided_at = self.lookup(iter::once(charge), |_, result| found = Some(result))?;
        Some((decided_at, found?))
    }

    /// When the store denied what it would deny now, and what it would say of each limit. What was
    /// told is of no account where there is no moment.
    #[inline]
    fn lookup<'a>(
        &self,
        charges: impl Iterator<Item = LimitCost<'a>> + Clone,
        told: impl FnMut(&Algorithm, StepResult),
    ) -> Option<Timestamp> {
        let shard = self.shard(charges.clone()).filter(|shard| !shard.is_empty())?;
        // What costs nothing is always allowed.
        if charges.clone().all(|charge| charge.cost == 0) {
            return None;
        }
        // A quicker reading will do: it differs by less than an answer takes on its way.
        let (hash, now) = (hash(charges.clone()), self.clock.reading().as_micros());
        let generation = self.generation(charges.clone())?;
        let answer = |denial: &Denial| denial.answer(charges.clone(), generation, now, told);
        match shard.find(hash, charges.clone(), answer)? {
            DenialAnswer::Denied(decided_at) => Some(decided_at),
            DenialAnswer::Unknown => None,
            DenialAnswer::Superseded => {
                shard.remove(hash, charges);
                None
            }
        }
    }

    /// To be called before the store is asked: what its answer counts from, if a denial is to be
    /// kept.
    pub(crate) fn submission(
        &self,
        request: &DecisionRequest<'_>,
        started: Instant,
    ) -> Option<InFlightToken> {
        self.shard(charges(request))
            .filter(|_| request.mode == Mode::Charge)?;
        Some(InFlightToken {
            generation: self.generation(charges(request))?,
            started,
            injected: self.clock.injected().map(Timestamp::as_micros),
        })
    }

    /// Keeps the store's answer if it is a denial.
    pub(crate) fn on_verdict(
        &self,
        request: &DecisionRequest<'_>,
        verdict: &Verdict,
        submission: Option<InFlightToken>,
    ) {
        let Some(shard) = self.shard(charges(request)) else {
            return;
        };
        let now = || self.clock.now().as_micros();
        let denial = submission
            .filter(|submission| self.generation(charges(request)) == Some(submission.generation))
            .and_then(|submission| {
                let retry_after = denied_for(verdict)?;
                let submitted = StartedAt {
                    at: submission.at(&self.clock),
                    generation: submission.generation,
                };
                Some(Denial::new(
                    request,
                    verdict,
                    submitted,
                    retry_after.min(self.cap_micros),
                ))
            });
        if let Some(denial) = denial {
            shard.note(hash(charges(request)), denial, now(), self.cap_micros);
        } else if !shard.is_empty() {
            shard.tidy(now(), self.cap_micros);
        }
    }

    /// To be held while permits are given back to each limit of the request. From now on nothing is
    /// known of them; what is on its way when it is dropped is not learned either.
    pub(crate) fn forget<'a, 'r>(&'a self, request: &'a DecisionRequest<'r>) -> Invalidation<'a, 'r> {
        let forgetting = Invalidation { cache: self, request };
        forgetting.add(1);
        forgetting
    }

    /// Forgets the denials of these limits, and learns none until [`end_refund`](Self::end_refund)
    /// is called. For refunds that are longer than a borrow of the request can last.
    pub(crate) fn begin_refund(&self, limits: &[Identity]) {
        self.add(limits.iter().copied(), 1);
    }

    /// Ends what [`begin_refund`](Self::begin_refund) has begun.
    pub(crate) fn end_refund(&self, limits: &[Identity]) {
        self.add(limits.iter().copied(), FORGOTTEN - 1);
    }

    fn add(&self, limits: impl Iterator<Item = Identity>, number: u64) {
        for generation in limits.filter_map(|limit| self.generation_of(limit)) {
            generation.fetch_add(number, Ordering::AcqRel);
        }
    }

    /// Grows with each limit of the request that is forgotten; none while one is.
    fn generation<'a>(&self, charges: impl Iterator<Item = LimitCost<'a>>) -> Option<u64> {
        let each = charges.filter_map(|charge| self.generation_of(charge.identity));
        let sum = each.fold(0_u64, |sum, generation| {
            sum.wrapping_add(generation.load(Ordering::Acquire))
        });
        (sum % FORGOTTEN == 0).then_some(sum)
    }

    fn generation_of(&self, identity: Identity) -> Option<&AtomicU64> {
        self.generations.get(identity.shard(GENERATIONS))
    }

    fn shard<'a>(&self, mut charges: impl Iterator<Item = LimitCost<'a>>) -> Option<&DenialShard> {
        self.shards.get(charges.next()?.identity.shard(SHARDS))
    }
}

/// What one limit of a question is to be charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitCost<'a> {
    pub(crate) identity: Identity,
    pub(crate) algorithm: &'a Algorithm,
    /// In the algorithm's own unit.
    pub(crate) cost: u64,
}

fn charges<'a>(request: &'a DecisionRequest<'_>) -> impl Iterator<Item = LimitCost<'a>> + Clone {
    request.limits.iter().map(|limit| LimitCost {
        identity: limit.identity,
        algorithm: limit.policy.algorithm(),
        cost: limit.cost,
    })
}

/// Limits to which permits are given back.
#[derive(Debug)]
#[must_use = "they are forgotten for as long as it is held"]
pub(crate) struct Invalidation<'a, 'r> {
    cache: &'a DenyCache,
    request: &'a DecisionRequest<'r>,
}

impl Invalidation<'_, '_> {
    fn add(&self, number: u64) {
        let limits = self.request.limits.iter().map(|limit| limit.identity);
        self.cache.add(limits, number);
    }
}

impl Drop for Invalidation<'_, '_> {
    fn drop(&mut self) {
        self.add(FORGOTTEN - 1);
    }
}

/// Where to look for it: the table compares the limits themselves.
fn hash<'a>(charges: impl Iterator<Item = LimitCost<'a>>) -> u64 {
    charges.fold(0, |list, charge| list.rotate_left(1) ^ charge.identity.hash())
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests;
