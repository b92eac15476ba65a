//! The sliding window with two counters: the weight of the previous period decreases while the
//! current one runs.
//!
//! The first period starts with the first permit after an idle time; further periods follow
//! directly while any permit counts. At each time, the estimated usage is previous · (remaining
//! part of the period) + current, and a cost fits if the estimate plus the cost is within the
//! limit.
//!
//! Error bound: each permit increases the estimate by one, a charge never raises it above the
//! limit, and it decreases by at most `previous` ≤ limit per window. Over *any* time T at most
//! limit · (1 + T / window) permits are therefore admitted, as by a bucket of that capacity and
//! rate, and in any window less than twice the limit. A client that knows the period boundaries and
//! takes all permits at the very end of two consecutive periods comes within one permit of this
//! bound. `tests/counter_error.rs` measures both cases and random calls.
//!
//! The stored state contains its window length, which determines the decay, so policies with other
//! windows read the same estimate. Under a policy with a shorter window, the current estimate
//! decays over that window; a longer window takes effect when its policy charges the first permit
//! of a new period. The bound therefore holds for the larger limit and the shorter window of
//! alternating policies.

use crate::algorithm::ratio::QuotaRatio;
use crate::algorithm::{Mode, StepOutcome, StepState};
use crate::policy::{CounterWindow, MAX_COUNTED};

/// Permits of the current and of the previous period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowCounters {
    /// Permits of the current period.
    pub(super) current: u64,
    /// Permits of the previous period.
    pub(super) previous: u64,
    /// Start of the current period, in microseconds.
    pub(super) start: u64,
    /// Length of a period.
    pub(super) window: u64,
    /// Time of the last write.
    pub(super) at: u64,
}

impl WindowCounters {
    /// Validates numbers that were read from a store.
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

    /// Counters without permits.
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

    /// Returns the time from which no permit counts.
    pub(super) fn end(&self) -> u64 {
        match (self.current, self.previous) {
            (0, 0) => self.start,
            (0, _) => self.start + self.window,
            _ => self.start + 2 * self.window,
        }
    }

    /// Returns the counters at `now` under the policy of this call; `None` if no permit counts.
    fn view(limit: &CounterWindow, stored: Option<Self>, now: u64) -> Option<Self> {
        let mut counters = Self::unshortened(stored, now)?;
        if limit.window < counters.window {
            counters.begin(limit.window, now);
        }
        Some(counters)
    }

    /// As [`view`](Self::view), but the estimate decays over the stored window, as it does until a
    /// call shortens it.
    fn unshortened(stored: Option<Self>, now: u64) -> Option<Self> {
        let mut counters = stored.filter(|stored| !stored.is_expired(now))?;
        // If the clock stepped back, the whole state moves back.
        counters.start = counters.start.saturating_sub(counters.at.saturating_sub(now));
        counters.at = counters.at.min(now);
        Some(counters)
    }

    /// Converts the counters at the time `at` to the limit of another policy.
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

    /// Advances the counters to the current period.
    fn rolled(mut self, now: u64) -> Self {
        if now - self.start >= self.window {
            self.start += self.window;
            self.previous = std::mem::take(&mut self.current);
        }
        self
    }

    /// Starts a period of another length; the current estimate becomes the previous period.
    fn begin(&mut self, window: u64, now: u64) {
        self.previous = self.used(now).min(MAX_COUNTED);
        self.current = 0;
        self.start = now;
        self.window = window;
        self.at = now;
    }

    /// Returns the estimated usage, rounded up.
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

    /// Returns the first time at which at most `rest` of the permits so far count.
    fn moment_of(&self, rest: u64) -> u64 {
        // In this period the estimate decreases to `current`, in the next one to zero.
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

/// Returns a · b / c with the given rounding, saturated at 64 bits.
fn part(a: u64, b: u64, c: u64, divide: fn(u128, u128) -> u128) -> u64 {
    u64::try_from(divide(u128::from(a) * u128::from(b), u128::from(c))).unwrap_or(u64::MAX)
}

/// Returns the part of an amount that counts `left` microseconds before it expires.
pub(super) fn weighted(amount: u64, left: u64, window: u64) -> u64 {
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
    let live = match mode {
        Mode::Peek => WindowCounters::unshortened(stored, now),
        Mode::Charge | Mode::Refuse => WindowCounters::view(limit, stored, now),
    };
    let mut counters = live.unwrap_or_else(|| WindowCounters::unused(limit, now));
    let mut used = counters.used(now);
    let fits = cost == 0 || used + cost <= limit.limit;
    let retry_after = if fits {
        0
    } else {
        let rest = limit.limit.saturating_sub(cost);
        match counters.rolled(now).moment_of(rest).saturating_sub(now) {
            // The cost exceeds the limit of a policy that decides until a scheduled change.
            0 => limit.window,
            time => time,
        }
    };
    let charged = fits && mode == Mode::Charge;
    if charged {
        counters.charge(limit, cost, now);
        used += cost;
    }
    // A denial writes nothing, unless the counters were moved or restarted: each later call would
    // have to repeat that.
    let repaired = mode != Mode::Peek && live.is_some() && live != stored;
    if charged || repaired {
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

/// Refunds up to `permits` of the estimate, the oldest first: those of the previous period. The
/// estimate decays over the stored window, which may be that of a later policy.
pub(super) fn refund(state: &mut StepState, permits: u64, now: u64) {
    let Some(counters) = WindowCounters::unshortened(stored(state), now) else {
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
    // The count whose remaining weight equals the remaining estimate.
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

/// Charges permits unconditionally: the estimate can exceed the limit for at most two windows.
pub(super) fn force_charge(limit: &CounterWindow, state: &mut StepState, permits: u64, now: u64) {
    if permits == 0 {
        return;
    }
    let live = WindowCounters::view(limit, stored(state), now);
    let mut counters = live.unwrap_or_else(|| WindowCounters::unused(limit, now));
    counters.charge(limit, permits, now);
    *state = StepState::CounterWindow(counters);
}
