//! The token bucket: tokens come back at a rate, up to a capacity; a call takes as many as it costs.
//!
//! Over any time T it admits at most capacity + rate·T.

use super::level::Meter;
use crate::policy::{Rate, TokenBucket};

/// The amount is the tokens that are left.
impl Meter for TokenBucket {
    fn rate(&self) -> &Rate {
        &self.rate
    }

    fn idle(&self) -> u64 {
        self.capacity
    }

    fn recovered(&self, tokens: u64, by: u64) -> u64 {
        self.capacity.min(tokens + by)
    }

    fn missing(&self, tokens: u64, cost: u64) -> u64 {
        cost.saturating_sub(tokens)
    }

    fn charged(&self, tokens: u64, cost: u64) -> u64 {
        tokens - cost
    }

    fn remaining(&self, tokens: u64) -> u64 {
        tokens
    }

    fn used(&self, tokens: u64) -> u64 {
        self.capacity - tokens
    }

    fn without(&self, lent: u64) -> Self {
        Self {
            capacity: self.capacity.saturating_sub(lent),
            ..*self
        }
    }

    fn lent(&self, tokens: u64, by: u64) -> u64 {
        tokens - by
    }

    fn given_back(&self, tokens: u64, by: u64) -> u64 {
        tokens + by
    }

    fn spent(&self, tokens: u64, _by: u64) -> u64 {
        tokens
    }
}
