//! Counts of each key, exact up to a bound, and the keys with the most denials and longest waits.
//!
//! A key is stored as a 64-bit hash; two of ten million keys collide with a probability below
//! 10⁻⁵. Names are stored for the first 256 keys of each list and for the keys that were added
//! since the last selection. A key without a name has at most the count of the last selected key.
//! When its count exceeds that number, the call provides the name again, so the lists are exact.
//! Tests: below.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use serde::Serialize;

/// The keys whose names are kept for each of the two lists.
const RANKED: usize = 256;
/// The number of names from which the others are dropped.
const MAX_NAMES: usize = 4 * RANKED;

/// The counts of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyCounts {
    pub(super) calls: u32,
    pub(super) denied: u32,
    pub(super) longest_wait: u64,
}

/// Uses the hash of a key as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SameHash(u64);

impl Hasher for SameHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A map by the hashes of keys.
pub(super) type HashedMap<T> = HashMap<u64, T, BuildHasherDefault<SameHash>>;

/// The calls of keys beyond the bound, which are not counted one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MergedKeys {
    /// The number of calls.
    pub calls: u64,
    /// The number of denied calls.
    pub denied: u64,
}

/// The counts of all keys of a policy.
#[derive(Clone, Debug)]
pub(super) struct KeyTable {
    max_keys: usize,
    counts: HashedMap<KeyCounts>,
    denied_keys: u64,
    names: HashedMap<Box<str>>,
    /// Keys with at most this number of denials and at most this wait need no name.
    denied_floor: u32,
    wait_floor: u64,
    merged: MergedKeys,
}

impl KeyTable {
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            max_keys,
            counts: HashedMap::default(),
            denied_keys: 0,
            names: HashedMap::default(),
            denied_floor: 0,
            wait_floor: 0,
            merged: MergedKeys::default(),
        }
    }

    /// Counts a call, which waits for this number of microseconds.
    pub(super) fn record(&mut self, hash: u64, denied: bool, wait: u64, name: impl FnOnce() -> String) {
        let is_full = self.counts.len() >= self.max_keys;
        let counts = match self.counts.entry(hash) {
            Entry::Vacant(_) if is_full => {
                self.merged.calls += 1;
                self.merged.denied += u64::from(denied);
                return;
            }
            Entry::Vacant(place) => place.insert(KeyCounts::default()),
            Entry::Occupied(place) => place.into_mut(),
        };
        counts.calls = counts.calls.saturating_add(1);
        if !denied && wait == 0 {
            return;
        }
        self.denied_keys += u64::from(denied && counts.denied == 0);
        counts.denied = counts.denied.saturating_add(u32::from(denied));
        counts.longest_wait = counts.longest_wait.max(wait);
        if counts.denied > self.denied_floor || counts.longest_wait > self.wait_floor {
            self.names.entry(hash).or_insert_with(|| name().into());
            if self.names.len() > MAX_NAMES {
                self.drop_names();
            }
        }
    }

    /// Keeps the names of the first keys of both lists.
    fn drop_names(&mut self) {
        let by_denials = self.ranked(|counts| u64::from(counts.denied));
        let by_waits = self.ranked(|counts| counts.longest_wait);
        let counts = &self.counts;
        // A list with free places has every key that can be in it.
        let last = |ranked: &[u64]| ranked.get(RANKED - 1).and_then(|hash| counts.get(hash)).copied();
        self.denied_floor = last(&by_denials).map_or(0, |counts| counts.denied);
        self.wait_floor = last(&by_waits).map_or(0, |counts| counts.longest_wait);
        let kept: HashedMap<()> = by_denials
            .into_iter()
            .chain(by_waits)
            .map(|hash| (hash, ()))
            .collect();
        self.names.retain(|hash, _| kept.contains_key(hash));
    }

    /// Returns the first named keys in the order of `rank`.
    fn ranked(&self, rank: impl Fn(&KeyCounts) -> u64) -> Vec<u64> {
        let named = self.names.keys();
        let mut ranked: Vec<(u64, u64)> = named
            .filter_map(|hash| Some((rank(self.counts.get(hash)?), *hash)))
            .filter(|(rank, _)| *rank > 0)
            .collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        ranked.into_iter().take(RANKED).map(|(_, hash)| hash).collect()
    }

    pub(super) fn get(&self, hash: u64) -> Option<KeyCounts> {
        self.counts.get(&hash).copied()
    }

    pub(super) fn keys(&self) -> u64 {
        self.counts.len() as u64
    }

    pub(super) fn denied_keys(&self) -> u64 {
        self.denied_keys
    }

    pub(super) fn merged(&self) -> MergedKeys {
        self.merged
    }

    /// Returns the first keys by denials.
    pub(super) fn most_denied(&self, count: usize) -> Vec<RankedKey> {
        self.first(count, |counts| u64::from(counts.denied))
    }

    /// Returns the first keys by their longest wait.
    pub(super) fn longest_waits(&self, count: usize) -> Vec<RankedKey> {
        self.first(count, |counts| counts.longest_wait)
    }

    fn first(&self, count: usize, rank: impl Fn(&KeyCounts) -> u64) -> Vec<RankedKey> {
        let first = self.ranked(rank).into_iter().take(count);
        let keys = first.filter_map(|hash| {
            let counts = self.counts.get(&hash)?;
            Some(RankedKey {
                key: self.names.get(&hash)?.to_string(),
                hash,
                calls: u64::from(counts.calls),
                denied: u64::from(counts.denied),
                longest_wait: Duration::from_micros(counts.longest_wait),
                denied_by_other: None,
            })
        });
        keys.collect()
    }
}

/// A key in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankedKey {
    /// The values of the key.
    pub key: String,
    #[serde(skip)]
    pub(super) hash: u64,
    /// The number of calls.
    pub calls: u64,
    /// The number of denied calls.
    pub denied: u64,
    /// The longest time after which a denied call would be admitted, or by which a call is delayed.
    #[serde(
        rename = "longest_wait_seconds",
        serialize_with = "crate::replay::text::serialize_seconds"
    )]
    pub longest_wait: Duration,
    /// The number of calls of the key that the other policy file denies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_by_other: Option<u64>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use crate::replay::keys::{KeyTable, MAX_NAMES, MergedKeys};

    /// Returns a hash that spreads like a real one.
    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ key
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn first_keys_are_exact_although_names_are_dropped(
            keys in proptest::collection::vec((0..4_000_u64).prop_map(|n| n * n / 4_000), 0..30_000),
        ) {
            let (mut table, mut exact) = (KeyTable::new(usize::MAX), BTreeMap::<u64, u32>::new());
            for key in &keys {
                table.record(hash(*key), true, key + 1, || key.to_string());
                *exact.entry(*key).or_default() += 1;
            }
            let mut counts: Vec<u32> = exact.values().copied().collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            let found: Vec<u32> = table.most_denied(20).iter().map(|key| u32::try_from(key.denied).unwrap()).collect();
            prop_assert_eq!(&found[..], &counts[..counts.len().min(20)]);
            for key in table.most_denied(20) {
                prop_assert_eq!(u64::from(exact[&key.key.parse::<u64>().unwrap()]), key.denied);
            }
            let longest = table.longest_waits(1).first().map(|key| key.key.clone());
            prop_assert_eq!(longest, exact.keys().next_back().map(u64::to_string));
            prop_assert!(table.names.len() <= MAX_NAMES);
        }
    }

    /// More keys wait than have names, and few are denied: each denied key is in its list, also one
    /// with a shorter wait and fewer denials than the others.
    #[test]
    fn list_with_free_places_has_later_keys() {
        let mut table = KeyTable::new(usize::MAX);
        (0..5).for_each(|_| table.record(hash(0), true, 0, || "first".to_owned()));
        for key in 1..=2 * MAX_NAMES as u64 {
            table.record(hash(key), false, 1_000, || key.to_string());
        }
        table.record(hash(1 << 40), true, 10, || "later".to_owned());
        let denied: Vec<String> = table.most_denied(20).into_iter().map(|key| key.key).collect();
        assert_eq!(denied, ["first", "later"]);
        assert!(table.names.len() <= MAX_NAMES);
    }

    #[test]
    fn keys_above_bound_are_merged_and_counted() {
        let mut table = KeyTable::new(2);
        for key in [1, 2, 3, 3, 1] {
            table.record(hash(key), key == 3, 0, || key.to_string());
        }
        assert_eq!(table.keys(), 2);
        assert_eq!(table.merged(), MergedKeys { calls: 2, denied: 2 });
    }
}
