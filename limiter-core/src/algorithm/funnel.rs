//! The funnel: a leaky bucket used as a meter. A call adds its cost to the level; the level drains at a rate.
//!
//! It admits as a token bucket of the same capacity and rate does (ITU-T I.371, annex A, shows the two equal). They
//! differ when the capacity changes: a bucket keeps what is left, a funnel what was used.

use super::{Mode, Outcome, State};
use crate::policy::Funnel;

/// A funnel as it stood at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunnelState {
    /// Thousandths of a permit that have not drained yet.
    level: u64,
    /// Parts of the next thousandth that have drained already …
    remainder: u64,
    /// … of which so many make one.
    parts: u64,
    /// The moment, in microseconds.
    at: u64,
    /// From this moment on the state equals absence, under every policy that has used it.
    keep_until: u64,
}

impl FunnelState {
    pub(super) fn is_spent(&self, now: u64) -> bool {
        now >= self.keep_until
    }
}

pub(super) fn step(limit: &Funnel, state: &mut State, cost: u64, now: u64, mode: Mode) -> Outcome {
    let stored = if let State::Funnel(funnel) = state {
        Some(*funnel)
    } else {
        None
    };
    let mut funnel = view(limit, stored, now);
    // A stored time ahead of the clock is mended on a denial too: it would be ahead at the next call again.
    let ahead = stored.is_some_and(|stored| now < stored.at && !stored.is_spent(now));

    let fits = cost == 0 || funnel.level + cost <= limit.capacity;
    let retry_after = if fits {
        0
    } else {
        limit
            .rate
            .time_for(funnel.level + cost - limit.capacity, funnel.remainder)
    };
    let charged = fits && mode == Mode::Charge;
    if charged {
        funnel.level += cost;
    }

    let reset_after = limit.rate.time_for(funnel.level, funnel.remainder);
    let keep_until = funnel.keep_until.max(now + reset_after);
    // A denial writes nothing, unless the state would expire before the moment that the answer names (a slower policy
    // looks at what a faster one stored).
    let mended = mode != Mode::Peek && stored.is_some() && (ahead || keep_until > funnel.keep_until);
    if charged || mended {
        funnel.keep_until = keep_until;
        *state = State::Funnel(funnel);
    }
    Outcome {
        fits,
        remaining: limit.capacity.saturating_sub(funnel.level),
        retry_after,
        reset_after,
        expires_after: funnel.keep_until.saturating_sub(now),
    }
}

/// The funnel at `now`: drained, and read under the policy of this call.
fn view(limit: &Funnel, stored: Option<FunnelState>, now: u64) -> FunnelState {
    let parts = limit.rate.micros;
    let Some(stored) = stored.filter(|stored| !stored.is_spent(now)) else {
        return FunnelState {
            level: 0,
            remainder: 0,
            parts,
            at: now,
            keep_until: now,
        };
    };
    let remainder = limit.rate.convert(stored.remainder, stored.parts);
    let (drained, remainder) = limit.rate.accrue(now.saturating_sub(stored.at), remainder);
    let level = stored.level.saturating_sub(drained);
    FunnelState {
        level,
        remainder: if level == 0 { 0 } else { remainder },
        parts,
        at: now,
        // Time that ran back moves the whole state back.
        keep_until: stored.keep_until - stored.at.saturating_sub(now),
    }
}
