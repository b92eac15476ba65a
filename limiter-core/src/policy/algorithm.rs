//! The algorithm of a policy.

use crate::policy::{Concurrency, CounterWindow, FixedWindow, Funnel, Rate, SlidingWindow, TokenBucket};

/// The algorithm of a policy with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Algorithm {
    TokenBucket(TokenBucket),
    Funnel(Funnel),
    SlidingWindow(SlidingWindow),
    CounterWindow(CounterWindow),
    FixedWindow(FixedWindow),
    Concurrency(Concurrency),
}

impl Algorithm {
    /// Returns the largest cost that can be admitted at once, in the algorithm's own unit.
    pub(crate) fn quota(&self) -> u64 {
        match *self {
            Self::TokenBucket(TokenBucket { capacity, .. }) | Self::Funnel(Funnel { capacity, .. }) => {
                capacity
            }
            Self::SlidingWindow(SlidingWindow { limit, .. })
            | Self::CounterWindow(CounterWindow { limit, .. })
            | Self::FixedWindow(FixedWindow { limit, .. }) => limit,
            Self::Concurrency(Concurrency { max, .. }) => max,
        }
    }

    /// True if it counts whole permits in windows; a level counts thousandths, which refill at a
    /// rate.
    #[inline]
    pub(crate) fn is_window(&self) -> bool {
        !matches!(self, Self::TokenBucket(_) | Self::Funnel(_))
    }

    /// Returns the rate at which a level refills; `None` for windows and concurrency.
    pub(crate) fn level_rate(&self) -> Option<Rate> {
        match *self {
            Self::TokenBucket(TokenBucket { rate, .. }) | Self::Funnel(Funnel { rate, .. }) => Some(rate),
            _ => None,
        }
    }

    /// Returns the microseconds in which a level refills `amount`; `None` for windows and
    /// concurrency.
    pub(crate) fn refill_micros(&self, amount: u64) -> Option<u64> {
        self.level_rate().map(|rate| rate.time_for(amount, 0))
    }

    /// Returns the code of the algorithm in Redis keys.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "tb",
            Self::Funnel(_) => "fn",
            Self::SlidingWindow(_) => "sw",
            Self::CounterWindow(_) => "cw",
            Self::FixedWindow(_) => "fw",
            Self::Concurrency(_) => "cc",
        }
    }
}
