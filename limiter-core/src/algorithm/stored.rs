//! The numbers of states, as a store outside of this process keeps them.

use crate::algorithm::{StepState, StoredLevel, StoredLoans};

/// The numbers of a state that such a store can be given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoredState {
    Level(StoredLevel),
    Lent(StoredLevel, StoredLoans),
    /// Permits of the period that runs, and of the one before; when it began, how long it lasts,
    /// and when it was charged last.
    Counters([u64; 5]),
    /// Permits; as of when; until when.
    Count([u64; 3]),
}

impl StepState {
    /// Its numbers; `None` of what is absent, and of those that are never put there.
    pub(crate) fn stored(&self) -> Option<StoredState> {
        match self {
            Self::TokenBucket(level) | Self::Funnel(level) => Some(StoredState::Level(level.stored())),
            Self::Lent(lent) => {
                let (level, loans) = lent.stored();
                Some(StoredState::Lent(level, loans))
            }
            Self::CounterWindow(counters) => Some(StoredState::Counters([
                counters.current,
                counters.previous,
                counters.start,
                counters.window,
                counters.at,
            ])),
            Self::FixedWindow(count) => Some(StoredState::Count([count.used, count.at, count.until])),
            Self::Absent | Self::Steady(_) | Self::SlidingWindow(_) => None,
        }
    }

    /// The moment from which on it equals absence.
    pub(crate) fn ends(&self) -> u64 {
        match self {
            Self::TokenBucket(level) | Self::Funnel(level) => level.keep_until,
            Self::Lent(lent) => lent.keep_until(),
            Self::CounterWindow(counters) => counters.end(),
            Self::FixedWindow(count) => count.until,
            Self::Absent | Self::Steady(_) | Self::SlidingWindow(_) => 0,
        }
    }
}
