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
//! counts. The lease declares the sum of the rates, and the policy is refilled at the rest of its
//! rate; the sum never exceeds the rate of the policy. The permits of a bucket that has ended count
//! as spent. Stored and leased permits of the policy never exceed its capacity, so in any time T at
//! most capacity + rate · T calls are admitted. After a reduction of the policy, the buckets exceed
//! its numbers until they have changed or ended (`ledger/changes.rs`). Test:
//! `tests/quota_ledger.rs`.
//!
//! The nodes of a server share one ledger: each step begins with the recorded state (`record.rs`),
//! and its assignments are sent only if the renewal of the lease recorded the state after it.

mod changes;

use std::collections::BTreeMap;
use std::time::Duration;

use limiter_core::Timestamp;

use crate::gateway::quota::bucket::AssignedBucket;
use crate::gateway::quota::shares::{MicroRate, divide};

const MILLION: u64 = 1_000_000;
/// Millionths of permits in a thousandth.
const PER_THOUSANDTH: u64 = 1_000;
/// The part of the capacity that is never leased: one of this number.
const UNLEASED: u64 = 8;
/// An assignment is renewed in this part of its time to live: one of this number.
const RENEWALS: u32 = 4;
/// The largest number of holders, with those that wait: the record of each has at most 100 bytes,
/// and all of them fit into the data of a lease (65,536 bytes), or no assignment is renewed.
const MAX_HOLDERS: usize = 640;

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
    /// The permits of buckets that have ended or were replaced, in thousandths of permits.
    pub spent: u64,
    /// The rate of the buckets, in millionths of the policy's rate.
    pub steady: u32,
    /// The permits of the buckets, in thousandths of permits.
    pub held: u64,
    /// The permits to lease, in thousandths of permits.
    pub wanted: u64,
}

impl HolderState {
    /// Returns the millionths of permits that its buckets can contain.
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
    /// Millionths of leased permits that are not assigned. Negative if the permits of restored
    /// buckets exceed them.
    stored: i128,
    /// Millionths of permits that were used since the state was recorded.
    spent: u64,
    updated_at: Timestamp,
    holders: BTreeMap<HolderId, HolderState>,
    waiting: BTreeMap<HolderId, WaitingHolder>,
    /// The rate that holders need of those above their shares, as of the last assignment.
    missing: MicroRate,
}

impl QuotaLedger {
    /// Returns the ledger of a lease with this number of permits, in thousandths, and these holders
    /// as recorded at a time.
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
            spent: 0,
            updated_at,
            holders,
            waiting,
            missing: 0,
        }
    }

    /// Returns the holders with an assignment.
    #[must_use]
    pub fn holders(&self) -> &BTreeMap<HolderId, HolderState> {
        &self.holders
    }

    /// Returns the holders without an assignment.
    #[must_use]
    pub fn waiting(&self) -> &BTreeMap<HolderId, WaitingHolder> {
        &self.waiting
    }

    /// Returns the time of the state.
    #[must_use]
    pub fn updated_at(&self) -> Timestamp {
        self.updated_at
    }

    /// Sets the demand of a holder from its report. A new holder above the largest number has no
    /// effect.
    pub fn report(&mut self, holder: HolderId, demand: MicroRate) {
        let is_full = self.holders.len() + self.waiting.len() >= MAX_HOLDERS;
        match self.holders.get_mut(&holder) {
            Some(known) => known.demand = demand,
            None if is_full && !self.waiting.contains_key(&holder) => {}
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

    /// Returns the leased permits that are not assigned, rounded down.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.stored_micros() / MILLION
    }

    fn stored_micros(&self) -> u64 {
        u64::try_from(self.stored.max(0)).unwrap_or(u64::MAX)
    }

    /// Returns the bucket of a holder.
    #[must_use]
    pub fn assigned(&self, holder: &HolderId) -> Option<AssignedBucket> {
        self.holders.get(holder).map(|holder| holder.bucket)
    }

    /// Returns the permits that can be leased.
    fn leasable(&self) -> u64 {
        self.budget.capacity - self.budget.capacity / UNLEASED
    }

    /// Returns the sum of the rates that may be in force.
    fn rate(&self) -> MicroRate {
        self.holders.values().map(HolderState::rate).sum()
    }

    /// Returns the usage since the state was recorded, and the next lease.
    #[must_use]
    pub fn usage(&self) -> LedgerUsage {
        let assigned: u64 = self.holders.values().map(HolderState::permits).sum();
        let held = assigned.div_ceil(PER_THOUSANDTH);
        let capacity = self.budget.capacity.saturating_mul(1_000);
        let (rate, whole) = (u128::from(self.rate()), u128::from(self.budget.rate.max(1)));
        let steady = (rate * u128::from(MILLION))
            .div_ceil(whole)
            .min(u128::from(MILLION));
        LedgerUsage {
            spent: self.spent.div_ceil(PER_THOUSANDTH),
            steady: u32::try_from(steady).unwrap_or(u32::MAX),
            held,
            wanted: self.leasable().saturating_mul(1_000).max(held.min(capacity)),
        }
    }

    /// Computes the assignments of the holders that `is_own` selects, to be sent when the state
    /// after them is recorded. All of them are sent, or counted as sent.
    pub fn assign(&mut self, now: Timestamp, is_own: impl Fn(&HolderId) -> bool) -> Vec<NewAssignment> {
        self.advance(now);
        let mut shares = self.shares();
        self.missing = self.missing_rate(&shares);
        shares.retain(|(holder, _)| is_own(holder));
        let mut assignments = Vec::new();
        // Falling rates first: after a reduction of the policy they must change.
        let (falling, rising): (Vec<_>, Vec<_>) = shares.into_iter().partition(|(holder, share)| {
            let assigned = self.holders.get(holder);
            assigned.is_some_and(|of| *share < of.bucket.rate())
        });
        for (holder, share) in falling.into_iter().chain(rising) {
            let must_change = self.must_change(holder, share);
            let wanted = self.bucket(holder, share);
            let is_changed = wanted.is_some();
            if let Some(bucket) = wanted {
                self.change(holder, bucket, now);
            } else if must_change {
                // The bucket ends with its time to live, and is paid again.
                continue;
            }
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

    /// Drops the buckets that no longer apply. Their permits count as spent, because they may have
    /// been.
    pub fn advance(&mut self, now: Timestamp) {
        self.follow_clock(now);
        let at = now;
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

    /// Sets the time of the state. If the clock of the store has moved back, all times move with
    /// it, or no assignment would be renewed until the clock has reached them again.
    fn follow_clock(&mut self, now: Timestamp) {
        let back = self.updated_at.as_micros().saturating_sub(now.as_micros());
        self.updated_at = now;
        if back == 0 {
            return;
        }
        let moved = |time: Timestamp| Timestamp::from_micros(time.as_micros().saturating_sub(back));
        for holder in self.holders.values_mut() {
            holder.before = holder.before.map(|(bucket, until)| (bucket, moved(until)));
            for time in [&mut holder.assigned_at, &mut holder.sent_at, &mut holder.ends_at] {
                *time = moved(*time);
            }
        }
        for waiting in self.waiting.values_mut() {
            waiting.until = moved(waiting.until);
        }
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

    /// Pays for a bucket from the stored permits, or else from the permits of the replaced bucket.
    fn change(&mut self, holder: HolderId, bucket: AssignedBucket, now: Timestamp) {
        let is_stored = self.stored >= i128::from(bucket.permits());
        self.stored -= if is_stored { bucket.permits().into() } else { 0 };
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
            let mut before = known.bucket;
            if !is_stored {
                // The renewal of the lease returns the permits above those of the new bucket.
                before.max_tokens = 0;
            }
            known.before = Some((before, until));
            known.bucket = bucket;
        }
    }
}
