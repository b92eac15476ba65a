//! Denies calls for an exhausted limit without a query to Redis, until a permit returns: repeated
//! denials of one key take 0.1 µs in place of 0.1 ms (`hot-denied-64` and `single-1` in
//! benchmarks/figures.md).
//!
//! Only time gives permits back, apart from refunds, resets, returns of leased permits and changes
//! of the policy. So after a denial the cache repeats the decision on the state that Redis
//! reported, at the present moment, with the same step function (`algorithm::step`). It queries
//! Redis as soon as the call could fit, or the decision would change the state.
//!
//! Invariants: an answer equals the answer of Redis, number by number, as long as no other process
//! and no other list of limits charges them. Refunds, resets and returns of leased permits by this
//! limiter take effect at once, those by other processes after the maximum age at the latest. The
//! age counts from the submission of the request, and Redis decided later, so no permit is used
//! before it exists.
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
use crate::redis::deny_cache::shard::{DenialShard, EMPTY};
use crate::request::{DecisionRequest, Verdict};
use crate::support::clock::Clock;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::units::{MAX_EXACT, Timestamp, micros_ceil};

/// Powers of two, so that a quotient is a shift.
const SHARDS: usize = 64;
const GENERATIONS: usize = 1_024;
/// Unit of the invalidation counter. The bits below count the active invalidations.
const FORGOTTEN: u64 = 1 << 32;
/// Upper bound of the cached limits; at least the newest half is kept. About 12 MB if all of them
/// are denied at once.
const MAX_LIMITS: usize = 65_536;

/// Denials of the store, and the times until which they hold.
#[derive(Debug)]
pub(crate) struct DenyCache {
    /// Empty if caching is disabled.
    shards: Box<[DenialShard]>,
    /// Counts the invalidations of a part of all identities in units of [`FORGOTTEN`], and their
    /// active invalidations in the bits below. A denial is valid only while the sum of its limits'
    /// counters is unchanged, which covers replies in flight and requests with several limits.
    /// Identities that share a counter cost each other a request to the store.
    generations: Box<[AtomicU64]>,
    cap_micros: u64,
    clock: Clock,
}

/// The state of the cache at the start of a store request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightToken {
    started: Instant,
    /// The moment of a test's clock, in microseconds. The system clock is read only for a denial,
    /// and converted with the monotonic clock, so that grants need no additional reading.
    injected: Option<u64>,
    generation: u64,
}

impl InFlightToken {
    /// Returns a lower bound of the start of the request, in microseconds of the local clock.
    fn at(&self, clock: &Clock) -> u64 {
        self.injected.unwrap_or_else(|| {
            let now = clock.now().as_micros();
            now.saturating_sub(micros_ceil(self.started.elapsed()))
        })
    }
}

impl DenyCache {
    /// Creates a cache. `cap` bounds the age of an answer; zero disables the cache.
    pub(crate) fn new(clock: Clock, cap: Duration) -> Self {
        let shards = if cap.is_zero() { 0 } else { SHARDS };
        Self {
            shards: (0..shards)
                .map(|_| DenialShard::new(MAX_LIMITS / (2 * SHARDS)))
                .collect(),
            generations: (0..GENERATIONS).map(|_| AtomicU64::new(0)).collect(),
            // A time with this span added is below the mark of an empty shard.
            cap_micros: micros_ceil(cap).min(MAX_EXACT),
            clock,
        }
    }

    /// Returns the denial that the store would return, if it is known.
    pub(crate) fn decide(&self, request: &DecisionRequest<'_>) -> Option<Verdict> {
        if request.mode != Mode::Charge {
            return None;
        }
        let mut outcomes = SmallVec::new();
        let decided_at = self.lookup(charges(request), |algorithm, result| {
            outcomes.push(result.outcome(algorithm));
        })?;
        Some(Verdict::new(decided_at, outcomes))
    }

    /// Returns the denial of a charge of one limit, if it is known. Collects nothing and defers the
    /// computation of the numbers.
    #[inline]
    pub(crate) fn decide_one(&self, charge: LimitCost<'_>) -> Option<(Timestamp, StepResult)> {
        let mut found = None;
        let decided_at = self.lookup(iter::once(charge), |_, result| found = Some(result))?;
        Some((decided_at, found?))
    }

    /// Returns the store time of a known denial and passes the result of each limit to `report`. If
    /// it returns `None`, the reported results are invalid.
    #[inline]
    fn lookup<'a>(
        &self,
        charges: impl Iterator<Item = LimitCost<'a>> + Clone,
        report: impl FnMut(&Algorithm, StepResult),
    ) -> Option<Timestamp> {
        let shard = self.shard(charges.clone()).filter(|shard| has_denials(shard))?;
        // A request without a cost is always allowed.
        if charges.clone().all(|charge| charge.cost == 0) {
            return None;
        }
        // The coarse clock suffices: its error is below the latency of a reply.
        let (hash, now) = (hash(charges.clone()), self.clock.reading().as_micros());
        let generation = self.generation(charges.clone())?;
        let answer = |denial: &Denial| denial.decide(charges.clone(), generation, now, report);
        match shard.find(hash, charges.clone(), answer)? {
            DenialAnswer::Denied(decided_at) => Some(decided_at),
            DenialAnswer::Unknown => None,
            DenialAnswer::Superseded => {
                shard.remove(hash, charges);
                None
            }
        }
    }

    /// Returns whether a refund or another change of one of the request's limits is active.
    pub(crate) fn is_invalidated(&self, request: &DecisionRequest<'_>) -> bool {
        self.generation(charges(request)).is_none()
    }

    /// Starts a store request. Must be called before the request is sent, if its denial is to be
    /// cached.
    pub(crate) fn in_flight_token(
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

    /// Caches the verdict of the store if it is a denial.
    pub(crate) fn on_verdict(
        &self,
        request: &DecisionRequest<'_>,
        verdict: &Verdict,
        in_flight: Option<InFlightToken>,
    ) {
        let Some(shard) = self.shard(charges(request)) else {
            return;
        };
        let now = || self.clock.now().as_micros();
        let denial = in_flight
            .filter(|_| !verdict.fits())
            .filter(|in_flight| self.generation(charges(request)) == Some(in_flight.generation))
            .and_then(|in_flight| {
                let retry_after = denied_for(verdict)?;
                let submitted = StartedAt {
                    at: in_flight.at(&self.clock),
                    generation: in_flight.generation,
                };
                Some(Denial::new(
                    request,
                    verdict,
                    submitted,
                    retry_after.min(self.cap_micros),
                ))
            });
        if let Some(denial) = denial {
            shard.record(hash(charges(request)), denial, now(), self.cap_micros);
        } else if has_denials(shard) {
            shard.tidy(now(), self.cap_micros);
        }
    }

    /// Invalidates the limits of a request until the guard is dropped. Must be held during a refund
    /// of these limits. Replies in flight at the drop are not cached either.
    pub(crate) fn forget<'a, 'r>(&'a self, request: &'a DecisionRequest<'r>) -> Invalidation<'a, 'r> {
        let invalidation = Invalidation { cache: self, request };
        invalidation.add(1);
        invalidation
    }

    /// Invalidates these limits until [`end_refund`](Self::end_refund). For refunds that outlive
    /// the borrow of a request.
    pub(crate) fn begin_refund(&self, limits: &[Identity]) {
        self.add(limits.iter().copied(), 1);
    }

    /// Ends the invalidation of [`begin_refund`](Self::begin_refund).
    pub(crate) fn end_refund(&self, limits: &[Identity]) {
        self.add(limits.iter().copied(), FORGOTTEN - 1);
    }

    fn add(&self, limits: impl Iterator<Item = Identity>, number: u64) {
        for generation in limits.filter_map(|limit| self.generation_of(limit)) {
            generation.fetch_add(number, Ordering::AcqRel);
        }
    }

    /// Returns the sum of the limits' invalidation counters; `None` during an invalidation.
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

/// Returns whether a shard has denials. A stale result only causes a request to the store.
fn has_denials(shard: &DenialShard) -> bool {
    shard.rotate_at.load(Ordering::Relaxed) != EMPTY
}

/// The charge of one limit in a request.
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

/// Guard of an invalidation.
#[derive(Debug)]
#[must_use = "the limits are invalid while this is held"]
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

/// Combines the hashes of the identities; the table compares the identities themselves.
fn hash<'a>(charges: impl Iterator<Item = LimitCost<'a>>) -> u64 {
    charges.fold(0, |list, charge| list.rotate_left(1) ^ charge.identity.hash())
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests;
