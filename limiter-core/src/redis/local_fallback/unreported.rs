//! Permits that this replica admitted without Redis, until they are reported.
//!
//! During an outage Redis refills its limits as if no call were admitted. So each permit of a share
//! is recorded here, and charged in Redis as soon as Redis answers
//! ([`reconciler`](crate::redis::reconciler)). A permit of a window is removed when it leaves the
//! window. Permits of a level are removed after quota / rate, when Redis would be full again. From
//! then on Redis cannot grant the recorded permits again, so the amount decreases at the share's
//! rate. An earlier decrease would forget permits that Redis grants again; without a decrease, the
//! debt of a long outage would grow with its length.
//!
//! A replica that reports does not know the permits that others have yet to report. A limit whose
//! permits could not be reported for [`RECONCILE_AFTER`] is therefore *reconciling*: until
//! [`RECONCILE_FOR`] after the report, Redis and the share both have to admit a call, so that all
//! replicas together stay within their shares until the last of them has reported.
//!
//! Tests: `local_fallback/bound_tests.rs`, which measures the permits that replicas admit in random
//! outages; `unreported/tests.rs`, `tests/outages.rs`.

use std::time::Duration;

use hashbrown::HashTable;

use crate::algorithm::{ScaleChange, UsageCorrection, scale_change};
use crate::identity::Identity;
use crate::key::Key;
use crate::policy::{Algorithm, Policy, Rate};
use crate::request::ValidatedLimit;
use crate::support::bounded_counter::BoundedCounter;
use crate::support::sync::atomic::{AtomicUsize, Ordering};
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::{MAX_EXACT, Timestamp, micros_ceil};

const SHARDS: usize = 16;
/// The age of an unreported decision at which its limit is reconciling.
pub(crate) const RECONCILE_AFTER: Duration = Duration::from_secs(1);
/// The time that other replicas have for their reports after this one's.
pub(crate) const RECONCILE_FOR: Duration = Duration::from_secs(1);

/// A bounded table of limits with unreported permits, or that are reconciling.
#[derive(Debug)]
pub(crate) struct UnreportedPermits {
    shards: Box<[Mutex<HashTable<UnreportedEntry>>]>,
    /// The number of entries in all shards, mostly none: calls read it without a lock.
    entries: BoundedCounter,
    /// The shard from which the next batch is taken.
    next_shard: AtomicUsize,
}

/// A limit with unreported permits.
#[derive(Clone, Debug)]
pub(crate) struct UnreportedLimit {
    pub(crate) identity: Identity,
    pub(crate) policy: Policy,
    key: Key<'static>,
}

/// Permits taken from the table to be reported.
#[derive(Debug)]
pub(crate) struct PermitReport {
    /// In the algorithm's own unit.
    pub(crate) amount: u64,
    permits: Permits,
}

#[derive(Debug)]
struct UnreportedEntry {
    limit: UnreportedLimit,
    permits: Option<Permits>,
    reconciling_until: Timestamp,
}

/// Unreported permits of one limit.
#[derive(Clone, Copy, Debug)]
struct Permits {
    /// In the numbers of the policy.
    amount: u64,
    /// As the share counts them, which a proportional change does not convert.
    charged: u64,
    /// The rate of the share, for a level.
    rate: Option<Rate>,
    /// The moment of the first call that was decided without Redis.
    since: Timestamp,
    /// The moment from which on the amount contains permits of a level without a gap.
    run_since: Timestamp,
    /// The moment from which on the amount decreases.
    decreases_from: Timestamp,
    /// The moment up to which it has decreased.
    at: Timestamp,
}

impl UnreportedPermits {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            entries: BoundedCounter::new(max),
            next_shard: AtomicUsize::new(0),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.count() == 0
    }

    /// Records a cost of this limit that was charged to its share. Without capacity for another
    /// limit it is not reported.
    pub(crate) fn record(&self, limit: &ValidatedLimit<'_>, cost: u64, share: &Algorithm, now: Timestamp) {
        let mut shard = self.shard(limit.identity);
        let entry = match find(&mut shard, limit.identity) {
            Some(entry) => entry,
            None if !self.entries.try_add(1) => return,
            None => {
                let entry = UnreportedEntry {
                    limit: UnreportedLimit {
                        identity: limit.identity,
                        policy: limit.policy.clone(),
                        key: limit.key.clone().into_owned(),
                    },
                    permits: None,
                    reconciling_until: Timestamp::default(),
                };
                let hash = |entry: &UnreportedEntry| entry.limit.identity.hash();
                shard.insert_unique(limit.identity.hash(), entry, hash).into_mut()
            }
        };
        let converted = entry.converted_cost(limit.policy, cost);
        if converted.is_none() && entry.limit.policy.algorithm() != limit.policy.algorithm() {
            entry.continue_under(limit.policy);
        }
        let permits = entry.permits.get_or_insert_with(|| Permits::none_since(now));
        permits.decrease(now);
        if converted.is_none() || permits.rate.is_none() {
            permits.rate = share.level_rate();
        }
        let costs = (converted.unwrap_or(cost), cost);
        permits.add(costs, entry.limit.policy.algorithm(), now);
    }

    /// Takes back a refunded cost, as far as it is not reported. `whole_at` is the time at which
    /// the share has refilled the usage at its decision, 0 if unknown. A cost that came back before
    /// the recorded permits is not among them. Both times are those of the share's state.
    pub(crate) fn take_back(&self, limit: &ValidatedLimit<'_>, whole_at: u64, now: u64) {
        let mut shard = self.shard(limit.identity);
        let Some(entry) = find(&mut shard, limit.identity) else {
            return;
        };
        let cost = entry
            .converted_cost(limit.policy, limit.cost)
            .unwrap_or(limit.cost);
        let is_recorded = |permits: &&mut Permits| whole_at == 0 || whole_at > permits.oldest(now);
        if let Some(permits) = entry.permits.as_mut().filter(is_recorded) {
            permits.amount = permits.amount.saturating_sub(cost);
            permits.charged = permits.charged.saturating_sub(limit.cost);
        }
    }

    /// Returns whether a call of this limit needs a permit of the share as well as one of Redis.
    pub(crate) fn is_reconciling(&self, identity: Identity, now: Timestamp) -> bool {
        !self.is_empty()
            && find(&mut self.shard(identity), identity).is_some_and(|entry| entry.is_reconciling(now))
    }

    /// Some limits with unreported permits: all of some shards, others each time.
    pub(crate) fn batch(&self, max: usize) -> Vec<UnreportedLimit> {
        let mut batch = Vec::new();
        for _ in 0..SHARDS {
            let number = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let unreported = |entry: &&UnreportedEntry| entry.permits.is_some();
            let shard = self.shard_of(number);
            batch.extend(shard.iter().filter(unreported).map(|entry| entry.limit.clone()));
            if batch.len() >= max {
                break;
            }
        }
        batch
    }

    /// Takes the permits of a limit that still count, in the numbers of the policy in force. `live`
    /// is the number of a window's permits that have not left it.
    pub(crate) fn take(
        &self,
        limit: &ValidatedLimit<'_>,
        live: impl FnOnce() -> u64,
        now: Timestamp,
    ) -> Option<PermitReport> {
        let mut shard = self.shard(limit.identity);
        let entry = find(&mut shard, limit.identity)?;
        let is_reconciling = entry.is_reconciling(now);
        let permits = entry.permits.as_mut()?;
        permits.decrease(now);
        if permits.rate.is_none() {
            permits.expire(live(), entry.limit.policy.algorithm().quota());
        }
        if limit.policy.is_scaled() && entry.limit.policy.algorithm() != limit.policy.algorithm() {
            entry.continue_under(limit.policy);
        }
        let permits = entry.permits.take()?;
        if is_reconciling {
            entry.reconciling_until = now.after(RECONCILE_FOR);
        }
        Some(PermitReport {
            amount: permits.amount,
            permits,
        })
    }

    /// Ends the report: other replicas have time for theirs from now on.
    pub(crate) fn finish(&self, identity: Identity, now: Timestamp) {
        if let Some(entry) = find(&mut self.shard(identity), identity) {
            if now < entry.reconciling_until {
                entry.reconciling_until = now.after(RECONCILE_FOR);
            }
        }
    }

    /// Redis did not receive the report.
    pub(crate) fn restore(&self, identity: Identity, report: PermitReport) {
        if let Some(entry) = find(&mut self.shard(identity), identity) {
            let mut permits = report.permits;
            permits.amount = report.amount;
            if let Some(later) = entry.permits {
                permits.amount = permits.amount.saturating_add(later.amount).min(MAX_EXACT);
                permits.charged = permits.charged.saturating_add(later.charged).min(MAX_EXACT);
                permits.decreases_from = permits.decreases_from.max(later.decreases_from);
            }
            entry.permits = Some(permits);
        }
    }

    /// Removes limits that have nothing to report and are not reconciling.
    pub(crate) fn remove_settled(&self, now: Timestamp) {
        for number in 0..SHARDS {
            let mut shard = self.shard_of(number);
            let before = shard.len();
            shard.retain(|entry| entry.permits.is_some() || now < entry.reconciling_until);
            self.entries.subtract(before - shard.len());
        }
    }

    pub(crate) fn forget(&self, identity: Identity) {
        let mut shard = self.shard(identity);
        let is_it = |entry: &UnreportedEntry| entry.limit.identity == identity;
        if let Ok(entry) = shard.find_entry(identity.hash(), is_it) {
            entry.remove();
            self.entries.subtract(1);
        }
    }

    /// Returns the oldest moment of an unreported permit.
    #[cfg(test)]
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        let shards = (0..SHARDS).map(|number| self.shard_of(number));
        let oldest = |shard: MutexGuard<'_, HashTable<UnreportedEntry>>| {
            let permits = shard.iter().filter_map(|entry| entry.permits);
            permits.map(|permits| permits.since).min()
        };
        shards.filter_map(oldest).min()
    }

    fn shard(&self, identity: Identity) -> MutexGuard<'_, HashTable<UnreportedEntry>> {
        self.shard_of(identity.shard(SHARDS))
    }

    fn shard_of(&self, number: usize) -> MutexGuard<'_, HashTable<UnreportedEntry>> {
        #[expect(clippy::indexing_slicing, reason = "there are `SHARDS` of them")]
        let shard = &self.shards[number];
        shard.lock()
    }
}

impl UnreportedLimit {
    /// Returns the limit, at this cost.
    pub(crate) fn limit(&self, cost: u64) -> ValidatedLimit<'_> {
        ValidatedLimit {
            identity: self.identity,
            policy: &self.policy,
            key: (&self.key).into(),
            cost,
            blocks: None,
        }
    }
}

impl UnreportedEntry {
    /// Returns a cost under a policy in the numbers of the recorded policy, if this is a
    /// proportional change of it: a reservation from before the change may be settled after it.
    fn converted_cost(&self, policy: &Policy, cost: u64) -> Option<u64> {
        let change = scaling(policy, &self.limit.policy).filter(|_| {
            // A later change may restore the numbers of the earlier policy.
            scaling(&self.limit.policy, policy).is_none()
        })?;
        Some(scale_change(&change, cost, UsageCorrection::ForceCharge).0)
    }

    /// Replaces the policy. If it was changed proportionally, the permits are converted to its
    /// numbers, as Redis converts the usage.
    fn continue_under(&mut self, policy: &Policy) {
        if let (Some(change), Some(permits)) = (scaling(&self.limit.policy, policy), &mut self.permits) {
            (permits.amount, _) = scale_change(&change, permits.amount, UsageCorrection::ForceCharge);
        }
        self.limit.policy = policy.clone();
    }

    fn is_reconciling(&self, now: Timestamp) -> bool {
        let is_late = |permits: &Permits| now.since(permits.since) >= RECONCILE_AFTER;
        now < self.reconciling_until || self.permits.as_ref().is_some_and(is_late)
    }
}

impl Permits {
    fn none_since(now: Timestamp) -> Self {
        Self {
            amount: 0,
            charged: 0,
            rate: None,
            since: now,
            run_since: now,
            decreases_from: now,
            at: now,
        }
    }

    /// Adds a cost in the numbers of the policy, and as the share counts it.
    fn add(&mut self, (amount, charged): (u64, u64), whole: &Algorithm, now: Timestamp) {
        self.decrease(now);
        if self.amount == 0 {
            if let Some(rate) = whole.level_rate() {
                self.run_since = now;
                let whole_after = rate.time_for(whole.quota(), 0);
                self.decreases_from = Timestamp::from_micros(now.as_micros().saturating_add(whole_after));
            }
        }
        self.amount = self.amount.saturating_add(amount).min(MAX_EXACT);
        self.charged = self.charged.saturating_add(charged).min(MAX_EXACT);
    }

    /// Returns the time before which none of the permits was charged, as far as it is known: those
    /// of a window have not left it.
    fn oldest(&self, now: u64) -> u64 {
        match self.rate {
            Some(_) => self.run_since.as_micros(),
            None => now,
        }
    }

    /// Removes the permits that have left a window, of which the share still counts `live`, at most
    /// the quota.
    fn expire(&mut self, live: u64, quota: u64) {
        if live >= quota {
            self.amount = self.amount.min(quota);
        } else if live < self.charged {
            let amount = u128::from(self.amount) * u128::from(live);
            let amount = amount.div_ceil(u128::from(self.charged));
            // Bounded by the previous amount.
            self.amount = u64::try_from(amount).unwrap_or(self.amount);
            self.charged = live;
        }
    }

    fn decrease(&mut self, now: Timestamp) {
        let Some(rate) = self.rate else { return };
        let elapsed = micros_ceil(now.since(self.at.max(self.decreases_from)));
        self.amount = self.amount.saturating_sub(rate.accrue(elapsed, 0).0);
        self.at = now;
    }
}

/// Returns the proportional change between two policies, if the later one is its result.
fn scaling<'a>(before: &Policy, after: &'a Policy) -> Option<ScaleChange<'a>> {
    let scaled = after.scaled()?;
    let is_change =
        scaled.before.algorithm() == before.algorithm() && after.algorithm() != before.algorithm();
    is_change.then(|| ScaleChange::from_policies(scaled, after))
}

fn find(shard: &mut HashTable<UnreportedEntry>, identity: Identity) -> Option<&mut UnreportedEntry> {
    shard.find_mut(identity.hash(), |entry| entry.limit.identity == identity)
}

#[cfg(test)]
mod tests;
