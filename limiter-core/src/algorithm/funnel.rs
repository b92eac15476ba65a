//! The funnel: a leaky bucket used as a meter. A call adds its cost to the level; the level drains at a rate.
//!
//! It admits as a token bucket of the same capacity and rate does (ITU-T I.371, annex A, shows the two equal). They
//! differ when the capacity changes: a bucket keeps what is left, a funnel what was used.

use super::level::Meter;
use crate::policy::{Funnel, Rate};

/// The amount is the level: what has not drained yet. Under a policy that shrank it can be above the capacity.
impl Meter for Funnel {
    fn rate(&self) -> &Rate {
        &self.rate
    }

    fn idle(&self) -> u64 {
        0
    }

    fn recovered(&self, level: u64, by: u64) -> u64 {
        level.saturating_sub(by)
    }

    fn missing(&self, level: u64, cost: u64) -> u64 {
        (level + cost).saturating_sub(self.capacity)
    }

    fn charged(&self, level: u64, cost: u64) -> u64 {
        level + cost
    }

    fn remaining(&self, level: u64) -> u64 {
        self.capacity.saturating_sub(level)
    }

    fn used(&self, level: u64) -> u64 {
        level
    }

    fn without(&self, lent: u64) -> Self {
        Self {
            capacity: self.capacity.saturating_sub(lent),
            ..*self
        }
    }

    fn lent(&self, level: u64, _by: u64) -> u64 {
        level
    }

    fn given_back(&self, level: u64, _by: u64) -> u64 {
        level
    }

    fn spent(&self, level: u64, by: u64) -> u64 {
        level + by
    }
}
