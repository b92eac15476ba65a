//! Parameters of a fixed window.

use crate::policy::calendar;
use crate::policy::calendar::UtcOffset;

/// Admits at most `limit` permits in each period of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FixedWindow {
    /// Permits in a period.
    pub(crate) limit: u64,
    /// The length of a period in microseconds; the longest month for calendar months.
    pub(crate) window: u64,
    pub(crate) periods: Periods,
}

/// Start of periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Periods {
    /// With the first permit while no period is active.
    FirstUse,
    /// With a minute, an hour, a day, a week, … of local time.
    Aligned(UtcOffset),
    /// With a calendar month of local time.
    Months(UtcOffset),
}

impl FixedWindow {
    /// True if its periods are calendar periods.
    pub(crate) fn is_aligned(&self) -> bool {
        self.periods != Periods::FirstUse
    }

    /// Returns the end of a period that starts at `now` or contains it.
    pub(crate) fn end(&self, now: u64) -> u64 {
        match self.periods {
            Periods::FirstUse => now + self.window,
            Periods::Aligned(offset) => calendar::end_of_period(now, self.window, offset),
            Periods::Months(offset) => calendar::end_of_month(now, offset),
        }
    }
}
