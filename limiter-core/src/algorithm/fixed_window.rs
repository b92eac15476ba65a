//! The fixed window: a count that starts anew with each period.
//!
//! It admits at most the limit in each period; so, around the end of one, up to twice the limit
//! within a moment. What is stored is the count and when it ends, so that the policies of a
//! rollout, and a clock that steps back, meet the same end.

use crate::algorithm::ratio::QuotaRatio;
use crate::algorithm::{Mode, StepOutcome, StepState};
use crate::policy::{FixedWindow, Periods};
use crate::units::MAX_EXACT;

/// What was given in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeriodCount {
    /// Permits.
    pub(super) used: u64,
    /// As of this moment, in microseconds.
    pub(super) at: u64,
    /// From this moment on the state equals absence, under every policy.
    pub(super) until: u64,
    /// Both are moments of the calendar, which the clock of a store need not be.
    pub(super) aligned: bool,
}

impl PeriodCount {
    /// What a store reads, if it is a count.
    #[cfg(feature = "redis")]
    pub(crate) fn stored(used: u64, at: u64, until: u64) -> Option<Self> {
        (used <= MAX_EXACT && at <= until && until < 2 * MAX_EXACT).then_some(Self {
            used,
            at,
            until,
            // It was read from a store whose clock is the calendar.
            aligned: false,
        })
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        now >= self.until
    }

    fn begun(limit: &FixedWindow, now: u64) -> Self {
        Self {
            used: 0,
            at: now,
            until: limit.end(now),
            aligned: limit.is_aligned(),
        }
    }

    /// Charged, by a policy that says by which clock it goes on.
    fn charged(self, limit: &FixedWindow, used: u64, now: u64) -> Self {
        Self {
            used,
            at: now,
            aligned: limit.is_aligned(),
            ..self
        }
    }

    /// The count at a moment under one policy, as the same part of another one's limit.
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

    /// The count at a moment, under the policy of this call; `None` if there is none any more.
    fn view(limit: &FixedWindow, stored: Option<Self>, now: u64) -> Option<Self> {
        let stored = stored.filter(|stored| !stored.is_expired(now))?;
        let back = match limit.periods {
            // Time that ran back moves the whole state back. What is aligned stays where it is in
            // the calendar.
            Periods::FirstUse => stored.at.saturating_sub(now),
            _ => 0,
        };
        // A period never lasts longer than one of this policy, whoever began it and however far the
        // clock stepped back.
        let until = (stored.until - back).min(now + limit.window);
        Some(Self {
            used: stored.used,
            at: stored.at.min(now),
            until,
            ..stored
        })
    }
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
    let live = PeriodCount::view(limit, stored, now);
    let mut count = live.unwrap_or_else(|| PeriodCount::begun(limit, now));
    let fits = cost == 0 || count.used + cost <= limit.limit;
    let charged = fits && mode == Mode::Charge;
    if charged {
        count = count.charged(limit, count.used + cost, now);
    }
    // A denial writes nothing, unless the end of the period has moved: it would move at the next
    // call again.
    let mended = mode != Mode::Peek && live.is_some() && live != stored;
    if charged || mended {
        *state = StepState::FixedWindow(count);
    }
    let left = count.until - now;
    let reset_after = if count.used > 0 { left } else { 0 };
    StepOutcome {
        fits,
        remaining: limit.limit.saturating_sub(count.used),
        retry_after: if fits { 0 } else { left },
        reset_after,
        // All of them come back together.
        next_after: reset_after,
        expires_after: match state {
            StepState::FixedWindow(count) => count.until.saturating_sub(now),
            _ => 0,
        },
        ..StepOutcome::default()
    }
}

/// Gives up to `permits` of the period that runs back.
pub(super) fn refund(limit: &FixedWindow, state: &mut StepState, permits: u64, now: u64) {
    let Some(mut count) = PeriodCount::view(limit, stored(state), now) else {
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

/// Charges permits whether they fit or not: a count can stand above the limit until its period
/// ends.
pub(super) fn owe(limit: &FixedWindow, state: &mut StepState, permits: u64, now: u64) {
    if permits == 0 {
        return;
    }
    let count =
        PeriodCount::view(limit, stored(state), now).unwrap_or_else(|| PeriodCount::begun(limit, now));
    let used = count.used.saturating_add(permits).min(MAX_EXACT);
    *state = StepState::FixedWindow(count.charged(limit, used, now));
}
