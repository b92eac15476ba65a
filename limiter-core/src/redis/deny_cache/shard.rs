//! A part of the denials, in two halves of which the older leaves as a whole.

use std::sync::{Arc, PoisonError};

use hashbrown::HashTable;

use crate::redis::deny_cache::denial::Denial;
use crate::redis::deny_cache::thread_cache::ShardVersion;
use crate::redis::deny_cache::{LimitCost, thread_cache};
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::support::sync::{RwLock, RwLockWriteGuard};

/// No denial is kept.
const EMPTY: u64 = u64::MAX;

/// A bounded table of denials, by a hash of their limits.
///
/// When the young half is full, or a denial that is in it has been kept for as long as any may, it
/// becomes the old one, and the old one goes. So what has expired leaves as long as the shard is
/// used at all, and nobody looks for it.
#[derive(Debug)]
pub(crate) struct DenialShard {
    halves: RwLock<Halves>,
    /// When the halves change places, or [`EMPTY`]: most shards of a program in which little is
    /// denied are, and their callers need no lock to know. Written within the lock.
    turn_at: AtomicU64,
    max_limits_per_half: usize,
    version: ShardVersion,
}

#[derive(Debug, Default)]
struct Halves {
    young: HashTable<(u64, Arc<Denial>)>,
    old: HashTable<(u64, Arc<Denial>)>,
    /// Of the denials in the young half.
    young_limits: usize,
}

impl DenialShard {
    pub(crate) fn new(max_limits_per_half: usize) -> Self {
        Self {
            halves: RwLock::default(),
            turn_at: AtomicU64::new(EMPTY),
            max_limits_per_half,
            version: ShardVersion::new(),
        }
    }

    /// Whether there is nothing to be found. One who is told so too late asks the store, which is
    /// never wrong.
    pub(crate) fn is_empty(&self) -> bool {
        self.turn_at.load(Ordering::Relaxed) == EMPTY
    }

    /// Looks at what is known of these limits.
    pub(crate) fn find<'a, T>(
        &self,
        hash: u64,
        charges: impl Iterator<Item = LimitCost<'a>> + Clone,
        look: impl FnOnce(&Denial) -> T,
    ) -> Option<T> {
        let version = self.version.get();
        let mut look = Some(look);
        let again = thread_cache::lookup(hash, version, |denial| {
            let is_it = denial.is_about(charges.clone());
            Some(look.take_if(|_| is_it)?(denial))
        });
        if again.is_some() {
            return again;
        }
        let halves = self.halves.read().unwrap_or_else(PoisonError::into_inner);
        let is_it = |(other, denial): &(u64, Arc<Denial>)| *other == hash && denial.is_about(charges.clone());
        let found = halves.young.find(hash, is_it);
        let (_, denial) = found.or_else(|| halves.old.find(hash, is_it))?;
        thread_cache::note(hash, version, denial);
        Some(look?(denial))
    }

    /// Keeps a denial, unless what is known of its limits outweighs it.
    pub(crate) fn note(&self, hash: u64, denial: Denial, now: u64, cap_micros: u64) {
        let mut halves = self.write();
        self.turn_if_due(&mut halves, now, cap_micros);
        let known = halves.remove(hash, |known| known.is_like(&denial));
        let denial = known
            .filter(|known| known.outweighs(&denial, now))
            .unwrap_or_else(|| Arc::new(denial));
        if halves.young_limits + denial.len() > self.max_limits_per_half {
            self.rotate(&mut halves, now, cap_micros);
        }
        halves.insert(hash, denial);
        if self.is_empty() {
            self.turn_at
                .store(now.saturating_add(cap_micros), Ordering::Relaxed);
        }
    }

    pub(crate) fn remove<'a>(&self, hash: u64, charges: impl Iterator<Item = LimitCost<'a>> + Clone) {
        self.write()
            .remove(hash, |denial| denial.is_about(charges.clone()));
    }

    /// Lets what has expired leave, if its time has come.
    pub(crate) fn tidy(&self, now: u64, cap_micros: u64) {
        if now >= self.turn_at.load(Ordering::Relaxed) {
            self.turn_if_due(&mut self.write(), now, cap_micros);
        }
    }

    /// How many limits are kept.
    #[cfg(test)]
    pub(crate) fn limits(&self) -> usize {
        let halves = self.write();
        let each = halves.young.iter().chain(halves.old.iter());
        each.map(|(_, denial)| denial.len()).sum()
    }

    fn turn_if_due(&self, halves: &mut Halves, now: u64, cap_micros: u64) {
        if now >= self.turn_at.load(Ordering::Relaxed) {
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
        self.turn_at.store(next, Ordering::Relaxed);
    }

    fn write(&self) -> RwLockWriteGuard<'_, Halves> {
        let halves = self.halves.write().unwrap_or_else(PoisonError::into_inner);
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
