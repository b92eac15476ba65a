//! The funnel: a leaky bucket used as a meter. A call adds its cost to the level; the level drains
//! at a rate.
//!
//! It admits as a token bucket of the same capacity and rate does (ITU-T I.371, annex A, shows the
//! two equal). They differ when the capacity changes: a bucket keeps what is left, a funnel what
//! was used.

use crate::algorithm::level::{LevelKind, above_zero};
use crate::policy::{Funnel, Rate};

/// The amount is the level: what has not drained yet. Under a policy that shrank, and in debt, it
/// is above the capacity.
impl LevelKind for Funnel {
    fn rate(&self) -> &Rate {
        &self.rate
    }

    fn idle(&self) -> i64 {
        0
    }

    fn recovered(&self, level: i64, by: u64) -> i64 {
        level.saturating_sub_unsigned(by).max(0)
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

    fn without(&self, lent: u64) -> Self {
        Self {
            capacity: self.capacity.saturating_sub(lent),
            ..*self
        }
    }

    fn after_lease(&self, level: i64, _by: u64) -> i64 {
        level
    }

    fn given_back(&self, level: i64, _by: u64) -> i64 {
        level
    }

    fn spent(&self, level: i64, by: u64) -> i64 {
        level.saturating_add_unsigned(by)
    }
}
