//! The form in which an external store keeps states.

use crate::algorithm::{StepState, StoredLevel, StoredLoans};

/// The numbers of a stored state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoredState {
    Level(StoredLevel),
    Leased(StoredLevel, StoredLoans),
    /// Permits of the current and of the previous period; start and length of the current period;
    /// time of the last charge.
    Counters([u64; 5]),
    /// Permits; time of the last write; end of the period.
    Count([u64; 3]),
}

impl StepState {
    /// Returns the stored numbers; `None` for an absent state and for states that are never stored
    /// externally.
    pub(crate) fn stored(&self) -> Option<StoredState> {
        match self {
            Self::TokenBucket(level) | Self::Funnel(level) => Some(StoredState::Level(level.stored())),
            Self::Leased(leased) => {
                let (level, loans) = leased.stored();
                Some(StoredState::Leased(level, loans))
            }
            Self::CounterWindow(counters) => Some(StoredState::Counters([
                counters.current,
                counters.previous,
                counters.start,
                counters.window,
                counters.at,
            ])),
            Self::FixedWindow(count) => Some(StoredState::Count([count.used, count.at, count.until])),
            Self::Absent | Self::Fast(_) | Self::SlidingWindow(_) => None,
        }
    }

    /// Returns the time from which the state equals absence.
    pub(crate) fn ends(&self) -> u64 {
        match self {
            Self::TokenBucket(level) | Self::Funnel(level) => level.keep_until,
            Self::Leased(leased) => leased.keep_until(),
            Self::CounterWindow(counters) => counters.end(),
            Self::FixedWindow(count) => count.until,
            Self::Absent | Self::Fast(_) | Self::SlidingWindow(_) => 0,
        }
    }
}
