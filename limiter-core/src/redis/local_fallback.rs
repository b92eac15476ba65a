//! Decides in process while the store is unavailable: each replica applies its share of the policy.
//!
//! The share is a limit with its own state that survives outages, so that in any time T a replica
//! admits no more than its share's quota and rate allow, regardless of the number of outages. The
//! remaining permits of the last reply from the store can only reduce the share. Permits that a
//! share admits are recorded (`unreported`) and charged in Redis when it is available again.
//!
//! # Bound
//!
//! Let Q be the quota, r the rate, n the known number of replicas, and A the longest time for which
//! permits of one replica stay unreported while another replica admits calls by Redis alone. In any
//! time T all replicas together admit at most `Q + r·T + (Q + n + r·A)`. Reason: let t be the last
//! moment at which Redis alone admitted a call. Until t, Redis has admitted and been charged at
//! most `Q + r·t`. All other permits were charged to shares after `t - A`: those that are not
//! reported at t because of their age, and those after t because every later call is charged to a
//! share. The shares together admit at most `Q + n + r·(T - t + A)` in that time.
//!
//! The value of A depends on the fault:
//!
//! - If all replicas lose Redis, A is at most one second and the time of a report.
//! - If replies are sometimes late, A is the pause between reports.
//! - If k of n replicas lose Redis, A is the length of the outage, which adds at most
//!   `k/n·(Q + r·A) + k`.
//!
//! For windows the term with A is 0, since no window contains more than a quota of each kind.
//!
//! Tests: `local_fallback/bound_tests.rs` (the bound), `local_fallback/tests.rs`,
//! `tests/local_fallback.rs`, `tests/outages.rs`.

mod remaining_share;
mod share_settlement;
pub(crate) mod unreported;

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::algorithm::{Mode, StepOutcome};
use crate::error::StoreError;
use crate::memory::MemoryStore;
use crate::policy::{Algorithm, CounterWindow, FixedWindow, Policy, SlidingWindow};
use crate::redis::local_fallback::remaining_share::{RemainingShare, refill_in, weighted_usage};
pub(crate) use crate::redis::local_fallback::share_settlement::ShareCharge;
use crate::redis::local_fallback::unreported::{PermitReport, UnreportedLimit, UnreportedPermits};
use crate::request::{DecisionRequest, ValidatedLimit, Verdict};
use crate::support::clock::Clock;
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::{Timestamp, micros_ceil};

/// The limits of this replica alone.
#[derive(Debug)]
pub(crate) struct LocalFallback {
    store: MemoryStore,
    last_known: LastKnown,
    unreported: UnreportedPermits,
    clock: Clock,
}

impl LocalFallback {
    /// `max_keys` bounds the tables of shares, of last known remaining permits, and of unreported
    /// permits, each.
    pub(crate) fn new(clock: Clock, max_keys: usize) -> Self {
        Self {
            store: MemoryStore::new(clock.clone(), max_keys),
            last_known: LastKnown::new(max_keys),
            unreported: UnreportedPermits::new(max_keys),
            clock,
        }
    }

    /// Records the store's remaining permits.
    pub(crate) fn on_verdict(&self, request: &DecisionRequest<'_>, verdict: &Verdict, now: Timestamp) {
        let now = now.as_micros();
        for (limit, outcome) in request.limits.iter().zip(&verdict.outcomes) {
            let left = LastRemaining {
                remaining: outcome.remaining,
                debt: debt(limit, outcome),
                as_of: now,
                until: now.saturating_add(outcome.reset_after),
                decided_at: verdict.decided_at.as_micros(),
            };
            self.last_known.record(limit.identity.hash(), left);
        }
    }

    /// Drops the local usage and the last known state of a request's limits.
    pub(crate) fn forget(&self, request: &DecisionRequest<'_>) {
        for limit in &request.limits {
            self.last_known.forget(limit.identity.hash());
            self.store.forget(limit);
            self.unreported.forget(limit.identity);
        }
    }

    /// Returns the permits that Redis has not received.
    pub(crate) fn unreported(&self) -> &UnreportedPermits {
        &self.unreported
    }

    /// Returns whether the share has to admit a call besides Redis, for one of its limits.
    pub(crate) fn is_reconciling(&self, request: &DecisionRequest<'_>) -> bool {
        let now = self.clock.now();
        let mut limits = request.limits.iter();
        limits.any(|limit| self.unreported.is_reconciling(limit.identity, now))
    }

    /// Records a request that the share of one of `replicas` decided without Redis. A denied one
    /// has no permits to report; it shows that the outage concerns its limits.
    pub(crate) fn record(&self, request: &DecisionRequest<'_>, verdict: &Verdict, replicas: u32) {
        let (now, is_allowed) = (self.clock.now(), verdict.fits());
        for limit in request.limits.iter().filter(|limit| limit.is_charged()) {
            let share = limit.policy.algorithm().share(replicas);
            let cost = if is_allowed { limit.cost } else { 0 };
            self.unreported.record(limit, cost, &share, now);
        }
    }

    /// Takes the unreported permits of a limit that still count, in the numbers of the policy in
    /// force.
    pub(crate) fn take_unreported(
        &self,
        limit: &UnreportedLimit,
        in_force: &Policy,
        now: Timestamp,
    ) -> Option<PermitReport> {
        let algorithm = limit.policy.algorithm();
        let live = || {
            // The usage in Redis does not matter here, so the full policy applies and not the
            // share.
            let result = self
                .store
                .decide_in_place(limit.identity, algorithm, 0, Mode::Peek);
            result.map_or(0, |(_, outcome)| {
                algorithm.quota().saturating_sub(outcome.remaining)
            })
        };
        let limit = ValidatedLimit {
            policy: in_force,
            ..limit.limit(0)
        };
        self.unreported.take(&limit, live, now)
    }

    /// Decides by the share of one of `replicas`. A cost above the share is denied.
    pub(crate) fn decide(&self, request: &DecisionRequest<'_>, replicas: u32) -> Result<Verdict, StoreError> {
        self.decide_by(request, |limit, now| self.share(limit, replicas, now))
    }

    /// Decides a call that Redis has to admit too, by the full share of one of `replicas`. The last
    /// reply of Redis does not reduce it: it includes the calls that the share has counted.
    pub(crate) fn decide_besides_redis(
        &self,
        request: &DecisionRequest<'_>,
        replicas: u32,
    ) -> Result<Verdict, StoreError> {
        self.decide_by(request, |limit, _| {
            let whole = limit.policy.algorithm().share(replicas);
            RemainingShare {
                applied: whole,
                whole,
                left: None,
            }
        })
    }

    fn decide_by(
        &self,
        request: &DecisionRequest<'_>,
        share: impl Fn(&ValidatedLimit<'_>, u64) -> RemainingShare,
    ) -> Result<Verdict, StoreError> {
        let now = self.clock.now().as_micros();
        let limits = request.limits.iter();
        let shares: SmallVec<[RemainingShare; 2]> = limits.map(|limit| share(limit, now)).collect();
        let applied: SmallVec<[Algorithm; 2]> = shares.iter().map(|share| share.applied).collect();
        let each = || request.limits.iter().zip(&shares);
        let mode = if request.mode == Mode::Charge && each().any(|(limit, share)| share.is_below(limit.cost))
        {
            Mode::Refuse
        } else {
            request.mode
        };
        let mut verdict = self
            .store
            .decide_as(request, mode, &applied, |number, state, moment| {
                if let Some(share) = shares.get(number) {
                    share.begin(state, moment.own);
                }
            })?;
        for (outcome, (limit, share)) in verdict.outcomes.iter_mut().zip(each()) {
            share.finish(outcome, limit.cost, now);
        }
        Ok(verdict)
    }

    fn share(&self, limit: &ValidatedLimit<'_>, replicas: u32, now: u64) -> RemainingShare {
        // A block of a key is not divided among replicas.
        let replicas = if limit.blocks.is_some() { 1 } else { replicas };
        let whole = limit.policy.algorithm().share(replicas);
        let left = self
            .last_known
            .get(limit.identity.hash(), now)
            .map(|left| LastRemaining {
                remaining: left.remaining.div_ceil(u64::from(replicas)).min(whole.quota()),
                debt: left.debt.div_ceil(u64::from(replicas)),
                ..left
            });
        let applied = match (whole, left) {
            // The store's grants count until its newest permit leaves the window.
            (Algorithm::SlidingWindow(window), Some(left)) => Algorithm::SlidingWindow(SlidingWindow {
                limit: left.remaining,
                ..window
            }),
            // The store's grants count until its period ends.
            (Algorithm::FixedWindow(window), Some(left)) => Algorithm::FixedWindow(FixedWindow {
                limit: left.remaining,
                ..window
            }),
            (Algorithm::CounterWindow(window), Some(left)) => Algorithm::CounterWindow(CounterWindow {
                limit: window.limit - weighted_usage(window, left, now),
                ..window
            }),
            _ => whole,
        };
        RemainingShare { applied, whole, left }
    }
}

/// Returns the debt beyond the quota, derived from the time until the usage is zero. Leased tokens
/// return later than at the rate; the duration of a lease is subtracted so that a lease does not
/// count as debt.
fn debt(limit: &ValidatedLimit<'_>, outcome: &StepOutcome) -> u64 {
    if outcome.remaining > 0 {
        return 0;
    }
    let algorithm = limit.policy.algorithm();
    let lease = limit.policy.lease().map_or(0, micros_ceil);
    let comes = refill_in(algorithm, outcome.reset_after.saturating_sub(lease));
    comes.saturating_sub(algorithm.quota())
}

/// Number of locks of the table of last known permits.
const SHARDS: usize = 64;

/// The remaining permits of one limit at the last reply of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastRemaining {
    /// In the algorithm's own unit.
    pub(crate) remaining: u64,
    /// Debt that must be refilled before any permit is available.
    pub(crate) debt: u64,
    /// Local time of the reply.
    pub(crate) as_of: u64,
    /// From this time on, the usage is zero.
    pub(crate) until: u64,
    /// Store time of the reply.
    pub(crate) decided_at: u64,
}

/// Maximum disorder of replies. A larger difference means that the store's clock stepped back.
const OVERTAKEN_MICROS: u64 = 1_000_000;

impl LastRemaining {
    fn is_older_than(&self, recorded: &Self) -> bool {
        let age = recorded.decided_at.saturating_sub(self.decided_at);
        (1..=OVERTAKEN_MICROS).contains(&age)
    }
}

/// The remaining permits of each limit at the last reply, in a table of bounded size.
///
/// Invariant: a reply that arrives late does not replace a later one, unless the store's clock
/// stepped back.
///
/// The table is keyed by the hash of the limit's identity. Hashes are random 64-bit numbers; two
/// limits of a full table collide once in billions of tables, and one would then start with the
/// other's state.
///
/// The newest entries are kept: when the young generation of a shard is full, it becomes the old
/// one, and the old one is dropped.
#[derive(Debug)]
pub(crate) struct LastKnown {
    shards: Box<[Mutex<Shard>]>,
    max_per_half: usize,
}

#[derive(Debug, Default)]
struct Shard {
    young: HashTable<(u64, LastRemaining)>,
    old: HashTable<(u64, LastRemaining)>,
}

impl LastKnown {
    /// `max` bounds the entries; at least the newest half is kept.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            max_per_half: max.div_ceil(2 * SHARDS),
        }
    }

    /// Records the remaining permits.
    pub(crate) fn record(&self, hash: u64, left: LastRemaining) {
        let Some(mut shard) = self.shard(hash) else { return };
        let is_it = |(other, _): &(u64, LastRemaining)| *other == hash;
        if let Some((_, recorded)) = shard.young.find_mut(hash, is_it) {
            if !left.is_older_than(recorded) {
                *recorded = left;
            }
            return;
        }
        let old = shard.old.find(hash, is_it);
        if old.is_some_and(|(_, recorded)| left.is_older_than(recorded)) {
            return;
        }
        if shard.young.len() >= self.max_per_half {
            shard.old = std::mem::take(&mut shard.young);
        }
        shard.young.insert_unique(hash, (hash, left), |(hash, _)| *hash);
    }

    /// Returns the recorded state while any of its usage still counts.
    pub(crate) fn get(&self, hash: u64, now: u64) -> Option<LastRemaining> {
        let left = self.shard(hash)?.get(hash)?;
        (left.until > now).then_some(left)
    }

    pub(crate) fn forget(&self, hash: u64) {
        let Some(mut shard) = self.shard(hash) else { return };
        let Shard { young, old } = &mut *shard;
        for half in [young, old] {
            if let Ok(entry) = half.find_entry(hash, |(other, _)| *other == hash) {
                entry.remove();
            }
        }
    }

    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, Shard>> {
        // The table uses the low and the top seven bits, so the shard uses other ones.
        let number = usize::try_from(hash >> 48).unwrap_or(0) % SHARDS;
        let shard = self.shards.get(number)?;
        Some(shard.lock())
    }
}

impl Shard {
    fn get(&self, hash: u64) -> Option<LastRemaining> {
        let is_it = |(other, _): &(u64, LastRemaining)| *other == hash;
        let (_, left) = self
            .young
            .find(hash, is_it)
            .or_else(|| self.old.find(hash, is_it))?;
        Some(*left)
    }
}

#[cfg(test)]
mod bound_tests;
#[cfg(test)]
mod tests;
