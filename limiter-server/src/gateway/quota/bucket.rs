//! The bucket of a holder, with the restrictions of Envoy: whole permits in whole seconds.

use prost::Message;

use crate::gateway::quota::shares::MicroRate;

const MILLION: u64 = 1_000_000;
/// The longest interval in seconds of a bucket whose rate is met to a hundredth.
const MAX_NEAR_INTERVAL: u64 = 60;
/// The longest interval in seconds: a day, for holders without demand.
const MAX_INTERVAL: u64 = 86_400;
/// The part of the capacity that assigned buckets contain: one of this number.
const ASSIGNED: u64 = 2;

/// A bucket of a holder, with the restrictions of Envoy. It is a part of the recorded ledger.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AssignedBucket {
    /// The capacity, at least 1.
    #[prost(uint32, tag = "1")]
    pub max_tokens: u32,
    /// The number of permits that are added in each interval.
    #[prost(uint32, tag = "2")]
    pub tokens_per_fill: u32,
    /// The interval in seconds, at least 1.
    #[prost(uint32, tag = "3")]
    pub fill_seconds: u32,
}

impl AssignedBucket {
    /// Returns the rate, rounded up.
    #[must_use]
    pub fn rate(&self) -> MicroRate {
        (u64::from(self.tokens_per_fill) * MILLION).div_ceil(u64::from(self.fill_seconds.max(1)))
    }

    /// This bucket in numbers that Envoy 1.40 distinguishes from another one: it compares the
    /// capacity and the tokens of a fill, and would keep the old rate if only the interval differs.
    #[must_use]
    pub(crate) fn distinct_from(self, other: Self) -> Option<Self> {
        if self == other || !self.is_same_for_envoy(&other) {
            return Some(self);
        }
        Some(Self {
            tokens_per_fill: self.tokens_per_fill.checked_mul(2)?,
            fill_seconds: self.fill_seconds.checked_mul(2)?,
            ..self
        })
    }

    /// Returns whether Envoy 1.40 keeps its bucket with the current tokens and rate if it receives
    /// this bucket as the replacement.
    #[must_use]
    pub fn is_same_for_envoy(&self, other: &Self) -> bool {
        (self.max_tokens, self.tokens_per_fill) == (other.max_tokens, other.tokens_per_fill)
    }

    /// Millionths of permits in the full bucket.
    pub(crate) fn permits(&self) -> u64 {
        u64::from(self.max_tokens) * MILLION
    }
}

/// Returns the refill of a share as whole permits in whole seconds, rounded down; a share below one
/// permit a day becomes one permit a day.
///
/// The interval is the shortest one of at most a minute whose rounding loses at most a hundredth of
/// the share. If no interval does, it is the one with the smallest loss, and for a share below one
/// permit a minute the time in which one permit is refilled.
pub(crate) fn whole_refill(share: MicroRate) -> (u32, u32) {
    let per = |seconds: u64| share.saturating_mul(seconds) / MILLION;
    let is_near = |seconds: &u64| per(*seconds) * MILLION >= share.saturating_mul(*seconds) / 100 * 99;
    let near = (1..=MAX_NEAR_INTERVAL).find(|seconds| per(*seconds) > 0 && is_near(seconds));
    let with_permit = (1..=MAX_NEAR_INTERVAL).filter(|seconds| per(*seconds) > 0);
    let best = near.or_else(|| with_permit.max_by_key(|seconds| per(*seconds) * MILLION / seconds));
    let seconds = best.unwrap_or_else(|| MILLION.div_ceil(share.max(1)).min(MAX_INTERVAL));
    let permits = u32::try_from(per(seconds).max(1)).unwrap_or(u32::MAX);
    (permits, u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// Returns the permits of a bucket with this part of the rate of a policy: all buckets together
/// contain a part of its capacity, in the ratio of their rates.
pub(crate) fn proportional_permits(part: MicroRate, rate: MicroRate, capacity: u64) -> u64 {
    let permits = u128::from(part) * u128::from(capacity / ASSIGNED) / u128::from(rate.max(1));
    u64::try_from(permits)
        .unwrap_or(u64::MAX)
        .clamp(1, u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use crate::gateway::quota::bucket::whole_refill;

    #[test]
    fn refill_is_whole_and_at_most_the_share() {
        let shares = [100_000_000, 500_000, 333_333, 1_500_000, 10_000, 0];
        let expected = [(100, 1), (1, 2), (19, 58), (3, 2), (1, 100), (1, 86_400)];
        assert_eq!(shares.map(whole_refill), expected);
    }
}
