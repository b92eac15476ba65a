//! Answers for a limit that is used up, without asking Redis, until a permit comes back.
//!
//! What Redis denied it would deny again until the `retry_after` that it named, since time is all that gives permits back,
//! apart from a reset and a change of the policy. Those that are made through this limiter are seen at once, those that are
//! made elsewhere once the cap is over. So nothing is admitted that Redis would deny, and nothing denied that it would admit
//! for longer than the cap.
//!
//! Time is counted from when the question was submitted, on this process's clock: the store decided later, and so its own
//! retry time is never earlier than the one that is kept here. What a caller is told is in the store's time.

mod denial;
mod shard;

use std::time::Duration;

use crate::algorithm::Mode;
use crate::clock::Clock;
use crate::request::{Limit, Request, Verdict};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::micros_ceil;
use denial::{Answer, Denial};
use shard::Shard;

/// A power of two, as is the next: a quotient is then a shift.
const SHARDS: usize = 64;
const GENERATIONS: usize = 1_024;
/// Above the number of those that are being forgotten, which the bits below it count.
const FORGOTTEN: u64 = 1 << 32;
/// So many limits are kept at most, and the last half of so many surely: some 10 MB when all of them are denied at once.
const MAX_LIMITS: usize = 65_536;

/// What was denied, and when to ask again.
#[derive(Debug)]
pub(super) struct DenyCache {
    /// None when nothing is to be kept.
    shards: Box<[Shard]>,
    /// How often the limits of a part of all identities were forgotten, in [`FORGOTTEN`]s, and how many are about to be. A
    /// denial counts only as long as none of its limits was, which holds as well for one that is still on its way, or is
    /// about several limits. That others share the number costs them a question.
    generations: Box<[AtomicU64]>,
    cap_micros: u64,
    clock: Clock,
}

/// A question on its way to the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Submission {
    /// In microseconds of this process's clock.
    at: u64,
    generation: u64,
}

impl DenyCache {
    /// Answers for so long at most; never, when it is zero.
    pub(super) fn new(clock: Clock, cap: Duration) -> Self {
        let shards = if cap.is_zero() { 0 } else { SHARDS };
        Self {
            shards: (0..shards)
                .map(|_| Shard::new(MAX_LIMITS / (2 * SHARDS)))
                .collect(),
            generations: (0..GENERATIONS).map(|_| AtomicU64::new(0)).collect(),
            cap_micros: micros_ceil(cap),
            clock,
        }
    }

    /// The denial that the store would answer, if that is known.
    pub(super) fn answer(&self, request: &Request<'_>) -> Option<Verdict> {
        if request.mode != Mode::Charge {
            return None;
        }
        let shard = self.shard(request).filter(|shard| !shard.is_empty())?;
        let (hash, now) = (hash(request), self.clock.now().as_micros());
        let generation = self.generation(request).filter(|_| !request.is_free())?;
        match shard.find(hash, request, |denial| denial.answer(request, generation, now))? {
            Answer::Denied(verdict) => Some(verdict),
            Answer::Unknown => None,
            Answer::Superseded => {
                shard.remove(hash, request);
                None
            }
        }
    }

    /// To be called before the store is asked: what its answer counts from, if a denial is to be kept.
    pub(super) fn submission(&self, request: &Request<'_>) -> Option<Submission> {
        self.shard(request).filter(|_| request.mode == Mode::Charge)?;
        Some(Submission {
            generation: self.generation(request)?,
            at: self.clock.now().as_micros(),
        })
    }

    /// Keeps the store's answer if it is a denial.
    pub(super) fn heard(&self, request: &Request<'_>, verdict: &Verdict, submission: Option<Submission>) {
        let Some(shard) = self.shard(request) else { return };
        let now = || self.clock.now().as_micros();
        let denial = submission
            .filter(|submission| self.generation(request) == Some(submission.generation))
            .and_then(|submission| Denial::new(request, verdict, submission, self.cap_micros));
        if let Some(denial) = denial {
            shard.note(hash(request), denial, now(), self.cap_micros);
        } else if !shard.is_empty() {
            shard.tidy(now(), self.cap_micros);
        }
    }

    /// To be held while permits are given back to each limit of the request. From now on nothing is known of them; what is on
    /// its way when it is dropped is not learned either.
    pub(super) fn forget<'a, 'r>(&'a self, request: &'a Request<'r>) -> Forgetting<'a, 'r> {
        let forgetting = Forgetting { cache: self, request };
        forgetting.add(1);
        forgetting
    }

    /// Grows with each limit of the request that is forgotten; none while one is.
    fn generation(&self, request: &Request<'_>) -> Option<u64> {
        let each = request
            .limits
            .iter()
            .filter_map(|limit| self.generation_of(limit));
        let sum = each.fold(0_u64, |sum, generation| {
            sum.wrapping_add(generation.load(Ordering::Acquire))
        });
        sum.is_multiple_of(FORGOTTEN).then_some(sum)
    }

    fn generation_of(&self, limit: &Limit<'_>) -> Option<&AtomicU64> {
        self.generations.get(limit.identity.shard(GENERATIONS))
    }

    fn shard(&self, request: &Request<'_>) -> Option<&Shard> {
        self.shards.get(request.limits.first()?.identity.shard(SHARDS))
    }
}

/// Limits to which permits are given back.
#[derive(Debug)]
#[must_use = "they are forgotten for as long as it is held"]
pub(super) struct Forgetting<'a, 'r> {
    cache: &'a DenyCache,
    request: &'a Request<'r>,
}

impl Forgetting<'_, '_> {
    fn add(&self, number: u64) {
        let limits = self.request.limits.iter();
        for generation in limits.filter_map(|limit| self.cache.generation_of(limit)) {
            generation.fetch_add(number, Ordering::AcqRel);
        }
    }
}

impl Drop for Forgetting<'_, '_> {
    fn drop(&mut self) {
        self.add(FORGOTTEN - 1);
    }
}

/// Where to look for it: the table compares the limits themselves.
fn hash(request: &Request<'_>) -> u64 {
    let hashes = request.limits.iter().map(|limit| limit.identity.hash());
    hashes.fold(0, |list, hash| list.rotate_left(1) ^ hash)
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests;
