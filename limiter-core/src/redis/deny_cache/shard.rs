//! A shard of the deny cache: a bounded table of denials by the hash of their limits.
//!
//! Denials are in two generations. When the young one is full or has reached the maximum age, it
//! becomes the old one, and the previous old one is dropped as a whole, so expired denials need no
//! search. A version that changes with each write invalidates the denials that threads keep
//! (`thread_cache.rs`).
//!
//! Invariants: the newer half of the limits of a full shard is kept, and a denial replaces no
//! denial that outweighs it. Tests: `deny_cache/tests/retention.rs`.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::redis::deny_cache::denial::Denial;
use crate::redis::deny_cache::thread_cache::ShardVersion;
use crate::redis::deny_cache::{LimitCost, thread_cache};
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::support::sync::{RwLock, RwLockWriteGuard};

/// Marks a shard without denials.
pub(super) const EMPTY: u64 = u64::MAX;

/// A bounded table of denials, by the hash of their limits.
///
/// When the young generation is full, or contains a denial of the maximum age, it becomes the old
/// one, and the old one is dropped. So expired denials are dropped without a search while the shard
/// is in use.
#[derive(Debug)]
pub(crate) struct DenialShard {
    halves: RwLock<Halves>,
    /// Time of the next rotation, or [`EMPTY`]. Most shards of a program with few denials are
    /// empty, and their callers need no lock. Written under the lock.
    pub(super) rotate_at: AtomicU64,
    max_limits_per_half: usize,
    version: ShardVersion,
}

#[derive(Debug, Default)]
struct Halves {
    young: HashTable<(u64, Arc<Denial>)>,
    old: HashTable<(u64, Arc<Denial>)>,
    /// Number of limits in the young generation.
    young_limits: usize,
}

impl DenialShard {
    pub(crate) fn new(max_limits_per_half: usize) -> Self {
        Self {
            halves: RwLock::default(),
            rotate_at: AtomicU64::new(EMPTY),
            max_limits_per_half,
            version: ShardVersion::new(),
        }
    }

    /// Passes the denial of these limits to `read`.
    pub(crate) fn find<'a, T>(
        &self,
        hash: u64,
        charges: impl Iterator<Item = LimitCost<'a>> + Clone,
        read: impl FnOnce(&Denial) -> T,
    ) -> Option<T> {
        let version = self.version.get();
        let mut read = Some(read);
        let again = thread_cache::lookup(hash, version, |denial| {
            let is_it = denial.concerns(charges.clone());
            Some(read.take_if(|_| is_it)?(denial))
        });
        if again.is_some() {
            return again;
        }
        let halves = self.halves.read();
        let is_it = |(other, denial): &(u64, Arc<Denial>)| *other == hash && denial.concerns(charges.clone());
        let found = halves.young.find(hash, is_it);
        let (_, denial) = found.or_else(|| halves.old.find(hash, is_it))?;
        thread_cache::record(hash, version, denial);
        Some(read?(denial))
    }

    /// Stores a denial, unless the known denial of its limits outweighs it.
    pub(crate) fn record(&self, hash: u64, denial: Denial, now: u64, cap_micros: u64) {
        let mut halves = self.write();
        self.rotate_if_due(&mut halves, now, cap_micros);
        let known = halves.remove(hash, |known| known.is_like(&denial));
        let denial = known
            .filter(|known| known.outweighs(&denial, now))
            .unwrap_or_else(|| Arc::new(denial));
        if halves.young_limits + denial.len() > self.max_limits_per_half {
            self.rotate(&mut halves, now, cap_micros);
        }
        halves.insert(hash, denial);
        if self.rotate_at.load(Ordering::Relaxed) == EMPTY {
            self.rotate_at
                .store(now.saturating_add(cap_micros), Ordering::Relaxed);
        }
    }

    pub(crate) fn remove<'a>(&self, hash: u64, charges: impl Iterator<Item = LimitCost<'a>> + Clone) {
        self.write()
            .remove(hash, |denial| denial.concerns(charges.clone()));
    }

    /// Drops expired denials if a rotation is due.
    pub(crate) fn tidy(&self, now: u64, cap_micros: u64) {
        if now >= self.rotate_at.load(Ordering::Relaxed) {
            self.rotate_if_due(&mut self.write(), now, cap_micros);
        }
    }

    /// Returns the number of cached limits.
    #[cfg(test)]
    pub(crate) fn limits(&self) -> usize {
        let halves = self.write();
        let each = halves.young.iter().chain(halves.old.iter());
        each.map(|(_, denial)| denial.len()).sum()
    }

    fn rotate_if_due(&self, halves: &mut Halves, now: u64, cap_micros: u64) {
        if now >= self.rotate_at.load(Ordering::Relaxed) {
            self.rotate(halves, now, cap_micros);
        }
    }

    fn rotate(&self, halves: &mut Halves, now: u64, cap_micros: u64) {
        halves.old = std::mem::take(&mut halves.young);
        halves.young_limits = 0;
        let is_empty = halves.old.is_empty();
        let next = if is_empty {
            EMPTY
        } else {
            now.saturating_add(cap_micros)
        };
        self.rotate_at.store(next, Ordering::Relaxed);
    }

    fn write(&self) -> RwLockWriteGuard<'_, Halves> {
        let halves = self.halves.write();
        self.version.changes();
        halves
    }
}

impl Halves {
    fn remove(&mut self, hash: u64, is_it: impl Fn(&Denial) -> bool) -> Option<Arc<Denial>> {
        let is_it = |(other, denial): &(u64, Arc<Denial>)| *other == hash && is_it(denial);
        if let Ok(entry) = self.young.find_entry(hash, is_it) {
            let ((_, denial), _) = entry.remove();
            self.young_limits -= denial.len();
            return Some(denial);
        }
        let ((_, denial), _) = self.old.find_entry(hash, is_it).ok()?.remove();
        Some(denial)
    }

    fn insert(&mut self, hash: u64, denial: Arc<Denial>) {
        self.young_limits += denial.len();
        self.young.insert_unique(hash, (hash, denial), |(hash, _)| *hash);
    }
}
