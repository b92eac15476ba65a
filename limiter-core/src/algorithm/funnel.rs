//! The funnel: a leaky bucket used as a meter. A call adds its cost to the level; the level drains
//! at a rate.
//!
//! It admits the same calls as a token bucket of the same capacity and rate (ITU-T I.371, annex A,
//! shows the equivalence). They differ when the capacity changes: a bucket keeps the remaining
//! permits, a funnel keeps the usage.

use crate::algorithm::level::{LevelKind, above_zero};
use crate::policy::{Funnel, Rate};

/// The amount is the level that has not drained. After a reduction of the capacity, and in debt, it
/// exceeds the capacity.
impl LevelKind for Funnel {
    fn rate(&self) -> &Rate {
        &self.rate
    }

    fn idle(&self) -> i64 {
        0
    }

    fn after_refill(&self, level: i64, amount: u64) -> i64 {
        level.saturating_sub_unsigned(amount).max(0)
    }

    fn shortfall(&self, level: i64, cost: u64) -> u64 {
        (above_zero(level) + cost).saturating_sub(self.capacity)
    }

    fn charged(&self, level: i64, cost: u64) -> i64 {
        level.saturating_add_unsigned(cost)
    }

    fn remaining(&self, level: i64) -> u64 {
        self.capacity.saturating_sub(above_zero(level))
    }

    fn used(&self, level: i64) -> u64 {
        above_zero(level)
    }

    fn without(&self, leased: u64) -> Self {
        Self {
            capacity: self.capacity.saturating_sub(leased),
            ..*self
        }
    }

    fn after_lease(&self, level: i64, _by: u64) -> i64 {
        level
    }

    fn after_return(&self, level: i64, _by: u64) -> i64 {
        level
    }

    fn after_spend(&self, level: i64, amount: u64) -> i64 {
        level.saturating_add_unsigned(amount)
    }
}
