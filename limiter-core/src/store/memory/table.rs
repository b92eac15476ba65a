//! One shard of the store in memory: states by identity.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::algorithm::State;
use crate::request::Limit;

/// A full table is searched for what may go at most this often, so that new keys cannot make it search all the time.
const SEARCH_EVERY_MICROS: u64 = 10_000;

/// States by identity. The caller hashes: once a call.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: HashTable<Entry>,
    searched_at: u64,
}

#[derive(Debug)]
struct Entry {
    identity: Box<Identity>,
    state: State,
}

#[derive(Debug)]
struct Identity {
    algorithm: &'static str,
    policy: String,
    group: Option<String>,
    key: String,
}

impl Table {
    /// Takes a state out, to be [`put`](Self::put) back. `None` where there is no entry.
    pub(super) fn take(&mut self, hash: u64, limit: &Limit<'_>) -> Option<State> {
        self.find(hash, limit)
            .map(|entry| std::mem::take(&mut entry.state))
    }

    /// Stores a state. Absence makes no entry.
    pub(super) fn put(&mut self, hash: u64, limit: &Limit<'_>, state: State, hasher: &DefaultHashBuilder) {
        match self.find(hash, limit) {
            Some(entry) => entry.state = state,
            None if matches!(state, State::Absent) => {}
            None => {
                let identity = Box::new(Identity::of(limit));
                let entry = Entry { identity, state };
                self.entries
                    .insert_unique(hash, entry, |entry| entry.rehash(hasher));
            }
        }
    }

    pub(super) fn remove(&mut self, hash: u64, limit: &Limit<'_>) {
        let entry = self.entries.find_entry(hash, |entry| entry.is_of(limit));
        if let Ok(entry) = entry {
            entry.remove();
        }
    }

    /// Whether one more entry fits, once what may go has gone.
    pub(super) fn has_room(&mut self, max: usize, now: u64) -> bool {
        if self.entries.len() >= max && now.abs_diff(self.searched_at) >= SEARCH_EVERY_MICROS {
            self.searched_at = now;
            self.entries.retain(|entry| !entry.state.is_spent(now));
        }
        self.entries.len() < max
    }

    /// Lets go of what is spent, and of room that is not needed any more.
    pub(super) fn sweep(&mut self, now: u64, hasher: &DefaultHashBuilder) {
        self.entries.retain(|entry| !entry.state.is_spent(now));
        let (len, capacity) = (self.entries.len(), self.entries.capacity());
        if capacity > 64 && capacity / 4 > len {
            self.entries.shrink_to(len * 2, |entry| entry.rehash(hasher));
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn find(&mut self, hash: u64, limit: &Limit<'_>) -> Option<&mut Entry> {
        self.entries.find_mut(hash, |entry| entry.is_of(limit))
    }
}

impl Entry {
    fn is_of(&self, limit: &Limit<'_>) -> bool {
        self.identity.parts() == limit.identity()
    }

    fn rehash(&self, hasher: &DefaultHashBuilder) -> u64 {
        hasher.hash_one(self.identity.parts())
    }
}

impl Identity {
    fn of(limit: &Limit<'_>) -> Self {
        let (algorithm, policy, group, key) = limit.identity();
        Self {
            algorithm,
            policy: policy.to_owned(),
            group: group.map(str::to_owned),
            key: key.to_owned(),
        }
    }

    fn parts(&self) -> (&'static str, &str, Option<&str>, &str) {
        (self.algorithm, &self.policy, self.group.as_deref(), &self.key)
    }
}
