//! The most denied keys of a policy: a space-saving sketch.
//!
//! The sketch stores [`DENIED_KEYS`] keys. A further key replaces the key with the lowest count,
//! continues its count, and states that count as its error. For each stored key therefore
//! `count - error <= denials <= count`, and each other key has at most [`DeniedKeys::absent`]
//! denials (Metwally, Agrawal, El Abbadi: "Efficient computation of frequent and top-k elements in
//! data streams", 2005). `redis/script/lua/usage.lua` merges sketches. Tests: below.

use crate::units::Timestamp;

/// The number of keys of one sketch.
pub(crate) const DENIED_KEYS: usize = 20;

/// Denied calls of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyDenial<'a> {
    /// Escaped and bounded.
    pub(crate) key: &'a str,
    pub(crate) at: Timestamp,
    /// The number of the origin of the decision.
    pub(crate) origin: u8,
    /// The number of denied calls.
    pub(crate) calls: u64,
}

/// A key with its denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeniedKeyCount {
    pub(crate) key: Box<str>,
    pub(crate) count: u64,
    pub(crate) error: u64,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// The origin of the last denial.
    pub(crate) origin: u8,
}

/// The most denied keys of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeniedKeys {
    keys: Vec<DeniedKeyCount>,
    has_replaced: bool,
}

impl DeniedKeys {
    pub(crate) fn add(&mut self, denial: KeyDenial<'_>) {
        if let Some(known) = self.keys.iter_mut().find(|known| *known.key == *denial.key) {
            known.count = known.count.saturating_add(denial.calls);
            known.last = known.last.max(denial.at);
            known.origin = denial.origin;
            return;
        }
        let mut added = DeniedKeyCount {
            key: denial.key.into(),
            count: denial.calls,
            error: 0,
            first: denial.at,
            last: denial.at,
            origin: denial.origin,
        };
        if self.keys.len() < DENIED_KEYS {
            self.keys.push(added);
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|known| known.count) {
            added.count = least.count.saturating_add(denial.calls);
            added.error = least.count;
            *least = added;
            self.has_replaced = true;
        }
    }

    pub(crate) fn keys(&self) -> &[DeniedKeyCount] {
        &self.keys
    }

    /// Returns the largest possible number of denials of a key that is not stored.
    pub(crate) fn absent(&self) -> u64 {
        let least = self.keys.iter().map(|known| known.count).min();
        least.filter(|_| self.has_replaced).unwrap_or(0)
    }

    /// Returns the number of all denials.
    pub(crate) fn total(&self) -> u64 {
        self.keys.iter().map(|known| known.count - known.error).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use crate::usage_counters::denied_keys::*;

    proptest! {
        /// Both bounds hold for any sequence of denials, and all keys are stored while they fit.
        #[test]
        fn counts_differ_from_denials_by_stated_error(
            denials in prop::collection::vec(((0_u32..200).prop_map(|key| key * key / 200), 1_u64..5), 0..2_000),
        ) {
            let (mut sketch, mut truth) = (DeniedKeys::default(), HashMap::<String, u64>::new());
            for (at, (key, calls)) in denials.iter().enumerate() {
                let (key, at) = (key.to_string(), Timestamp::from_micros(at as u64 + 1));
                sketch.add(KeyDenial { key: &key, at, origin: 1, calls: *calls });
                *truth.entry(key).or_default() += calls;
            }
            prop_assert!(sketch.keys().len() <= DENIED_KEYS);
            prop_assert_eq!(sketch.keys().len(), truth.len().min(DENIED_KEYS));
            for known in sketch.keys() {
                let denials = truth.remove(&*known.key).unwrap();
                prop_assert!(known.count - known.error <= denials && denials <= known.count);
                prop_assert!(known.first <= known.last);
            }
            for denials in truth.values() {
                prop_assert!(*denials <= sketch.absent());
            }
        }
    }
}
