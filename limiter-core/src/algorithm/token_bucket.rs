//! The token bucket: tokens come back at a rate, up to a capacity; a call takes as many as it
//! costs.
//!
//! Over any time T it admits at most capacity + rate·T.

use crate::algorithm::level::{LevelKind, above_zero, signed};
use crate::policy::{Rate, TokenBucket};

/// The amount is the tokens that are left; below zero it is a debt.
impl LevelKind for TokenBucket {
    fn rate(&self) -> &Rate {
        &self.rate
    }

    fn idle(&self) -> i64 {
        signed(self.capacity)
    }

    fn recovered(&self, tokens: i64, by: u64) -> i64 {
        self.idle().min(tokens.saturating_add_unsigned(by))
    }

    fn shortfall(&self, tokens: i64, cost: u64) -> u64 {
        above_zero(signed(cost).saturating_sub(tokens))
    }

    fn charged(&self, tokens: i64, cost: u64) -> i64 {
        tokens.saturating_sub_unsigned(cost)
    }

    fn remaining(&self, tokens: i64) -> u64 {
        above_zero(tokens)
    }

    fn used(&self, tokens: i64) -> u64 {
        above_zero(self.idle().saturating_sub(tokens))
    }

    fn without(&self, lent: u64) -> Self {
        Self {
            capacity: self.capacity.saturating_sub(lent),
            ..*self
        }
    }

    fn after_lease(&self, tokens: i64, by: u64) -> i64 {
        tokens.saturating_sub_unsigned(by)
    }

    fn given_back(&self, tokens: i64, by: u64) -> i64 {
        tokens.saturating_add_unsigned(by)
    }

    fn spent(&self, tokens: i64, _by: u64) -> i64 {
        tokens
    }
}
