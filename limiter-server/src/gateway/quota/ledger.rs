//! The ledger of one budget: assigned buckets never admit more than the policy.
//!
//! A holder is a bucket of a stream. Three properties of Envoy matter: its bucket refills
//! continuously, a bucket with changed numbers starts full, and an assignment applies until its
//! time to live ends, also after the end of the stream. The ledger divides the permits of a token
//! lease of the library. It counts
//!
//! - `stored`, the leased permits that are not assigned,
//! - for each holder the largest number of permits that its bucket can contain, and its rate.
//!
//! A changed bucket is paid from `stored`: its permits count as granted. Until the change is
//! certainly in force, the old and the new bucket count together, and the faster of both rates
//! counts. The refill of the buckets is paid from `stored` as well, and is reported as used when
//! the lease is renewed; the sum of the rates never exceeds the rate of the policy. The permits of
//! a bucket that has ended count as spent. Stored and leased permits of the policy never exceed its
//! capacity, so in any time T at most capacity + rate · T calls are admitted. Test:
//! `tests/quota_ledger.rs`.
//!
//! The nodes of a server share one ledger: each step begins with the recorded state (`record.rs`),
//! and its assignments are sent only if the renewal of the lease recorded the state after it.

use std::collections::BTreeMap;
use std::time::Duration;

use limiter_core::Timestamp;

use crate::gateway::quota::bucket::{AssignedBucket, proportional_permits, whole_refill};
use crate::gateway::quota::shares::{MicroRate, divide};

const MILLION: u64 = 1_000_000;
/// Millionths of permits in a thousandth.
const PER_THOUSANDTH: u64 = 1_000;
/// The part of the rate that is not assigned, and pays for changed buckets: one of this number.
const RESERVE: u64 = 16;
/// The part of the capacity that is never leased: one of this number.
const UNLEASED: u64 = 8;
/// An assignment is renewed in this part of its time to live: one of this number.
const RENEWALS: u32 = 4;
/// An assignment changes if its rate changes by more than one of this number.
const TOLERANCE: u64 = 8;
/// The tolerance for a holder whose demand exceeds its rate: it uses the permits of the new bucket.
const SATURATED_TOLERANCE: u64 = 32;

/// A bucket of a stream: a random number.
pub type HolderId = u64;

/// An assignment for a holder, to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAssignment {
    /// The holder.
    pub holder: HolderId,
    /// The bucket. An unchanged bucket is sent again, because this renews its time to live.
    pub bucket: AssignedBucket,
    /// True if the bucket is new or changed, and starts full.
    pub is_changed: bool,
}

/// The numbers of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaBudget {
    /// The capacity of the policy in permits.
    pub capacity: u64,
    /// The rate of the policy.
    pub rate: MicroRate,
    /// The longest time from the decision on an assignment until the holder applies it.
    pub apply_within: Duration,
    /// The time to live of assignments.
    pub time_to_live: Duration,
}

/// The state of one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderState {
    /// The bucket.
    pub bucket: AssignedBucket,
    /// The bucket before, until the change is certainly in force.
    pub before: Option<(AssignedBucket, Timestamp)>,
    /// The time of the first assignment.
    pub assigned_at: Timestamp,
    /// The time of the last assignment, which the holder may have received at once.
    pub sent_at: Timestamp,
    /// The time from which no assignment applies.
    pub ends_at: Timestamp,
    /// The demand of the last report.
    pub demand: MicroRate,
    /// True if the stream has ended.
    pub has_ended: bool,
}

/// A holder without an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingHolder {
    /// The demand of the last report.
    pub demand: MicroRate,
    /// The time from which the holder no longer counts without a further step of its node.
    pub until: Timestamp,
}

/// The usage of the lease in a step, to be reported with its renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerUsage {
    /// The refill of the buckets, in thousandths of permits.
    pub refilled: u64,
    /// The permits of buckets that have ended or were replaced, in thousandths of permits.
    pub spent: u64,
    /// The permits of the buckets, in thousandths of permits.
    pub held: u64,
    /// The permits to lease, in thousandths of permits.
    pub wanted: u64,
}

impl HolderState {
    /// The millionths of permits that its buckets can contain.
    fn permits(&self) -> u64 {
        self.bucket.permits() + self.before.map_or(0, |(before, _)| before.permits())
    }

    fn rate(&self) -> MicroRate {
        let before = self.before.map_or(0, |(before, _)| before.rate());
        self.bucket.rate().max(before)
    }
}

/// Divides a budget among holders.
#[derive(Clone, Debug)]
pub struct QuotaLedger {
    budget: QuotaBudget,
    /// Millionths of leased permits that are not assigned. Negative if the refill of buckets
    /// exceeded them.
    stored: i128,
    /// Millionths of permits that were used since the state was recorded.
    refilled: u64,
    spent: u64,
    updated_at: Timestamp,
    holders: BTreeMap<HolderId, HolderState>,
    waiting: BTreeMap<HolderId, WaitingHolder>,
}

impl QuotaLedger {
    /// The ledger of a lease with this number of permits, in thousandths, and these holders as
    /// recorded at a time.
    #[must_use]
    pub fn recorded(
        budget: QuotaBudget,
        leased: u64,
        updated_at: Timestamp,
        holders: BTreeMap<HolderId, HolderState>,
        waiting: BTreeMap<HolderId, WaitingHolder>,
    ) -> Self {
        let assigned: u64 = holders.values().map(HolderState::permits).sum();
        Self {
            budget,
            stored: i128::from(leased) * i128::from(PER_THOUSANDTH) - i128::from(assigned),
            refilled: 0,
            spent: 0,
            updated_at,
            holders,
            waiting,
        }
    }

    /// The holders with an assignment.
    #[must_use]
    pub fn holders(&self) -> &BTreeMap<HolderId, HolderState> {
        &self.holders
    }

    /// The holders without an assignment.
    #[must_use]
    pub fn waiting(&self) -> &BTreeMap<HolderId, WaitingHolder> {
        &self.waiting
    }

    /// The time of the state.
    #[must_use]
    pub fn updated_at(&self) -> Timestamp {
        self.updated_at
    }

    /// Sets the demand of a holder from its report.
    pub fn report(&mut self, holder: HolderId, demand: MicroRate) {
        match self.holders.get_mut(&holder) {
            Some(known) => known.demand = demand,
            None => {
                let until = self.updated_at.after(self.budget.time_to_live);
                self.waiting.insert(holder, WaitingHolder { demand, until });
            }
        }
    }

    /// Records the end of a stream. Its bucket counts until its time to live ends.
    pub fn end(&mut self, holder: HolderId) {
        self.waiting.remove(&holder);
        if let Some(known) = self.holders.get_mut(&holder) {
            known.has_ended = true;
        }
    }

    /// Adds a holder whose assignment is in force although the record was lost.
    pub fn restore(&mut self, holder: HolderId, state: HolderState) {
        if state.ends_at > self.updated_at && !self.holders.contains_key(&holder) {
            self.stored -= i128::from(state.permits());
            self.holders.insert(holder, state);
        }
    }

    /// The leased permits that are not assigned, rounded down.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.stored_micros() / MILLION
    }

    fn stored_micros(&self) -> u64 {
        u64::try_from(self.stored.max(0)).unwrap_or(u64::MAX)
    }

    /// The bucket of a holder.
    #[must_use]
    pub fn assigned(&self, holder: &HolderId) -> Option<AssignedBucket> {
        self.holders.get(holder).map(|holder| holder.bucket)
    }

    /// The usage since the state was recorded, and the next lease.
    #[must_use]
    pub fn usage(&self) -> LedgerUsage {
        let assigned: u64 = self.holders.values().map(HolderState::permits).sum();
        let held = assigned.div_ceil(PER_THOUSANDTH);
        let capacity = self.budget.capacity.saturating_mul(1_000);
        let unleased = self.budget.capacity / UNLEASED * 1_000;
        LedgerUsage {
            refilled: self.refilled.div_ceil(PER_THOUSANDTH),
            spent: self.spent.div_ceil(PER_THOUSANDTH),
            held,
            wanted: (capacity - unleased).max(held.min(capacity)),
        }
    }

    /// Computes the assignments of the holders that `is_own` selects, to be sent when the state
    /// after them is recorded. All of them are sent, or counted as sent.
    pub fn assign(&mut self, now: Timestamp, is_own: impl Fn(&HolderId) -> bool) -> Vec<NewAssignment> {
        self.advance(now);
        let shares = self.shares().into_iter().filter(|(holder, _)| is_own(holder));
        let shares: Vec<_> = shares.collect();
        let mut assignments = Vec::new();
        // Falling rates first: they pay for nothing but free a rate for the next time.
        let (falling, rising): (Vec<_>, Vec<_>) = shares.into_iter().partition(|(holder, share)| {
            let assigned = self.holders.get(holder);
            assigned.is_some_and(|of| *share < of.bucket.rate())
        });
        for (holder, share) in falling.into_iter().chain(rising) {
            let wanted = self.bucket(holder, share);
            let changed = wanted.filter(|bucket| self.change(holder, *bucket, now));
            let is_changed = changed.is_some();
            let arrives_at = now.after(self.budget.apply_within);
            // An assignment that may have ended would start full, without a payment.
            let may_have_ended = |known: &HolderState| {
                !is_changed && arrives_at >= known.sent_at.after(self.budget.time_to_live)
            };
            let renew_after = self.budget.time_to_live / RENEWALS;
            let is_recent = |known: &HolderState| !is_changed && now < known.sent_at.after(renew_after);
            if let Some(known) = self
                .holders
                .get_mut(&holder)
                .filter(|known| !may_have_ended(known) && !is_recent(known))
            {
                known.sent_at = now;
                known.ends_at = now.after(self.budget.apply_within + self.budget.time_to_live);
                assignments.push(NewAssignment {
                    holder,
                    bucket: known.bucket,
                    is_changed,
                });
            }
        }
        assignments
    }

    /// Pays for the refill of the buckets, and drops the buckets that no longer apply.
    pub fn advance(&mut self, now: Timestamp) {
        let mut at = self.updated_at;
        // The rate in force changes with each end of a bucket.
        while at < now {
            let ends = self.holders.values().flat_map(|holder| {
                let before = holder.before.map(|(_, until)| until);
                before.into_iter().chain([holder.ends_at])
            });
            let next = ends.filter(|end| *end > at).min().map_or(now, |end| end.min(now));
            let assigned: u64 = self.holders.values().map(HolderState::rate).sum();
            let refilled = u128::from(assigned) * next.since(at).as_micros();
            let refilled = u64::try_from(refilled.div_ceil(u128::from(MILLION))).unwrap_or(u64::MAX);
            self.refilled = self.refilled.saturating_add(refilled);
            self.stored -= i128::from(refilled);
            at = next;
            self.release(at);
        }
        self.updated_at = self.updated_at.max(now);
    }

    /// The permits of dropped buckets count as spent, because they may have been.
    fn release(&mut self, at: Timestamp) {
        let mut dropped = 0;
        for holder in self.holders.values_mut() {
            if let Some((before, _)) = holder.before.filter(|(_, until)| *until <= at) {
                dropped += before.permits();
                holder.before = None;
            }
        }
        self.holders.retain(|_, holder| {
            let is_kept = holder.ends_at > at;
            dropped += if is_kept { 0 } else { holder.permits() };
            is_kept
        });
        self.spent = self.spent.saturating_add(dropped);
        self.waiting.retain(|_, waiting| waiting.until > at);
    }

    fn shares(&self) -> Vec<(HolderId, MicroRate)> {
        let assigned = self.holders.iter().filter(|(_, holder)| !holder.has_ended);
        let assigned = assigned.map(|(holder, state)| (*holder, state.demand));
        let waiting = self.waiting.iter().map(|(holder, state)| (*holder, state.demand));
        let (holders, demands): (Vec<HolderId>, Vec<MicroRate>) = assigned.chain(waiting).unzip();
        holders
            .into_iter()
            .zip(divide(self.assignable(), &demands))
            .collect()
    }

    /// The rate that is divided. The rest pays for changes: with the whole rate assigned, stored
    /// permits would never return, and no bucket could change again.
    fn assignable(&self) -> MicroRate {
        self.budget.rate - self.budget.rate / RESERVE
    }

    /// The bucket for a share; `None` if the assigned one is near enough, or nothing can be
    /// assigned now.
    fn bucket(&self, holder: HolderId, share: MicroRate) -> Option<AssignedBucket> {
        let known = self.holders.get(&holder);
        // A second change before the first is in force would count three buckets.
        if known.is_some_and(|known| known.before.is_some()) {
            return None;
        }
        let current = known.map_or(0, |known| known.bucket.rate());
        let assigned: u64 = self.holders.values().map(HolderState::rate).sum();
        let available = current.saturating_add(self.assignable().saturating_sub(assigned));
        let target = share.min(available);
        let permits = proportional_permits(target, self.budget.rate, self.budget.capacity);
        // A change blocks the next one until it is in force, so the rate must change by enough. A
        // bucket that was assigned when few permits were stored grows later.
        let is_near = |known: &HolderState| {
            let is_small = u64::from(known.bucket.max_tokens) < permits / 2 && permits <= self.stored();
            let tolerance = match known.demand > current {
                true => SATURATED_TOLERANCE,
                false => TOLERANCE,
            };
            target.abs_diff(current) <= current / tolerance && !is_small
        };
        if known.is_some_and(is_near) {
            return None;
        }
        let (tokens_per_fill, fill_seconds) = whole_refill(target);
        let max_tokens = u32::try_from(permits.min(self.stored())).ok()?;
        let bucket = AssignedBucket {
            max_tokens,
            tokens_per_fill,
            fill_seconds,
        };
        let is_new = known.is_none_or(|known| known.bucket != bucket);
        let bucket = match known {
            Some(known) => bucket.distinct_from(known.bucket)?,
            None => bucket,
        };
        let fits = bucket.rate() <= available;
        (max_tokens > 0 && is_new && fits).then_some(bucket)
    }

    /// Pays for a bucket from the stored permits; false if they do not suffice.
    fn change(&mut self, holder: HolderId, bucket: AssignedBucket, now: Timestamp) -> bool {
        if self.stored < i128::from(bucket.permits()) {
            return false;
        }
        self.stored -= i128::from(bucket.permits());
        let until = now.after(self.budget.apply_within);
        let waiting = self.waiting.remove(&holder);
        let known = self.holders.entry(holder).or_insert(HolderState {
            bucket,
            before: None,
            assigned_at: now,
            sent_at: now,
            ends_at: now,
            demand: waiting.map_or(0, |waiting| waiting.demand),
            has_ended: false,
        });
        if known.bucket != bucket {
            known.before = Some((known.bucket, until));
            known.bucket = bucket;
        }
        true
    }
}
