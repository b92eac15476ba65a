//! What was left of each limit when the store was last heard about it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

const SHARDS: usize = 64;
/// A full shard is searched for what may go at most this often.
const SEARCH_EVERY_MICROS: u64 = 10_000;

/// What was left of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// In the algorithm's own unit.
    pub(super) remaining: u64,
    /// The moment as of which so much was left: for a window, that of its newest permit.
    pub(super) as_of: u64,
    /// From this moment on nothing of it is used any more.
    pub(super) until: u64,
}

/// A bounded table of them, by the hash of the limit's identity. Hashes are random and 64 bits wide, so that two limits of a
/// full table share one once in billions of tables; the one would then start from what was left of the other.
#[derive(Debug)]
pub(super) struct Seen {
    shards: Box<[Mutex<Shard>]>,
    max_per_shard: usize,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashTable<(u64, Left)>,
    searched_at: u64,
}

impl Seen {
    pub(super) fn new(max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            max_per_shard: max.div_ceil(SHARDS),
        }
    }

    /// Notes what is left. What a full table has no room for starts afresh.
    pub(super) fn note(&self, hash: u64, left: Left, now: u64) {
        let Some(mut shard) = self.shard(hash) else { return };
        if let Some((_, noted)) = shard.entries.find_mut(hash, |(other, _)| *other == hash) {
            *noted = left;
        } else if left.until > now && shard.has_room(self.max_per_shard, now) {
            shard.entries.insert_unique(hash, (hash, left), |(hash, _)| *hash);
        }
    }

    /// Takes out what was noted, if any of it still holds.
    pub(super) fn take(&self, hash: u64, now: u64) -> Option<Left> {
        let mut shard = self.shard(hash)?;
        let entry = shard.entries.find_entry(hash, |(other, _)| *other == hash).ok()?;
        let ((_, left), _) = entry.remove();
        (left.until > now).then_some(left)
    }

    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, Shard>> {
        // The table uses the low and the top seven bits; these lie between.
        let number = usize::try_from(hash >> 48).unwrap_or(0) % SHARDS;
        let shard = self.shards.get(number)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shard {
    fn has_room(&mut self, max: usize, now: u64) -> bool {
        if self.entries.len() >= max && now.abs_diff(self.searched_at) >= SEARCH_EVERY_MICROS {
            self.searched_at = now;
            self.entries.retain(|(_, left)| left.until > now);
        }
        self.entries.len() < max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, RandomState};

    fn left(remaining: u64, until: u64) -> Left {
        Left {
            remaining,
            as_of: 0,
            until,
        }
    }

    #[test]
    fn the_last_note_is_taken_once_and_only_while_it_holds() {
        let seen = Seen::new(100);
        seen.note(7, left(3, 1_000), 0);
        seen.note(7, left(2, 1_000), 0);
        assert_eq!(seen.take(7, 999), Some(left(2, 1_000)));
        assert_eq!(seen.take(7, 999), None);
        seen.note(7, left(2, 1_000), 0);
        assert_eq!(seen.take(7, 1_000), None);
    }

    #[test]
    fn a_full_table_keeps_what_it_has_and_makes_room_when_that_is_over() {
        let seen = Seen::new(SHARDS);
        let hasher = RandomState::new();
        for key in 0..10_000 {
            seen.note(hasher.hash_one(key), left(1, 1_000_000), 0);
        }
        let count = |seen: &Seen| -> usize {
            seen.shards
                .iter()
                .map(|shard| shard.lock().unwrap().entries.len())
                .sum()
        };
        assert_eq!(count(&seen), SHARDS);
        for key in 10_000..20_000 {
            seen.note(hasher.hash_one(key), left(1, 3_000_000), 2_000_000);
        }
        assert_eq!(count(&seen), SHARDS);
        let newer = (10_000..20_000).filter(|key| seen.take(hasher.hash_one(*key), 2_000_000).is_some());
        assert_eq!(newer.count(), SHARDS);
    }
}
