//! The token bucket: tokens are refilled at a rate, up to a capacity; a call takes its cost.
//!
//! Over any time T it admits at most capacity + rate·T.

use crate::algorithm::level::{LevelKind, above_zero, signed};
use crate::policy::{Rate, TokenBucket};

/// The amount is the remaining tokens; a negative amount is a debt.
impl LevelKind for TokenBucket {
    fn rate(&self) -> &Rate {
        &self.rate
    }

    fn idle(&self) -> i64 {
        signed(self.capacity)
    }

    fn after_refill(&self, tokens: i64, amount: u64) -> i64 {
        self.idle().min(tokens.saturating_add_unsigned(amount))
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

    fn without(&self, leased: u64) -> Self {
        Self {
            capacity: self.capacity.saturating_sub(leased),
            ..*self
        }
    }

    fn after_lease(&self, tokens: i64, amount: u64) -> i64 {
        tokens.saturating_sub_unsigned(amount)
    }

    fn after_return(&self, tokens: i64, amount: u64) -> i64 {
        tokens.saturating_add_unsigned(amount)
    }

    fn after_spend(&self, tokens: i64, _by: u64) -> i64 {
        tokens
    }
}
