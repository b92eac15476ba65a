//! The sliding window as two counters: what the period before gave counts less and less while this
//! one runs.
//!
//! Periods begin with the first permit that is given when nothing counts any more, and follow each
//! other while something does. After a part of a period, the last window is estimated to hold
//! previous · (the part that is left) + current permits, and a cost fits where that and the cost
//! stay within the limit.
//!
//! How far off can it be? The estimate rises by each permit that is given, never stands above the
//! limit, and falls no faster than by the limit in a window (by `previous` in a window; `previous`
//! is at most the limit). So over *any* time T at most limit · (1 + T / window) permits are given,
//! as by a bucket of that capacity and rate, and in any window less than twice the limit. It comes
//! as close to that as one permit where somebody who knows when the periods end takes all at the
//! very end of one, and all at the very end of the next. `tests/counter_error.rs` measures both,
//! and what random calls come to.
//!
//! What is stored tells its window, by which its permits lose their weight, so that policies with
//! other windows read the same estimate. A policy with a shorter window has all that counts at this
//! moment count less and less over a window of its own; one with a longer window begins when it is
//! the first to charge a new period. So the proof holds for the larger limit and the shorter window
//! of those that take turns.

use crate::algorithm::ratio::QuotaRatio;
use crate::algorithm::{Mode, StepOutcome, StepState};
use crate::policy::{CounterWindow, MAX_COUNTED};

/// What was given in a period, and in the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowCounters {
    /// Permits of the period that runs.
    pub(super) current: u64,
    /// Permits of the one before.
    pub(super) previous: u64,
    /// When the period began, in microseconds.
    pub(super) start: u64,
    /// How long it lasts.
    pub(super) window: u64,
    /// The last moment at which something was stored.
    pub(super) at: u64,
}

impl WindowCounters {
    /// What a store reads, if it is a pair of counters.
    #[cfg(feature = "redis")]
    pub(crate) fn stored([current, previous, start, window, at]: [u64; 5]) -> Option<Self> {
        let counters = Self {
            current,
            previous,
            start,
            window,
            at,
        };
        let counts = [current, previous, window]
            .iter()
            .all(|number| *number <= MAX_COUNTED);
        (counts && window > 0 && start <= at && at <= crate::units::MAX_EXACT).then_some(counters)
    }

    /// Nothing was given yet.
    fn unused(limit: &CounterWindow, now: u64) -> Self {
        Self {
            current: 0,
            previous: 0,
            start: now,
            window: limit.window,
            at: now,
        }
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        now >= self.end()
    }

    /// From when on nothing counts any more.
    pub(super) fn end(&self) -> u64 {
        match (self.current, self.previous) {
            (0, 0) => self.start,
            (0, _) => self.start + self.window,
            _ => self.start + 2 * self.window,
        }
    }

    /// The counters at a moment, under the policy of this call; `None` if nothing counts any more.
    fn view(limit: &CounterWindow, stored: Option<Self>, now: u64) -> Option<Self> {
        let mut counters = stored.filter(|stored| !stored.is_expired(now))?;
        // Time that ran back moves the whole state back.
        counters.start = counters.start.saturating_sub(counters.at.saturating_sub(now));
        counters.at = counters.at.min(now);
        if limit.window < counters.window {
            counters.begin(limit.window, now);
        }
        Some(counters)
    }

    /// What counts at a moment under one policy, as the same part of another one's limit.
    pub(super) fn scaled(
        self,
        before: &CounterWindow,
        after: &CounterWindow,
        ratio: QuotaRatio,
        at: u64,
    ) -> Option<Self> {
        let mut counters = Self::view(before, Some(self), at)?;
        for count in [&mut counters.current, &mut counters.previous] {
            *count = ratio.up(*count).min(MAX_COUNTED);
        }
        Self::view(after, Some(Self { at, ..counters }), at)
    }

    /// The same with the period that runs at this moment.
    fn rolled(mut self, now: u64) -> Self {
        if now - self.start >= self.window {
            self.start += self.window;
            self.previous = std::mem::take(&mut self.current);
        }
        self
    }

    /// Begins a period of another length, before which was given what counts now.
    fn begin(&mut self, window: u64, now: u64) {
        self.previous = self.used(now).min(MAX_COUNTED);
        self.current = 0;
        self.start = now;
        self.window = window;
        self.at = now;
    }

    /// The estimate, rounded up.
    fn used(&self, now: u64) -> u64 {
        let Self {
            current,
            previous,
            start,
            window,
            ..
        } = self.rolled(now);
        let left = window.saturating_sub(now - start);
        current + part(previous, left, window, u128::div_ceil)
    }

    /// The first moment at which no more than `rest` permits of those given so far count.
    fn moment_of(&self, rest: u64) -> u64 {
        // In this period what counts falls to `current`, in the next one to nothing.
        let (start, counts, rest) = match rest.checked_sub(self.current) {
            Some(rest) => (self.start, self.previous, rest),
            None => (self.start + self.window, self.current, rest),
        };
        if counts == 0 {
            return start;
        }
        let left = part(self.window, rest, counts, |a, b| a / b);
        start + self.window.saturating_sub(left)
    }

    fn charge(&mut self, limit: &CounterWindow, permits: u64, now: u64) {
        *self = self.rolled(now);
        if self.current == 0 && self.window != limit.window {
            self.begin(limit.window, now);
        }
        self.current = self.current.saturating_add(permits).min(MAX_COUNTED);
        self.at = now;
    }
}

/// a · b / c, rounded as told; at most what 64 bits hold.
fn part(a: u64, b: u64, c: u64, divide: fn(u128, u128) -> u128) -> u64 {
    u64::try_from(divide(u128::from(a) * u128::from(b), u128::from(c))).unwrap_or(u64::MAX)
}

/// How much of an amount still counts where nothing of it will in so much time.
pub(super) fn still_counts(amount: u64, left: u64, window: u64) -> u64 {
    part(amount, left.min(window), window, |a, b| a / b)
}

fn stored(state: &StepState) -> Option<WindowCounters> {
    match state {
        StepState::CounterWindow(counters) => Some(*counters),
        _ => None,
    }
}

pub(super) fn step(
    limit: &CounterWindow,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    let stored = stored(state);
    let live = WindowCounters::view(limit, stored, now);
    let mut counters = live.unwrap_or_else(|| WindowCounters::unused(limit, now));
    let mut used = counters.used(now);
    let fits = cost == 0 || used + cost <= limit.limit;
    let retry_after = if fits {
        0
    } else {
        let rest = limit.limit.saturating_sub(cost);
        counters.rolled(now).moment_of(rest).saturating_sub(now)
    };
    let charged = fits && mode == Mode::Charge;
    if charged {
        counters.charge(limit, cost, now);
        used += cost;
    }
    // A denial writes nothing, unless the counters have been moved or begun anew: they would be at
    // the next call again.
    let mended = mode != Mode::Peek && live.is_some() && live != stored;
    if charged || mended {
        *state = StepState::CounterWindow(counters);
    }
    let next_after = match used.min(limit.limit) {
        0 => 0,
        counts => counters.rolled(now).moment_of(counts - 1).saturating_sub(now),
    };
    StepOutcome {
        fits,
        remaining: limit.limit.saturating_sub(used),
        retry_after,
        reset_after: counters.end().saturating_sub(now),
        next_after,
        expires_after: match state {
            StepState::CounterWindow(counters) => counters.end().saturating_sub(now),
            _ => 0,
        },
        ..StepOutcome::default()
    }
}

/// Gives back up to `permits` of what counts at this moment, the oldest first: those of the period
/// before.
pub(super) fn refund(limit: &CounterWindow, state: &mut StepState, permits: u64, now: u64) {
    let Some(counters) = WindowCounters::view(limit, stored(state), now) else {
        return;
    };
    let mut counters = counters.rolled(now);
    let weight = counters.used(now) - counters.current;
    let given = permits.min(weight + counters.current);
    if given == 0 {
        return;
    }
    let of_previous = given.min(weight);
    let left = counters.window.saturating_sub(now - counters.start);
    // As many as count for what is left of their weight.
    let kept = part(weight - of_previous, counters.window, left.max(1), |a, b| a / b);
    counters.previous = counters.previous.min(kept);
    counters.current -= given - of_previous;
    counters.at = now;
    *state = if counters.used(now) == 0 {
        StepState::Absent
    } else {
        StepState::CounterWindow(counters)
    };
}

/// Charges permits whether they fit or not: the estimate can stand above the limit, for two windows
/// at most.
pub(super) fn owe(limit: &CounterWindow, state: &mut StepState, permits: u64, now: u64) {
    if permits == 0 {
        return;
    }
    let live = WindowCounters::view(limit, stored(state), now);
    let mut counters = live.unwrap_or_else(|| WindowCounters::unused(limit, now));
    counters.charge(limit, permits, now);
    *state = StepState::CounterWindow(counters);
}
