//! The exact sliding window: a ring of the times of the newest permits.
//!
//! A call of cost n fits if the (limit − n + 1)-th newest time is at least one window ago: then at
//! most limit − n permits lie in the window that ends now. Admission reads one entry of the ring;
//! the remaining permits are found by bisection.
//!
//! Invariant: no window contains more granted permits than the limit, also if the clock steps back.
//! Tests: `tests/properties.rs` (`window_keeps_bound_and_equals_log`,
//! `clock_step_back_keeps_bounds`), `tests/differential.rs`, `tests/contract/policies.rs` (changed
//! rings).

use crate::algorithm::{Mode, StepOutcome, StepState};
use crate::policy::SlidingWindow;

/// The times of the newest permits, oldest first once unrolled from `head`.
///
/// Times are the clock's plus `skew`: when the clock steps back, the skew grows by the step, so
/// that the ring's own time never decreases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Grows one by one until it has `size` entries, then wraps.
    moments: Vec<u64>,
    /// Capacity of the ring: the largest limit that has charged it.
    size: usize,
    /// Index of the next write.
    head: usize,
    skew: u64,
    /// From this time (of the ring) the state equals absence, under every policy that has charged
    /// it.
    keep_until: u64,
}

impl Ring {
    pub(super) fn is_expired(&self, now: u64) -> bool {
        now + self.skew >= self.keep_until
    }

    /// Returns the clock time from which the state equals absence.
    pub(super) fn idle_at(&self) -> u64 {
        self.keep_until.saturating_sub(self.skew)
    }

    /// Returns the `nth` newest entry, counted from 1.
    fn newest(&self, nth: usize) -> Option<u64> {
        let len = self.moments.len();
        if nth == 0 || nth > len {
            return None;
        }
        // Before the first wrap `head == len` (or 0 when just full), so the same arithmetic serves
        // both.
        self.moments.get((self.head + len - nth) % len).copied()
    }

    /// Overwrites the `nth` newest entry, counted from 1.
    fn set(&mut self, nth: usize, to: u64) {
        let len = self.moments.len();
        if let Some(moment) = self.moments.get_mut((self.head + len - nth) % len) {
            *moment = to;
        }
    }

    /// Returns the number of entries later than `edge`. Entries never decrease, so this bisects.
    fn later_than(&self, edge: u64) -> usize {
        let (mut later, mut not_later) = (0, self.moments.len() + 1);
        while not_later - later > 1 {
            let middle = later + (not_later - later) / 2;
            if self.newest(middle).is_some_and(|moment| moment > edge) {
                later = middle;
            } else {
                not_later = middle;
            }
        }
        later
    }

    /// Grows the capacity to `size` entries, oldest first.
    fn grow(&mut self, size: usize) {
        if size > self.size {
            if self.moments.len() == self.size {
                self.moments.rotate_left(self.head);
            }
            self.head = self.moments.len();
            self.size = size;
        }
    }

    fn push(&mut self, moment: u64, count: usize) {
        for _ in 0..count {
            match self.moments.get_mut(self.head) {
                Some(slot) => *slot = moment,
                None => self.moments.push(moment),
            }
            self.head = (self.head + 1) % self.size;
        }
    }
}

pub(super) fn step(
    limit: &SlidingWindow,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    let stored = if let StepState::SlidingWindow(ring) = state {
        Some(ring)
    } else {
        None
    };
    let live = stored.filter(|ring| !ring.is_expired(now));
    let size = index(limit.limit);
    let Some(ring) = live else {
        let mut fresh = Ring {
            moments: Vec::new(),
            size,
            head: 0,
            skew: 0,
            keep_until: now,
        };
        let outcome = step_ring(limit, &mut fresh, now, cost, mode);
        if mode == Mode::Charge {
            *state = StepState::SlidingWindow(Box::new(fresh));
        }
        return outcome;
    };
    let newest = ring.newest(1).unwrap_or(0);
    let ahead = now + ring.skew < newest;
    if !ahead {
        return step_ring(limit, ring, now, cost, mode);
    }
    let skew = std::mem::replace(&mut ring.skew, newest - now);
    let outcome = step_ring(limit, ring, now, cost, mode);
    if mode == Mode::Peek {
        ring.skew = skew;
    }
    outcome
}

/// Executes the step on a ring whose time is not behind its newest entry.
fn step_ring(limit: &SlidingWindow, ring: &mut Ring, now: u64, cost: u64, mode: Mode) -> StepOutcome {
    let ring_now = now + ring.skew;
    // A window that reaches back before the epoch contains every entry except zero, which
    // represents a refunded permit.
    let edge = ring_now.saturating_sub(limit.window);
    let mut used = ring.later_than(edge);

    // The first entry that has to leave the window.
    let blocking = limit
        .limit
        .checked_sub(cost)
        .and_then(|rest| ring.newest(index(rest) + 1));
    let retry_after = match blocking {
        Some(moment) if cost > 0 && moment > edge => (moment + limit.window).saturating_sub(ring_now),
        _ => 0,
    };
    let fits = retry_after == 0;
    let charged = fits && mode == Mode::Charge;
    if charged {
        if let Some(newest) = ring.newest(1) {
            // The longest window that has used the ring is extended: the new permit counts in it
            // too.
            ring.keep_until += ring_now - newest;
        }
        ring.grow(index(limit.limit));
        ring.push(ring_now, index(cost));
        used += index(cost);
    }

    let reset_after = ring
        .newest(1)
        .filter(|newest| *newest > edge)
        .map_or(0, |newest| (newest + limit.window).saturating_sub(ring_now));
    // A denial writes nothing, unless the state would expire before the reported time (a longer
    // window reads the state of a shorter one).
    if mode != Mode::Peek {
        ring.keep_until = ring.keep_until.max(ring_now + reset_after);
    }
    // The oldest permit expires next. If the usage exceeds the limit of this policy, more permits
    // have to expire, and at most all.
    let next_after = match ring.newest(used) {
        Some(oldest) if used as u64 <= limit.limit => (oldest + limit.window).saturating_sub(ring_now),
        _ => reset_after,
    };
    StepOutcome {
        fits,
        remaining: limit.limit.saturating_sub(used as u64),
        retry_after,
        reset_after,
        next_after,
        expires_after: ring.keep_until.saturating_sub(ring_now),
        ..StepOutcome::default()
    }
}

/// Refunds up to `count` permits, the oldest first: those that would leave the window next. A
/// refunded permit gets the time of its predecessor, which has left the window, so the order is
/// preserved.
pub(super) fn refund(limit: &SlidingWindow, state: &mut StepState, count: u64, now: u64) {
    let StepState::SlidingWindow(ring) = state else {
        return;
    };
    let Some(newest) = ring.newest(1).filter(|_| !ring.is_expired(now)) else {
        return;
    };
    let ring_now = newest.max(now + ring.skew);
    let live = ring.later_than(ring_now.saturating_sub(limit.window));
    let refunded = live.min(index(count));
    if refunded == 0 {
        return;
    }
    let before = ring.newest(live + 1).unwrap_or(0);
    for nth in live - refunded + 1..=live {
        ring.set(nth, before);
    }
    ring.skew = ring_now - now;
    // The longest window that has used the ring keeps its distance to the newest permit.
    let moved = newest - ring.newest(1).unwrap_or(0);
    ring.keep_until = ring.keep_until.saturating_sub(moved);
    if ring.is_expired(now) {
        *state = StepState::Absent;
    }
}

/// Charges `count` permits unconditionally. The ring keeps the newest entries, as many as the
/// largest limit that has charged it, so a debt beyond the limit lasts for one window.
pub(super) fn force_charge(limit: &SlidingWindow, state: &mut StepState, count: u64, now: u64) {
    if count == 0 {
        return;
    }
    let size = index(limit.limit);
    let mut ring = match std::mem::take(state) {
        StepState::SlidingWindow(ring) if !ring.is_expired(now) => ring,
        _ => Box::new(Ring {
            moments: Vec::new(),
            size,
            head: 0,
            skew: 0,
            keep_until: now,
        }),
    };
    if let Some(newest) = ring.newest(1) {
        ring.skew = ring.skew.max(newest.saturating_sub(now));
        // The longest window that has used the ring is extended.
        ring.keep_until += now + ring.skew - newest;
    }
    let ring_now = now + ring.skew;
    ring.grow(size);
    ring.push(ring_now, index(count.min(limit.limit)));
    ring.keep_until = ring.keep_until.max(ring_now + limit.window);
    *state = StepState::SlidingWindow(ring);
}

/// Converts a count to an index. Limits are at most 2^20, so this never saturates.
fn index(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
