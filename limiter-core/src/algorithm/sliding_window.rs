//! The exact sliding window: a ring of the moments at which the newest permits were given.
//!
//! A call of cost n fits when the (limit − n + 1)-th newest moment is a window ago or longer: then
//! at most limit − n permits lie in the window that ends now. Admission reads one moment of the
//! ring; what remains is found by bisection.

use crate::algorithm::{Mode, StepOutcome, StepState};
use crate::policy::SlidingWindow;

/// The moments of the newest permits, oldest first once unrolled from `head`.
///
/// Times are the clock's plus `skew`: when the clock steps back, the skew grows by the step, so
/// that the ring's own time never runs back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Grows one by one until it has `size` moments, then wraps.
    moments: Vec<u64>,
    /// How many moments the ring keeps: the largest limit that has charged it.
    size: usize,
    /// Where the next moment is written.
    head: usize,
    skew: u64,
    /// From this moment on (in the ring's time) the state equals absence, under every policy that
    /// has charged it.
    keep_until: u64,
}

impl Ring {
    pub(super) fn is_expired(&self, now: u64) -> bool {
        now + self.skew >= self.keep_until
    }

    /// The clock's time from which on it is spent.
    pub(super) fn idle_at(&self) -> u64 {
        self.keep_until.saturating_sub(self.skew)
    }

    /// The `nth` newest moment, counted from 1.
    fn newest(&self, nth: usize) -> Option<u64> {
        let len = self.moments.len();
        if nth == 0 || nth > len {
            return None;
        }
        // Before the first wrap `head == len` (or 0 when just full), so the same arithmetic serves
        // both.
        self.moments.get((self.head + len - nth) % len).copied()
    }

    /// Overwrites the `nth` newest moment, counted from 1.
    fn set(&mut self, nth: usize, to: u64) {
        let len = self.moments.len();
        if let Some(moment) = self.moments.get_mut((self.head + len - nth) % len) {
            *moment = to;
        }
    }

    /// How many moments are later than `edge`. Moments never decrease, so this bisects.
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

    /// Makes room for `size` moments, oldest first.
    fn grow(&mut self, size: usize) {
        if size > self.size {
            if self.moments.len() == self.size {
                self.moments.rotate_left(self.head);
            }
            self.head = self.moments.len();
            self.size = size;
        }
    }

    fn push(&mut self, moment: u64, times: usize) {
        for _ in 0..times {
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

/// The step on a ring whose time is not behind its newest moment.
fn step_ring(limit: &SlidingWindow, ring: &mut Ring, now: u64, cost: u64, mode: Mode) -> StepOutcome {
    let ring_now = now + ring.skew;
    // In a window that reaches back before the epoch lies every moment but zero, which stands for a
    // permit given back.
    let edge = ring_now.saturating_sub(limit.window);
    let mut used = ring.later_than(edge);

    // The first moment that would have to leave the window.
    let in_the_way = limit
        .limit
        .checked_sub(cost)
        .and_then(|rest| ring.newest(index(rest) + 1));
    let retry_after = match in_the_way {
        Some(moment) if cost > 0 && moment > edge => (moment + limit.window).saturating_sub(ring_now),
        _ => 0,
    };
    let fits = retry_after == 0;
    let charged = fits && mode == Mode::Charge;
    if charged {
        if let Some(newest) = ring.newest(1) {
            // The longest window that has used the ring travels along: what is granted now counts
            // in it too.
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
    // A denial writes nothing, unless the state would expire before the moment that the answer
    // names (a longer window looks at what a shorter one stored).
    if mode != Mode::Peek {
        ring.keep_until = ring.keep_until.max(ring_now + reset_after);
    }
    // The oldest leaves next. Where more is used than this policy gives, it takes more than that,
    // and at most until all has left.
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

/// Gives up to `count` permits back, the oldest first: those that would leave the window next. A
/// permit that is given back gets the moment of the one before it, which has left the window, so
/// the moments stay in order.
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
    // The longest window that has used the ring ends as long after its newest permit as before.
    let moved = newest - ring.newest(1).unwrap_or(0);
    ring.keep_until = ring.keep_until.saturating_sub(moved);
    if ring.is_expired(now) {
        *state = StepState::Absent;
    }
}

/// Gives `count` permits now, whatever is left. The ring remembers the newest, as many as the
/// largest limit that has charged it, so that a debt beyond the limit lasts for one window.
pub(super) fn owe(limit: &SlidingWindow, state: &mut StepState, count: u64, now: u64) {
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
        // The longest window that has used the ring travels along.
        ring.keep_until += now + ring.skew - newest;
    }
    let ring_now = now + ring.skew;
    ring.grow(size);
    ring.push(ring_now, index(count.min(limit.limit)));
    ring.keep_until = ring.keep_until.max(ring_now + limit.window);
    *state = StepState::SlidingWindow(ring);
}

/// A count as an index. Limits are at most 2^20, so this never saturates.
fn index(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
