//! The fixed window: a count that restarts with each period.
//!
//! It admits at most the limit in each period, and therefore up to twice the limit around the end
//! of a period. The stored state contains the count and the end of the period, so that the policies
//! of a rollout, and a clock that stepped back, use the same end.
//!
//! Tests: `tests/contract/counter_windows.rs`, `tests/properties.rs`
//! (`alternating_fixed_windows_create_no_permits`), `algorithm/counter_window_tests.rs`,
//! `tests/differential.rs`.

use std::ops::RangeInclusive;

use crate::algorithm::ratio::QuotaRatio;
use crate::algorithm::{Mode, StepOutcome, StepState};
use crate::policy::{FixedWindow, Periods};
use crate::units::MAX_EXACT;

/// The largest step back of the clock, in microseconds, that counts as small: a part of the window
/// between these bounds, since clocks of servers differ by seconds.
const SMALL_STEP: RangeInclusive<u64> = 1_000_000..=60_000_000;
/// The part of the window.
const STEPS_PER_WINDOW: u64 = 60;

/// Permits charged in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeriodCount {
    /// Permits.
    pub(super) used: u64,
    /// Time of the last write, in microseconds.
    pub(super) at: u64,
    /// End of the period: from this time the state equals absence, under every policy.
    pub(super) until: u64,
    /// The small step back of the calendar in microseconds, after which the period counts again; 0
    /// unless `at` and `until` are calendar times, which may differ from the store's clock.
    pub(super) small_step: u32,
}

impl PeriodCount {
    /// Validates numbers that were read from a store.
    #[cfg(feature = "redis")]
    pub(crate) fn stored(used: u64, at: u64, until: u64) -> Option<Self> {
        (used <= MAX_EXACT && at <= until && until < 2 * MAX_EXACT).then_some(Self {
            used,
            at,
            until,
            // The clock of the store that it was read from is the calendar.
            small_step: 0,
        })
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        now >= self.until
    }

    /// Returns whether `at` and `until` are calendar times.
    pub(super) fn is_aligned(&self) -> bool {
        self.small_step > 0
    }

    /// As [`is_expired`](Self::is_expired) for a calendar period, which is kept for a small step
    /// back of the calendar, but at most for `max_kept` microseconds.
    pub(super) fn is_expired_after(&self, max_kept: u64, calendar: u64) -> bool {
        calendar.saturating_sub(u64::from(self.small_step).min(max_kept)) >= self.until
    }

    fn start(limit: &FixedWindow, now: u64) -> Self {
        Self {
            used: 0,
            at: now,
            until: limit.end(now),
            small_step: step_of_calendar(limit),
        }
    }

    /// Returns the count after a charge by a policy, which determines the clock.
    fn charged(self, limit: &FixedWindow, used: u64, now: u64) -> Self {
        Self {
            used,
            at: now,
            small_step: step_of_calendar(limit),
            ..self
        }
    }

    /// Converts the count at the time `at` to the limit of another policy.
    pub(super) fn scaled(
        self,
        before: &FixedWindow,
        after: &FixedWindow,
        ratio: QuotaRatio,
        at: u64,
    ) -> Option<Self> {
        let count = Self::view(before, Some(self), at)?;
        let used = ratio.up(count.used);
        Self::view(after, Some(count.charged(after, used, at)), at)
    }

    /// Returns the count at `now` under the policy of this call; `None` if the period is over.
    fn view(limit: &FixedWindow, stored: Option<Self>, now: u64) -> Option<Self> {
        let count = Self::unshortened(limit, stored, now)?;
        // A period never lasts longer than the window of this policy, independent of the policy
        // that started it and of clock steps.
        let mut latest = now + limit.window;
        if limit.is_aligned() && count.until > latest {
            // A calendar period that had begun before a small step back keeps its end. Otherwise it
            // would end early, and its rest would be another period.
            latest = latest.max(limit.end(now + small_step(limit)));
        }
        let until = count.until.min(latest);
        Some(Self { until, ..count })
    }

    /// As [`view`](Self::view), but the period keeps its end, as it does until a call shortens it.
    fn unshortened(limit: &FixedWindow, stored: Option<Self>, now: u64) -> Option<Self> {
        let stored = stored.filter(|stored| !stored.is_expired(now))?;
        let back = match limit.periods {
            // If the clock stepped back, the whole state moves back. Aligned periods keep their
            // calendar time.
            Periods::FirstUse => stored.at.saturating_sub(now),
            _ => 0,
        };
        Some(Self {
            at: stored.at.min(now),
            until: stored.until - back,
            ..stored
        })
    }
}

/// Returns the largest step back of the clock that counts as small.
fn small_step(limit: &FixedWindow) -> u64 {
    (limit.window / STEPS_PER_WINDOW).clamp(*SMALL_STEP.start(), *SMALL_STEP.end())
}

/// Returns the small step of calendar periods, and 0 for other periods.
fn step_of_calendar(limit: &FixedWindow) -> u32 {
    let step = if limit.is_aligned() { small_step(limit) } else { 0 };
    u32::try_from(step).unwrap_or(u32::MAX)
}

fn stored(state: &StepState) -> Option<PeriodCount> {
    match state {
        StepState::FixedWindow(count) => Some(*count),
        _ => None,
    }
}

pub(super) fn step(
    limit: &FixedWindow,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    let stored = stored(state);
    let live = match mode {
        Mode::Peek => PeriodCount::unshortened(limit, stored, now),
        Mode::Charge | Mode::Refuse => PeriodCount::view(limit, stored, now),
    };
    let mut count = live.unwrap_or_else(|| PeriodCount::start(limit, now));
    let fits = cost == 0 || count.used + cost <= limit.limit;
    let charged = fits && mode == Mode::Charge;
    if charged {
        count = count.charged(limit, count.used + cost, now);
    }
    // A denial writes nothing, unless the end of the period has moved: each later call would have
    // to move it again.
    let repaired = mode != Mode::Peek && live.is_some() && live != stored;
    if charged || repaired {
        *state = StepState::FixedWindow(count);
    }
    let remaining_time = count.until - now;
    let reset_after = if count.used > 0 { remaining_time } else { 0 };
    StepOutcome {
        fits,
        remaining: limit.limit.saturating_sub(count.used),
        retry_after: if fits { 0 } else { remaining_time },
        reset_after,
        // All permits return together.
        next_after: reset_after,
        expires_after: match state {
            StepState::FixedWindow(count) => count.until.saturating_sub(now),
            _ => 0,
        },
        ..StepOutcome::default()
    }
}

/// Refunds up to `permits` of the current period, which keeps its end: a later policy may have
/// started it.
pub(super) fn refund(limit: &FixedWindow, state: &mut StepState, permits: u64, now: u64) {
    let Some(mut count) = PeriodCount::unshortened(limit, stored(state), now) else {
        return;
    };
    let given = permits.min(count.used);
    if given == 0 {
        return;
    }
    count.used -= given;
    count.at = now;
    *state = if count.used == 0 {
        StepState::Absent
    } else {
        StepState::FixedWindow(count)
    };
}

/// Charges permits unconditionally: the count can exceed the limit until the period ends.
pub(super) fn force_charge(limit: &FixedWindow, state: &mut StepState, permits: u64, now: u64) {
    if permits == 0 {
        return;
    }
    let count =
        PeriodCount::view(limit, stored(state), now).unwrap_or_else(|| PeriodCount::start(limit, now));
    let used = count.used.saturating_add(permits).min(MAX_EXACT);
    *state = StepState::FixedWindow(count.charged(limit, used, now));
}
