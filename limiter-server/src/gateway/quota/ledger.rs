//! The ledger of one budget: assigned buckets never admit more than the policy.
//!
//! A holder is a stream with a token bucket of its own. Three properties of Envoy matter: its
//! bucket refills continuously, a bucket with changed numbers starts full, and an assignment
//! applies until its time to live ends, also after the end of the stream. The ledger counts
//!
//! - `stored`, the permits that are not assigned,
//! - for each holder the largest number of permits that its bucket can contain, and its rate.
//!
//! A changed bucket is paid from `stored`: its permits count as granted. Until the change is
//! certainly in force, the old and the new bucket count together, and the faster of both rates
//! counts. `stored` is refilled only by the rate that is not assigned, and `stored` plus all
//! buckets never exceeds the capacity. The spendable permits therefore start with at most the
//! capacity and grow by at most the rate, so in any time T at most capacity + rate · T calls are
//! admitted. Test: `tests/quota_ledger.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use limiter_core::Timestamp;

use crate::gateway::quota::shares::{MicroRate, divide};

const MILLION: u64 = 1_000_000;
/// The part of the rate that is not assigned, and pays for changed buckets: one of this number.
const RESERVE: u64 = 16;
/// The part of the capacity that assigned buckets contain: one of this number.
const ASSIGNED: u64 = 2;
/// An assignment changes if the share differs by at least one of this number.
const TOLERANCE: u64 = 8;
/// The longest interval in seconds of a bucket whose rate is met to a hundredth.
const MAX_NEAR_INTERVAL: u64 = 60;
/// The longest interval in seconds: a day, for holders without demand.
const MAX_INTERVAL: u64 = 86_400;

/// A bucket of a holder, with the restrictions of Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedBucket {
    /// The capacity, at least 1.
    pub max_tokens: u32,
    /// The number of permits that are added in each interval.
    pub tokens_per_fill: u32,
    /// The interval in seconds, at least 1.
    pub fill_seconds: u32,
}

impl AssignedBucket {
    /// The rate, rounded up.
    #[must_use]
    pub fn rate(&self) -> MicroRate {
        (u64::from(self.tokens_per_fill) * MILLION).div_ceil(u64::from(self.fill_seconds.max(1)))
    }

    fn permits(&self) -> u64 {
        u64::from(self.max_tokens) * MILLION
    }
}

/// An assignment for a holder, to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAssignment<H> {
    /// The holder.
    pub holder: H,
    /// The bucket. An unchanged bucket is sent again, because this renews its time to live.
    pub bucket: AssignedBucket,
    /// Whether the bucket is new or changed, and starts full.
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
#[derive(Clone, Copy, Debug)]
struct Holder {
    bucket: AssignedBucket,
    /// The bucket before, until the change is certainly in force.
    before: Option<(AssignedBucket, Timestamp)>,
    /// The time of the last assignment, which the holder may have received at once.
    sent_at: Timestamp,
    /// The time from which no assignment applies.
    ends_at: Timestamp,
    demand: MicroRate,
    has_ended: bool,
}

impl Holder {
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
pub struct QuotaLedger<H> {
    budget: QuotaBudget,
    /// Millionths of permits.
    stored: u64,
    updated_at: Timestamp,
    holders: BTreeMap<H, Holder>,
    /// Holders without an assignment, with their demand.
    waiting: BTreeMap<H, MicroRate>,
}

impl<H: Ord + Copy> QuotaLedger<H> {
    /// A budget that is not used.
    #[must_use]
    pub fn new(budget: QuotaBudget, now: Timestamp) -> Self {
        Self {
            budget,
            stored: budget.capacity.saturating_mul(MILLION),
            updated_at: now,
            holders: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Sets the demand of a holder from its report.
    pub fn report(&mut self, holder: H, demand: MicroRate) {
        match self.holders.get_mut(&holder) {
            Some(known) => known.demand = demand,
            None => {
                self.waiting.insert(holder, demand);
            }
        }
    }

    /// Records the end of a stream. Its bucket counts until its time to live ends.
    pub fn end(&mut self, holder: H) {
        self.waiting.remove(&holder);
        if let Some(known) = self.holders.get_mut(&holder) {
            known.has_ended = true;
        }
    }

    /// The permits that are not assigned, rounded down.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.stored / MILLION
    }

    /// The bucket of a holder.
    #[must_use]
    pub fn assigned(&self, holder: &H) -> Option<AssignedBucket> {
        self.holders.get(holder).map(|holder| holder.bucket)
    }

    /// Computes the assignments to send now. All of them are sent, or counted as sent.
    pub fn assign(&mut self, now: Timestamp) -> Vec<NewAssignment<H>> {
        self.advance(now);
        let shares = self.shares();
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
            // An assignment that may have ended would start full, without a payment.
            let may_have_ended = |known: &Holder| {
                let arrives_at = now.after(self.budget.apply_within);
                !is_changed && arrives_at >= known.sent_at.after(self.budget.time_to_live)
            };
            if let Some(known) = self
                .holders
                .get_mut(&holder)
                .filter(|known| !may_have_ended(known))
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

    /// Refills the stored permits, and releases the buckets that no longer apply.
    fn advance(&mut self, now: Timestamp) {
        let mut at = self.updated_at;
        // The rate in force changes with each end of a bucket.
        while at < now {
            let ends = self.holders.values().flat_map(|holder| {
                let before = holder.before.map(|(_, until)| until);
                before.into_iter().chain([holder.ends_at])
            });
            let next = ends.filter(|end| *end > at).min().map_or(now, |end| end.min(now));
            let assigned: u64 = self.holders.values().map(Holder::rate).sum();
            let free = u128::from(self.budget.rate.saturating_sub(assigned));
            let refilled = free * next.since(at).as_micros() / u128::from(MILLION);
            let refilled = u64::try_from(refilled).unwrap_or(u64::MAX);
            self.stored = self.stored.saturating_add(refilled).min(self.room());
            at = next;
            self.release(at);
        }
        self.updated_at = self.updated_at.max(now);
    }

    fn release(&mut self, at: Timestamp) {
        for holder in self.holders.values_mut() {
            holder.before = holder.before.filter(|(_, until)| *until > at);
        }
        self.holders.retain(|_, holder| holder.ends_at > at);
    }

    /// The largest number of stored permits.
    fn room(&self) -> u64 {
        let assigned: u64 = self.holders.values().map(Holder::permits).sum();
        self.budget
            .capacity
            .saturating_mul(MILLION)
            .saturating_sub(assigned)
    }

    fn shares(&self) -> Vec<(H, MicroRate)> {
        let assigned = self.holders.iter().filter(|(_, holder)| !holder.has_ended);
        let assigned = assigned.map(|(holder, state)| (*holder, state.demand));
        let waiting = self.waiting.iter().map(|(holder, demand)| (*holder, *demand));
        let (holders, demands): (Vec<H>, Vec<MicroRate>) = assigned.chain(waiting).unzip();
        let rate = self.budget.rate - self.budget.rate / RESERVE;
        holders.into_iter().zip(divide(rate, &demands)).collect()
    }

    /// The bucket for a share; `None` if the assigned one is near enough, or nothing can be
    /// assigned now.
    fn bucket(&self, holder: H, share: MicroRate) -> Option<AssignedBucket> {
        let known = self.holders.get(&holder);
        // A second change before the first is in force would count three buckets.
        if known.is_some_and(|known| known.before.is_some()) {
            return None;
        }
        let current = known.map_or(0, |known| known.bucket.rate());
        if known.is_some() && share.abs_diff(current) < current / TOLERANCE {
            return None;
        }
        let assigned: u64 = self.holders.values().map(Holder::rate).sum();
        let free = self.budget.rate.saturating_sub(assigned);
        let (tokens_per_fill, fill_seconds) = refill(share.min(current.saturating_add(free)));
        // Buckets contain permits in the ratio of their rates.
        let part = u128::from(share) * u128::from(self.budget.capacity / ASSIGNED);
        let part = part / u128::from(self.budget.rate.max(1));
        let permits = u64::try_from(part)
            .unwrap_or(u64::MAX)
            .clamp(1, u64::from(u32::MAX));
        let max_tokens = u32::try_from(permits.min(self.stored / MILLION)).ok()?;
        let bucket = AssignedBucket {
            max_tokens,
            tokens_per_fill,
            fill_seconds,
        };
        let is_new = known.is_none_or(|known| known.bucket != bucket);
        let fits = bucket.rate() <= current.saturating_add(free);
        (max_tokens > 0 && is_new && fits).then_some(bucket)
    }

    /// Pays for a bucket from the stored permits; false if they do not suffice.
    fn change(&mut self, holder: H, bucket: AssignedBucket, now: Timestamp) -> bool {
        let Some(left) = self.stored.checked_sub(bucket.permits()) else {
            return false;
        };
        self.stored = left;
        let until = now.after(self.budget.apply_within);
        let demand = self.waiting.remove(&holder);
        let known = self.holders.entry(holder).or_insert(Holder {
            bucket,
            before: None,
            sent_at: now,
            ends_at: now,
            demand: demand.unwrap_or_default(),
            has_ended: false,
        });
        if known.bucket != bucket {
            known.before = Some((known.bucket, until));
            known.bucket = bucket;
        }
        true
    }
}

/// Whole permits in whole seconds, at most `share` if it is at least one permit a day: the shortest
/// interval that loses at most a hundredth, or else the one that loses least, or else one permit in
/// the interval that it takes.
fn refill(share: MicroRate) -> (u32, u32) {
    let per = |seconds: u64| share.saturating_mul(seconds) / MILLION;
    let is_near = |seconds: &u64| per(*seconds) * MILLION >= share.saturating_mul(*seconds) / 100 * 99;
    let near = (1..=MAX_NEAR_INTERVAL).find(|seconds| per(*seconds) > 0 && is_near(seconds));
    let with_permit = (1..=MAX_NEAR_INTERVAL).filter(|seconds| per(*seconds) > 0);
    let best = near.or_else(|| with_permit.max_by_key(|seconds| per(*seconds) * MILLION / seconds));
    let seconds = best.unwrap_or_else(|| MILLION.div_ceil(share.max(1)).min(MAX_INTERVAL));
    let permits = u32::try_from(per(seconds).max(1)).unwrap_or(u32::MAX);
    (permits, u32::try_from(seconds).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use crate::gateway::quota::ledger::refill;

    #[test]
    fn refill_is_whole_and_at_most_the_share() {
        let shares = [100_000_000, 500_000, 333_333, 1_500_000, 10_000, 0];
        let expected = [(100, 1), (1, 2), (19, 58), (3, 2), (1, 100), (1, 86_400)];
        assert_eq!(shares.map(refill), expected);
    }
}
