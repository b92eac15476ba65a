//! A bounded table whose entries expire, for the detached ids of one limiter.
//!
//! A map finds an entry by its id, and an ordered set finds the entry that expires first. The first
//! expiry is also an atomic, so that a caller needs no lock while nothing expires.
//!
//! Invariants: an expired entry is never read, renewed or returned by its id, and a full table
//! rejects new entries, unless the caller replaces the first one. Tests: below, and
//! `tests/contract/detached.rs`.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::detachment::id::StoredId;
use crate::error::{StoreError, StoreErrorKind};
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::Timestamp;

/// Maximum number of entries: 100,000 take about 20 MB.
pub(super) const MAX_ENTRIES: usize = 100_000;

/// The value of `first_expiry` without entries.
const NEVER: u64 = u64::MAX;

/// Entries by id, each with the time at which it expires.
#[derive(Debug)]
pub(crate) struct ExpiringTable<V> {
    entries: Mutex<ExpiringEntries<V>>,
    /// The first expiry in microseconds, readable without the lock.
    first_expiry: AtomicU64,
}

#[derive(Debug)]
struct ExpiringEntries<V> {
    by_id: HashMap<StoredId, (V, Timestamp)>,
    by_expiry: BTreeSet<(Timestamp, StoredId)>,
}

impl<V> ExpiringTable<V> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Mutex::new(ExpiringEntries {
                by_id: HashMap::new(),
                by_expiry: BTreeSet::new(),
            }),
            first_expiry: AtomicU64::new(NEVER),
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub(crate) fn insert(&self, id: StoredId, value: V, expires_at: Timestamp) -> Result<(), StoreError> {
        let mut entries = self.lock();
        if entries.by_id.len() >= MAX_ENTRIES {
            let detail = format!("{MAX_ENTRIES} detached ids are held in this process");
            return Err(StoreError::new(StoreErrorKind::Full, detail));
        }
        entries.by_id.insert(id, (value, expires_at));
        entries.by_expiry.insert((expires_at, id));
        self.publish_first_expiry(&entries);
        Ok(())
    }

    /// Adds an entry. A full table drops the entry that expires first.
    pub(crate) fn insert_in_place_of_first(&self, id: StoredId, value: V, expires_at: Timestamp) {
        let mut entries = self.lock();
        let mut dropped = None;
        if entries.by_id.len() >= MAX_ENTRIES {
            if let Some((_, first)) = entries.by_expiry.pop_first() {
                dropped = entries.by_id.remove(&first);
            }
        }
        entries.by_id.insert(id, (value, expires_at));
        entries.by_expiry.insert((expires_at, id));
        self.publish_first_expiry(&entries);
        drop(entries);
        drop(dropped);
    }

    /// Reads or changes an entry that has not expired.
    pub(crate) fn with<T>(&self, id: &StoredId, now: Timestamp, read: impl FnOnce(&mut V) -> T) -> Option<T> {
        let mut entries = self.lock();
        let (value, expires_at) = entries.by_id.get_mut(id)?;
        (now < *expires_at).then(|| read(value))
    }

    /// Changes the expiry of an entry that has not expired. Returns whether it exists.
    pub(crate) fn renew(&self, id: &StoredId, now: Timestamp, expires_at: Timestamp) -> bool {
        let mut entries = self.lock();
        let Some((_, previous)) = entries.by_id.get_mut(id) else {
            return false;
        };
        if now >= *previous {
            return false;
        }
        let previous = std::mem::replace(previous, expires_at);
        entries.by_expiry.remove(&(previous, *id));
        entries.by_expiry.insert((expires_at, *id));
        self.publish_first_expiry(&entries);
        true
    }

    /// Removes an entry and returns it unless it has expired.
    pub(crate) fn remove(&self, id: &StoredId, now: Timestamp) -> Option<V> {
        let mut entries = self.lock();
        let (value, expires_at) = entries.by_id.remove(id)?;
        entries.by_expiry.remove(&(expires_at, *id));
        self.publish_first_expiry(&entries);
        // The drop of an expired value may release a permit and wake its waiter.
        drop(entries);
        (now < expires_at).then_some(value)
    }

    /// Removes the entries that have expired. The caller drops them without the lock.
    pub(crate) fn take_expired(&self, now: impl FnOnce() -> Timestamp) -> Vec<V> {
        if self.first_expiry.load(Ordering::Acquire) == NEVER {
            return Vec::new();
        }
        let now = now();
        if now.as_micros() < self.first_expiry.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut entries = self.lock();
        let mut expired = Vec::new();
        while let Some(&(expires_at, id)) = entries.by_expiry.first() {
            if now < expires_at {
                break;
            }
            entries.by_expiry.remove(&(expires_at, id));
            expired.extend(entries.by_id.remove(&id).map(|(value, _)| value));
        }
        self.publish_first_expiry(&entries);
        expired
    }

    /// Removes the entries that `is_removed` selects. The caller drops them without the lock.
    pub(crate) fn take_matching(&self, is_removed: impl Fn(&V) -> bool) -> Vec<V> {
        let mut entries = self.lock();
        let matching = entries.by_id.iter().filter(|(_, (value, _))| is_removed(value));
        let matching: Vec<_> = matching.map(|(id, (_, expires_at))| (*expires_at, *id)).collect();
        let mut removed = Vec::with_capacity(matching.len());
        for entry in matching {
            entries.by_expiry.remove(&entry);
            removed.extend(entries.by_id.remove(&entry.1).map(|(value, _)| value));
        }
        self.publish_first_expiry(&entries);
        removed
    }

    /// Returns the time at which an entry expires.
    pub(crate) fn expiry(&self, id: &StoredId) -> Option<Timestamp> {
        self.lock().by_id.get(id).map(|(_, expires_at)| *expires_at)
    }

    /// Returns the time at which the next entry expires.
    pub(crate) fn first_expiry(&self) -> Option<Timestamp> {
        match self.first_expiry.load(Ordering::Acquire) {
            NEVER => None,
            first => Some(Timestamp::from_micros(first)),
        }
    }

    fn publish_first_expiry(&self, entries: &ExpiringEntries<V>) {
        let first = entries.by_expiry.first();
        let first = first.map_or(NEVER, |(expires_at, _)| expires_at.as_micros());
        self.first_expiry.store(first, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, ExpiringEntries<V>> {
        self.entries.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use crate::detachment::table::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn entry_exists_until_its_expiry() {
        let table = ExpiringTable::new();
        table.insert([1; 16], 'a', at(10)).unwrap();
        assert_eq!(table.with(&[1; 16], at(9), |value| *value), Some('a'));
        assert_eq!(table.with(&[1; 16], at(10), |value| *value), None);
        assert!(!table.renew(&[1; 16], at(10), at(20)));
        assert!(table.renew(&[1; 16], at(9), at(20)));
        assert!(table.take_expired(|| at(19)).is_empty());
        assert_eq!(table.take_expired(|| at(20)), ['a']);
        assert_eq!(table.first_expiry(), None);
    }

    /// A value whose drop uses the table, as the release of a permit may.
    #[derive(Debug)]
    struct UsesTable(Arc<ExpiringTable<Self>>, Arc<AtomicBool>);

    impl Drop for UsesTable {
        fn drop(&mut self) {
            let is_free = self.0.entries.try_lock().is_some();
            self.1.store(is_free, Ordering::Relaxed);
        }
    }

    #[test]
    fn removed_expired_value_is_dropped_without_lock() {
        let (table, was_free) = (Arc::new(ExpiringTable::new()), Arc::new(AtomicBool::new(false)));
        let value = UsesTable(Arc::clone(&table), Arc::clone(&was_free));
        table.insert([1; 16], value, at(10)).unwrap();
        assert!(table.remove(&[1; 16], at(10)).is_none());
        assert!(was_free.load(Ordering::Relaxed));
    }

    #[test]
    fn full_table_rejects_and_expired_entries_make_room() {
        let table = ExpiringTable::new();
        let id = |number: usize| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            id
        };
        for number in 0..MAX_ENTRIES {
            table.insert(id(number), (), at(1 + (number as u64 % 2))).unwrap();
        }
        let refused = table.insert(id(MAX_ENTRIES), (), at(9)).unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Full);
        assert_eq!(table.take_expired(|| at(1)).len(), MAX_ENTRIES / 2);
        table.insert(id(MAX_ENTRIES), (), at(9)).unwrap();
    }
}
