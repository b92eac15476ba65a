//! The pace at which a level is refilled beside the buckets of holders.
//!
//! A holder declares the rate at which its own buckets are refilled, in millionths of the policy's
//! rate. While its lease counts, the level is refilled at the rest of the rate, as if time passed
//! more slowly: level and buckets together are refilled at the rate of the policy. The fraction of
//! a microsecond is stored, so that frequent calls lose nothing.
//!
//! The alternative, a refill at the whole rate and a charge with each renewal, was rejected: the
//! level without the leased tokens cannot contain the refill until the next renewal, and other
//! callers would use the tokens of the holders meanwhile.

use crate::algorithm::leased_level::LeaseGrants;
use crate::algorithm::leased_level::holder::HolderGrant;

/// The whole rate, in millionths.
pub(crate) const WHOLE_RATE: u64 = 1_000_000;

impl LeaseGrants {
    /// Returns the part of the rate that refills the level, in millionths.
    fn pace(&self) -> u64 {
        let [current, previous] = self.steady.map(u64::from);
        match self.total() {
            0 => WHOLE_RATE,
            _ => WHOLE_RATE.saturating_sub(current + previous),
        }
    }

    /// Returns the time in which the whole rate would refill the level as the rest of it does in
    /// `elapsed`, a time within the current epoch.
    pub(super) fn effective_elapsed(&mut self, elapsed: u64) -> u64 {
        let pace = self.pace();
        if pace == WHOLE_RATE {
            self.fraction = 0;
            return elapsed;
        }
        let slowed = u128::from(elapsed) * u128::from(pace) + u128::from(self.fraction);
        let whole = u128::from(WHOLE_RATE);
        self.fraction = u32::try_from(slowed % whole).unwrap_or(0);
        u64::try_from(slowed / whole).unwrap_or(elapsed)
    }

    /// Returns the least time after `at` in which the level is refilled as in `time` at the whole
    /// rate; `None` if the current epoch ends before.
    pub(super) fn elapsed(&self, time: u64, at: u64) -> Option<u64> {
        let pace = self.pace();
        if pace == WHOLE_RATE || time == 0 {
            return Some(time);
        }
        let left = (self.since + self.epoch).saturating_sub(at);
        if pace == 0 || time > left {
            return None;
        }
        let slowed = u128::from(time) * u128::from(WHOLE_RATE) - u128::from(self.fraction);
        let elapsed = u64::try_from(slowed.div_ceil(u128::from(pace))).ok();
        elapsed.filter(|elapsed| *elapsed <= left)
    }

    /// Ends the steady rate of a recorded lease, unless its epoch has ended.
    pub(super) fn end_steady(&mut self, recorded: HolderGrant) {
        let [current, previous] = &mut self.steady;
        let steady = match self.number.wrapping_sub(recorded.number) {
            0 => current,
            1 => previous,
            _ => return,
        };
        *steady = steady.saturating_sub(recorded.steady);
    }

    /// Starts the steady rate of a lease that was granted in the current epoch.
    pub(super) fn start_steady(&mut self, steady: u32) {
        let [current, _] = &mut self.steady;
        *current = current.saturating_add(steady);
    }
}
