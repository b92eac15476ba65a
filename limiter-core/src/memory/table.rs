//! Changes of one shard of the in-process store: insertion, removal and sweep of states.
//!
//! The states are in a vector, and an index contains the position of each identity. A removal moves
//! the last state to the free position. A sweep therefore examines the states from the last to the
//! first, and frees unused capacity at the end of each round.
//!
//! Invariant: the index contains the position of every state, and no other. Tests: below, against a
//! map.

use crate::algorithm::StepState;
use crate::identity::Identity;
use crate::memory::{StateEntry, StateTable, index, is_at};

/// Progress of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SweepProgress {
    /// Number of examined entries.
    pub(crate) seen: usize,
    /// Number of removed entries.
    pub(crate) gone: usize,
    /// The round is complete.
    pub(crate) ended: bool,
}

impl StateTable {
    /// Stores the state of an identity that has no entry.
    pub(crate) fn insert(&mut self, identity: Identity, state: StepState) {
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact((self.entries.len() / 8).max(4));
        }
        let at = number(self.entries.len());
        self.entries.push(StateEntry { identity, state });
        let entries = &self.entries;
        self.index
            .insert_unique(identity.hash(), at, |at| hash(entries, *at));
    }

    /// Removes an identity's entry. Returns whether there was one.
    pub(crate) fn remove(&mut self, identity: Identity) -> bool {
        let found = self
            .index
            .find(identity.hash(), is_at(&self.entries, identity))
            .copied();
        if let Some(at) = found {
            self.remove_at(index(at));
        }
        found.is_some()
    }

    /// Calls the visitor with up to `most` entries: all if there are no more, else entries at
    /// positions that `random` chooses below the given bound. Returns the number of entries.
    pub(super) fn sample(
        &self,
        most: usize,
        mut random: impl FnMut(usize) -> usize,
        mut show: impl FnMut(Identity, &StepState),
    ) -> usize {
        let (len, shown) = (self.entries.len(), self.entries.len().min(most));
        for number in 0..shown {
            let at = if len > most { random(len) } else { number };
            if let Some(entry) = self.entries.get(at) {
                show(entry.identity, &entry.state);
            }
        }
        shown
    }

    /// Examines up to `most` entries and removes those that have expired by the clock or by the
    /// calendar; ended periods are kept for at most `max_kept` microseconds. After a complete round
    /// it also frees unused capacity.
    pub(crate) fn sweep(&mut self, now: u64, (calendar, max_kept): (u64, u64), most: usize) -> SweepProgress {
        if self.unswept == 0 {
            self.unswept = self.entries.len();
        }
        // From the last to the first, because the last entry replaces a removed one and has been
        // examined already.
        let from = self.unswept.min(self.entries.len());
        self.unswept = from.saturating_sub(most);
        let mut gone = 0;
        for at in (self.unswept..from).rev() {
            if self
                .entries
                .get(at)
                .is_some_and(|entry| entry.state.is_expired_by(now, calendar, max_kept))
            {
                self.remove_at(at);
                gone += 1;
            }
        }
        let ended = self.unswept == 0;
        if ended {
            self.shrink();
        }
        SweepProgress {
            seen: from - self.unswept,
            gone,
            ended,
        }
    }

    fn remove_at(&mut self, at: usize) {
        if at >= self.entries.len() {
            return;
        }
        let StateEntry { identity, .. } = self.entries.swap_remove(at);
        let slot = self.index.find_entry(identity.hash(), |&slot| slot == number(at));
        if let Ok(slot) = slot {
            slot.remove();
        }
        // The last entry has moved to this position.
        if let Some(moved) = self.entries.get(at) {
            let last = number(self.entries.len());
            let slot = self.index.find_mut(moved.identity.hash(), |&slot| slot == last);
            if let Some(slot) = slot {
                *slot = number(at);
            }
        }
    }

    fn shrink(&mut self) {
        let (len, capacity) = (self.entries.len(), self.entries.capacity());
        if capacity > 64 && capacity / 4 > len {
            self.entries.shrink_to(len * 2);
            let entries = &self.entries;
            self.index.shrink_to(len * 2, |at| hash(entries, *at));
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

fn hash(entries: &[StateEntry], at: u32) -> u64 {
    entries.get(index(at)).map_or(0, |entry| entry.identity.hash())
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "2^32 entries of one shard would take 256 GiB"
)]
fn number(at: usize) -> u32 {
    at as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::algorithm::{Mode, step};
    use crate::identity::Prefix;
    use crate::memory::table::*;
    use crate::policy::Policy;

    #[test]
    fn entries_are_found_after_inserts_and_removals() {
        let policy = Policy::token_bucket("p").capacity(9).rate(1).build();
        let policy = policy.expect("valid");
        let charged = |cost: u64| {
            let mut state = StepState::Absent;
            step(policy.algorithm(), &mut state, cost * 1_000, 1, Mode::Charge);
            state
        };
        let left = |state: &mut StepState| step(policy.algorithm(), state, 0, 1, Mode::Peek).remaining;
        let prefix = Prefix::new("tb", "p");
        let identity = |key: u64| prefix.identity(None, &key.to_string());

        let (mut table, mut model) = (StateTable::default(), BTreeMap::new());
        let mut random = fastrand::Rng::with_seed(11);
        for now in 0..20_000 {
            let (key, cost) = (random.u64(..300), random.u64(1..9));
            match random.u32(..10) {
                0 => assert_eq!(table.remove(identity(key)), model.remove(&key).is_some()),
                // Nothing is spent at this time.
                1 => assert_eq!(table.sweep(1, (1, 0), random.usize(..20)).gone, 0),
                2 if now % 500 == 0 => {
                    // All are, ten seconds later.
                    let swept = table.sweep(10_000_001, (1, 0), usize::MAX);
                    let rest = table.sweep(10_000_001, (1, 0), usize::MAX);
                    assert_eq!((swept.gone + rest.gone, rest.ended), (model.len(), true));
                    model.clear();
                }
                _ => {
                    if table.find(identity(key)).is_none() {
                        table.insert(identity(key), charged(cost));
                        model.insert(key, 9_000 - cost * 1_000);
                    }
                }
            }
            assert_eq!(table.len(), model.len());
            let found = table.find(identity(key)).map(left);
            assert_eq!(found, model.get(&key).copied(), "{key}");
        }
        for (key, remaining) in model {
            assert_eq!(table.find(identity(key)).map(left), Some(remaining), "{key}");
        }
    }

    #[test]
    fn entry_fits_one_cache_line() {
        assert_eq!(size_of::<StateEntry>(), 64);
    }
}
