//! The token bucket: tokens come back at a rate, up to a capacity; a call takes as many as it costs.
//!
//! Over any time T it admits at most capacity + rate·T. The state is brought forward on use, as in J. Turner, "New
//! directions in communications" (1986), with a remainder in place of rounding.

use super::{Mode, Outcome, State};
use crate::policy::TokenBucket;

/// A bucket as it stood at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketState {
    /// Thousandths of a token.
    tokens: u64,
    /// Parts of the next thousandth that have come already …
    remainder: u64,
    /// … of which so many make one.
    parts: u64,
    /// The moment, in microseconds.
    at: u64,
    /// From this moment on the state equals absence, under every policy that has used it.
    keep_until: u64,
}

impl BucketState {
    pub(super) fn is_spent(&self, now: u64) -> bool {
        now >= self.keep_until
    }
}

pub(super) fn step(limit: &TokenBucket, state: &mut State, cost: u64, now: u64, mode: Mode) -> Outcome {
    let stored = if let State::TokenBucket(bucket) = state {
        Some(*bucket)
    } else {
        None
    };
    let mut bucket = view(limit, stored, now);
    // A stored time ahead of the clock is mended on a denial too: it would be ahead at the next call again.
    let ahead = stored.is_some_and(|stored| now < stored.at && !stored.is_spent(now));

    let fits = cost == 0 || bucket.tokens >= cost;
    let retry_after = if fits {
        0
    } else {
        limit.rate.time_for(cost - bucket.tokens, bucket.remainder)
    };
    if fits && mode == Mode::Charge {
        bucket.tokens -= cost;
    }

    let reset_after = limit
        .rate
        .time_for(limit.capacity - bucket.tokens, bucket.remainder);
    let keep_until = bucket.keep_until.max(now + reset_after);
    // A denial writes nothing, unless the state would expire before the moment that the answer names (a slower policy
    // looks at what a faster one stored).
    let charged = fits && mode == Mode::Charge;
    let mended = mode != Mode::Peek && stored.is_some() && (ahead || keep_until > bucket.keep_until);
    if charged || mended {
        bucket.keep_until = keep_until;
        *state = State::TokenBucket(bucket);
    }
    Outcome {
        fits,
        remaining: bucket.tokens,
        retry_after,
        reset_after,
        expires_after: bucket.keep_until.saturating_sub(now),
    }
}

/// The bucket at `now`: refilled, and read under the policy of this call.
fn view(limit: &TokenBucket, stored: Option<BucketState>, now: u64) -> BucketState {
    let parts = limit.rate.micros;
    let Some(stored) = stored.filter(|stored| !stored.is_spent(now)) else {
        return BucketState {
            tokens: limit.capacity,
            remainder: 0,
            parts,
            at: now,
            keep_until: now,
        };
    };
    let remainder = limit.rate.convert(stored.remainder, stored.parts);
    let (gained, remainder) = limit.rate.accrue(now.saturating_sub(stored.at), remainder);
    let tokens = limit.capacity.min(stored.tokens + gained);
    BucketState {
        tokens,
        remainder: if tokens == limit.capacity { 0 } else { remainder },
        parts,
        at: now,
        // Time that ran back moves the whole state back.
        keep_until: stored.keep_until - stored.at.saturating_sub(now),
    }
}
