//! The bucket for a share: when it changes, and its permits.
//!
//! The rates of all buckets are at most the assignable rate, and their permits are leased ones.
//! Both exceed the policy only after a reduction of the policy, or if a lost record was restored.
//! Each holder above its share then receives a smaller bucket at once. Without stored permits, the
//! permits of the replaced bucket pay for it and do not count as spent: at most one eighth of them,
//! so that all such permits together are at most 8/7 of the permits at the reduction, which are at
//! most 7/8 of the capacity before. A bucket of one permit is not renewed instead. Tests:
//! `tests/quota_ledger/reduction.rs`.

use crate::gateway::quota::bucket::{AssignedBucket, proportional_permits, whole_refill};
use crate::gateway::quota::ledger::{HolderId, HolderState, MILLION, QuotaLedger};
use crate::gateway::quota::shares::MicroRate;

/// The part of the rate that is not assigned, and pays for changed buckets: one of this number.
const RESERVE: u64 = 16;
/// An assignment changes if its rate changes by more than one of this number.
const TOLERANCE: u64 = 8;
/// The tolerance for a holder above its demand while the demand of another one exceeds its rate,
/// because the other one uses the difference.
const CONTENDED_TOLERANCE: u64 = 16;
/// The tolerance for a holder whose demand exceeds its rate, because it uses the permits of the new
/// bucket, and for all holders above a reduced policy: 15/16 · 32/31 of the rate is less than the
/// rate.
const SMALL_TOLERANCE: u64 = 32;
/// Without stored permits, the replacement of a bucket above a reduced policy contains this part of
/// its permits, and at least one: one of this number.
const REPLACED: u64 = 8;
/// A bucket is too large for a reduced policy if its permits exceed those of its rate by more than
/// one of this number.
const PERMITS_TOLERANCE: u64 = 8;

impl QuotaLedger {
    /// Returns the rate that is divided. The rest pays for changes: with the whole rate assigned,
    /// stored permits would never return, and no bucket could change again.
    pub(super) fn assignable(&self) -> MicroRate {
        self.budget.rate - self.budget.rate / RESERVE
    }

    /// Returns whether the rates of the buckets exceed that of the policy, or their permits those
    /// that can be leased.
    fn is_exceeded(&self) -> bool {
        let permits: u64 = self.holders.values().map(HolderState::permits).sum();
        self.rate() > self.budget.rate || permits > self.leasable().saturating_mul(MILLION)
    }

    /// Returns the rate that must come from holders above their shares: that of waiting holders,
    /// and of holders with less than half of a share that they demand, without the rate that is or
    /// becomes unassigned. The differences that [`tolerance`](Self::tolerance) permits can amount
    /// to the share of one holder among many.
    pub(super) fn missing_rate(&self, shares: &[(HolderId, MicroRate)]) -> MicroRate {
        let lacking = shares
            .iter()
            .map(|(holder, share)| match self.holders.get(holder) {
                None => *share,
                Some(of) => {
                    let rate = of.bucket.rate();
                    let is_small = of.demand > rate && rate < share / 2;
                    if is_small { share.saturating_sub(rate) } else { 0 }
                }
            });
        let kept = self.holders.values().filter(|of| !of.has_ended);
        let kept: MicroRate = kept.map(|of| of.bucket.rate()).sum();
        let free = self.assignable().saturating_sub(kept);
        lacking.sum::<MicroRate>().saturating_sub(free)
    }

    /// Returns the part by which the rate of a holder may differ from its share: one of this
    /// number.
    fn tolerance(&self, holder: &HolderState) -> u64 {
        let is_limited = |holder: &HolderState| holder.demand > holder.bucket.rate();
        if is_limited(holder) {
            SMALL_TOLERANCE
        } else if self.holders.values().any(is_limited) {
            CONTENDED_TOLERANCE
        } else {
            TOLERANCE
        }
    }

    /// Returns the permits of the bucket for a rate.
    fn permits(&self, rate: MicroRate) -> u64 {
        proportional_permits(rate, self.budget.rate, self.budget.capacity)
    }

    /// Returns whether the bucket of a holder exceeds its share of a reduced policy.
    pub(super) fn must_change(&self, holder: HolderId, share: MicroRate) -> bool {
        let exceeds = |known: &HolderState| {
            let rate = known.bucket.rate();
            let permits = self.permits(rate);
            let is_large = u64::from(known.bucket.max_tokens) > permits + permits / PERMITS_TOLERANCE;
            is_large || rate.saturating_sub(share) > rate / SMALL_TOLERANCE
        };
        self.is_exceeded() && self.holders.get(&holder).is_some_and(exceeds)
    }

    /// Returns the bucket for a share; `None` if the assigned one is near enough, or nothing can be
    /// assigned now.
    pub(super) fn bucket(&self, holder: HolderId, share: MicroRate) -> Option<AssignedBucket> {
        let known = self.holders.get(&holder);
        // A second change before the first is in force would count three buckets.
        if known.is_some_and(|known| known.before.is_some()) {
            return None;
        }
        let must_change = self.must_change(holder, share);
        // Until the buckets are within the policy, no permits are added to them.
        if self.is_exceeded() && !must_change {
            return None;
        }
        let current = known.map_or(0, |known| known.bucket.rate());
        let available = current.saturating_add(self.assignable().saturating_sub(self.rate()));
        let target = share.min(available);
        let (tokens_per_fill, fill_seconds) = whole_refill(target);
        let mut bucket = AssignedBucket {
            max_tokens: 0,
            tokens_per_fill,
            fill_seconds,
        };
        let mut permits = self.permits(bucket.rate());
        // A change blocks the next one until it is in force, so the rate must change by enough. A
        // bucket that was assigned when few permits were stored grows later.
        let gives_way = self.missing > 0 && target < current;
        let is_near = |known: &HolderState| {
            let is_small = u64::from(known.bucket.max_tokens) < permits / 2 && permits <= self.stored();
            target.abs_diff(current) <= current / self.tolerance(known) && !is_small && !gives_way
        };
        if !must_change && known.is_some_and(is_near) {
            return None;
        }
        let mut affordable = self.stored();
        if let Some(known) = known.filter(|_| must_change) {
            permits = permits.min(known.bucket.max_tokens.into());
            let replaced = u64::from(known.bucket.max_tokens);
            affordable = affordable.max((replaced / REPLACED).max(u64::from(replaced > 1)));
        }
        bucket.max_tokens = u32::try_from(permits.min(affordable)).ok()?;
        let is_new = known.is_none_or(|known| known.bucket != bucket);
        let bucket = match known {
            Some(known) => bucket.distinct_from(known.bucket)?,
            None => bucket,
        };
        let fits = bucket.rate() <= available;
        (bucket.max_tokens > 0 && is_new && fits).then_some(bucket)
    }
}
