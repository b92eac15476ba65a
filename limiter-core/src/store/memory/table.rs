//! One shard of the store in memory: states by identity.

use hashbrown::HashTable;

use crate::algorithm::State;
use crate::identity::Identity;

/// A full table is searched for what may go at most this often, so that new keys cannot make it search all the time.
const SEARCH_EVERY_MICROS: u64 = 10_000;

/// States by identity.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: HashTable<Entry>,
    searched_at: u64,
}

#[derive(Debug)]
struct Entry {
    identity: Identity,
    state: State,
}

impl Table {
    /// Takes a state out, to be [`put`](Self::put) back. `None` where there is no entry.
    pub(super) fn take(&mut self, identity: Identity) -> Option<State> {
        self.find(identity).map(|entry| std::mem::take(&mut entry.state))
    }

    /// Stores a state. Absence makes no entry.
    pub(super) fn put(&mut self, identity: Identity, state: State) {
        match self.find(identity) {
            Some(entry) => entry.state = state,
            None if matches!(state, State::Absent) => {}
            None => {
                let entry = Entry { identity, state };
                self.entries
                    .insert_unique(identity.hash(), entry, |entry| entry.identity.hash());
            }
        }
    }

    pub(super) fn remove(&mut self, identity: Identity) {
        let entry = self
            .entries
            .find_entry(identity.hash(), |entry| entry.identity == identity);
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
    pub(super) fn sweep(&mut self, now: u64) {
        self.entries.retain(|entry| !entry.state.is_spent(now));
        let (len, capacity) = (self.entries.len(), self.entries.capacity());
        if capacity > 64 && capacity / 4 > len {
            self.entries.shrink_to(len * 2, |entry| entry.identity.hash());
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn find(&mut self, identity: Identity) -> Option<&mut Entry> {
        self.entries
            .find_mut(identity.hash(), |entry| entry.identity == identity)
    }
}
