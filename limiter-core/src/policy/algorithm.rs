//! The algorithm of a policy.

use crate::policy::{Concurrency, CounterWindow, FixedWindow, Funnel, SlidingWindow, TokenBucket};

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
