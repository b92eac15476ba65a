//! Identities of limits in this process: one number instead of four texts.
//!
//! An identity is a 128-bit hash under a random key of the process, computed once per call. Two of
//! a billion limits collide with a probability below 10^-20, and an attacker without the key cannot
//! search for collisions, so tables keyed by identity need not store the texts.

mod sip;

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use crate::identity::sip::Sip;

/// The identity of a limit: algorithm, policy name, group and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity(u128);

/// The common part of the identities of a policy, computed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix {
    ungrouped: Sip,
    /// Starts differently, so that a key without a group never equals a key in a group.
    grouped: Sip,
}

impl Prefix {
    pub(crate) fn new(algorithm: &str, policy: &str) -> Self {
        static KEY: LazyLock<(u64, u64)> = LazyLock::new(|| {
            let random = RandomState::new();
            (random.hash_one(1), random.hash_one(2))
        });
        let initial_state = |kind: &str| {
            let mut sip = Sip::new(KEY.0, KEY.1);
            for text in [kind, algorithm, policy] {
                sip.text(text);
            }
            sip
        };
        Self {
            ungrouped: initial_state("alone"),
            grouped: initial_state("grouped"),
        }
    }

    #[inline]
    pub(crate) fn identity(&self, group: Option<&str>, key: &str) -> Identity {
        let Some(group) = group else {
            return Identity(self.ungrouped.finish(key));
        };
        let mut sip = self.grouped;
        sip.text(group);
        Identity(sip.finish(key))
    }
}

impl Identity {
    /// Returns bits for a table that compares whole identities.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half is as random as the whole"
    )]
    pub(crate) const fn hash(self) -> u64 {
        self.0 as u64
    }

    /// Returns a number below `count` from bits that [`hash`](Self::hash) does not contain.
    pub(crate) const fn shard(self, count: usize) -> usize {
        ((self.0 >> 64) as u64 % count as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use crate::identity::*;

    #[test]
    fn different_texts_have_different_identities() {
        let mut seen = std::collections::HashSet::new();
        let long = "x".repeat(8);
        for algorithm in ["tb", "fn"] {
            for policy in ["", "a", "ab", &long] {
                for group in [None, Some(""), Some("a"), Some("b"), Some(&long), Some("\0")] {
                    for key in ["", "a", "b", "ab", "a\0", "\0", &long, "xxxxxxxx\0"] {
                        let identity = Prefix::new(algorithm, policy).identity(group, key);
                        assert!(seen.insert(identity), "{algorithm} {policy} {group:?} {key}");
                        assert_eq!(identity, Prefix::new(algorithm, policy).identity(group, key));
                    }
                }
            }
        }
    }
}
