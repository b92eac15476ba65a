//! Eviction from a full table: a new key takes the place of the key that is closest to idle among a
//! few.
//!
//! An evicted key starts over as if it had never been used, so an eviction admits at most the usage
//! of the key once more. That is least for the key that expires soonest, since its usage would
//! return by itself in that time. An exact order of all keys would cost every decision; a sample of
//! 16 keys costs only evictions, and the victim is the exact one in a table of up to 16 keys.
//!
//! Invariants: the bound on keys holds at all times; an insertion examines at most [`SAMPLE`] keys
//! for each key that it evicts; the keys of the decision that needs the room are never evicted.
//!
//! Tests: `evict/tests.rs`.

use crate::identity::Identity;
use crate::memory::{CapacityExceeded, MemoryStore, SHARDS};
use crate::request::ValidatedLimit;
use crate::support::log_throttle::LogThrottle;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::units::Timestamp;

/// Number of keys that are examined for one eviction.
const SAMPLE: usize = 16;
/// Other threads may take the space that an eviction made; a thread gives up after this number of
/// attempts.
const MAX_ATTEMPTS: usize = 32;

/// The number of evicted keys, and the time of the last log event.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    count: AtomicU64,
    logged: LogThrottle,
}

impl MemoryStore {
    /// Evicts as many keys as are missing. Returns `false` if the store does not evict, or has no
    /// key that it may evict.
    #[cold]
    pub(super) fn evict(
        &self,
        no_room: &CapacityExceeded,
        attempts: usize,
        kept: &[ValidatedLimit<'_>],
    ) -> bool {
        if !self.evicts || attempts >= MAX_ATTEMPTS || no_room.needed > self.max_keys() {
            return false;
        }
        let keys = self.keys.count();
        let missing = (keys + no_room.needed).saturating_sub(self.max_keys());
        let calendar = self.clock.calendar().as_micros();
        for _ in 0..missing {
            let Some(victim) = self.closest_to_idle(no_room.now, calendar, kept) else {
                return false;
            };
            if self.lock(victim).remove(victim) {
                self.release(1);
            }
        }
        if self.evicted.logged.is_due(Timestamp::from_micros(no_room.now)) {
            let (max_keys, evicted) = (self.max_keys(), self.evicted.count.load(Ordering::Relaxed));
            tracing::warn!(
                max_keys,
                evicted,
                "the in-process table is full; new keys evict keys that are in use"
            );
        }
        true
    }

    /// Returns the key whose state equals that of an unused key soonest, in a sample that starts in
    /// a random shard.
    fn closest_to_idle(&self, now: u64, calendar: u64, kept: &[ValidatedLimit<'_>]) -> Option<Identity> {
        let mut numbers = Random(self.evicted.count.fetch_add(1, Ordering::Relaxed));
        let start = numbers.below(SHARDS);
        let mut closest: Option<(u64, Identity)> = None;
        let mut examined = 0;
        for number in 0..SHARDS {
            let Some(shard) = self.shards.get((start + number) % SHARDS) else {
                continue;
            };
            let table = shard.lock();
            examined += table.sample(
                SAMPLE - examined,
                |bound| numbers.below(bound),
                |identity, state| {
                    let idle_after = state.idle_after(now, calendar);
                    let is_closer = closest.is_none_or(|(closest, _)| idle_after < closest);
                    if is_closer && kept.iter().all(|limit| limit.identity != identity) {
                        closest = Some((idle_after, identity));
                    }
                },
            );
            if examined >= SAMPLE {
                break;
            }
        }
        closest.map(|(_, identity)| identity)
    }
}

/// Random numbers that may be predictable: the position of a key depends on a hash with a secret of
/// this process. SplitMix64, after G. Steele, D. Lea and C. Flood, "Fast splittable pseudorandom
/// number generators" (2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        let number = u128::from(self.next()) * bound as u128;
        usize::try_from(number >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
