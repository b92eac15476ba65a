//! The remaining permits of each limit at the last reply of the store.
//!
//! At the start of an outage, a share is reduced to the permits that Redis still had. Each reply is
//! noted by the hash of the limit's identity, in a table of bounded size.
//!
//! Invariant: a reply that arrives late does not replace a later one, unless the store's clock
//! stepped back. Tests: below, `local_fallback/tests.rs`.

use hashbrown::HashTable;

use crate::support::sync::{Mutex, MutexGuard};

const SHARDS: usize = 64;

/// The remaining permits of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastRemaining {
    /// In the algorithm's own unit.
    pub(crate) remaining: u64,
    /// Debt that must be refilled before any permit is available.
    pub(crate) debt: u64,
    /// Local time of the reply.
    pub(crate) as_of: u64,
    /// From this time on, the usage is zero.
    pub(crate) until: u64,
    /// Store time of the reply.
    pub(crate) decided_at: u64,
}

/// Maximum disorder of replies. A larger difference means that the store's clock stepped back.
const OVERTAKEN_MICROS: u64 = 1_000_000;

impl LastRemaining {
    fn was_overtaken_by(&self, noted: &Self) -> bool {
        let age = noted.decided_at.saturating_sub(self.decided_at);
        (1..=OVERTAKEN_MICROS).contains(&age)
    }
}

/// A bounded table, keyed by the hash of the limit's identity. Hashes are random 64-bit numbers;
/// two limits of a full table collide once in billions of tables, and one would then start with the
/// other's state.
///
/// The newest entries are kept: when the young generation of a shard is full, it becomes the old
/// one, and the old one is dropped.
#[derive(Debug)]
pub(crate) struct LastKnown {
    shards: Box<[Mutex<Shard>]>,
    max_per_half: usize,
}

#[derive(Debug, Default)]
struct Shard {
    young: HashTable<(u64, LastRemaining)>,
    old: HashTable<(u64, LastRemaining)>,
}

impl LastKnown {
    /// `max` bounds the entries; at least the newest half is kept.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            max_per_half: max.div_ceil(2 * SHARDS),
        }
    }

    /// Records the remaining permits.
    pub(crate) fn note(&self, hash: u64, left: LastRemaining) {
        let Some(mut shard) = self.shard(hash) else { return };
        let is_it = |(other, _): &(u64, LastRemaining)| *other == hash;
        if let Some((_, noted)) = shard.young.find_mut(hash, is_it) {
            if !left.was_overtaken_by(noted) {
                *noted = left;
            }
            return;
        }
        let old = shard.old.find(hash, is_it);
        if old.is_some_and(|(_, noted)| left.was_overtaken_by(noted)) {
            return;
        }
        if shard.young.len() >= self.max_per_half {
            shard.old = std::mem::take(&mut shard.young);
        }
        shard.young.insert_unique(hash, (hash, left), |(hash, _)| *hash);
    }

    /// Returns the recorded state while any of its usage still counts.
    pub(crate) fn get(&self, hash: u64, now: u64) -> Option<LastRemaining> {
        let left = self.shard(hash)?.get(hash)?;
        (left.until > now).then_some(left)
    }

    pub(crate) fn forget(&self, hash: u64) {
        let Some(mut shard) = self.shard(hash) else { return };
        let Shard { young, old } = &mut *shard;
        for half in [young, old] {
            if let Ok(entry) = half.find_entry(hash, |(other, _)| *other == hash) {
                entry.remove();
            }
        }
    }

    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, Shard>> {
        // The table uses the low and the top seven bits, so the shard uses other ones.
        let number = usize::try_from(hash >> 48).unwrap_or(0) % SHARDS;
        let shard = self.shards.get(number)?;
        Some(shard.lock())
    }
}

impl Shard {
    fn get(&self, hash: u64) -> Option<LastRemaining> {
        let is_it = |(other, _): &(u64, LastRemaining)| *other == hash;
        let (_, left) = self
            .young
            .find(hash, is_it)
            .or_else(|| self.old.find(hash, is_it))?;
        Some(*left)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use crate::redis::local_fallback::last_known::*;

    fn from_remaining(remaining: u64, until: u64) -> LastRemaining {
        LastRemaining {
            remaining,
            debt: 0,
            as_of: 0,
            until,
            decided_at: 5_000_000,
        }
    }

    #[test]
    fn latest_reply_counts_until_it_expires() {
        let table = LastKnown::new(100);
        table.note(7, from_remaining(3, 1_000));
        table.note(7, from_remaining(2, 1_000));
        assert_eq!(table.get(7, 999), Some(from_remaining(2, 1_000)));
        assert_eq!(table.get(7, 1_000), None);
        let decided_at = |decided_at| LastRemaining {
            decided_at,
            ..from_remaining(9, 1_000)
        };
        table.note(7, decided_at(4_999_999));
        assert_eq!(table.get(7, 999), Some(from_remaining(2, 1_000)));
        table.note(7, decided_at(3_000_000));
        assert_eq!(
            table.get(7, 999),
            Some(decided_at(3_000_000)),
            "the clock stepped back"
        );
        table.forget(7);
        assert_eq!(table.get(7, 0), None);
    }

    #[test]
    fn full_table_keeps_latest_entries() {
        let table = LastKnown::new(64 * SHARDS);
        let hasher = RandomState::new();
        let kept = |keys: std::ops::Range<u32>| {
            keys.filter(|key| table.get(hasher.hash_one(key), 0).is_some())
                .count()
        };
        for key in 0..100_000_u32 {
            table.note(hasher.hash_one(key), from_remaining(1, 1_000_000));
        }
        let count: usize = table
            .shards
            .iter()
            .map(|shard| shard.lock())
            .map(|shard| shard.young.len() + shard.old.len())
            .sum();
        assert!((32 * SHARDS..=64 * SHARDS).contains(&count), "{count}");
        assert_eq!(kept(99_000..100_000), 1_000);
        assert_eq!(kept(0..90_000), 0);
    }
}
