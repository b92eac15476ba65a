//! What tells the state of one limit from that of every other in this process: one number in place
//! of four texts.
//!
//! It is a hash of 128 bits under a key of the process's own, made once a call. Two of a billion
//! limits share one with a probability below 10^-20, and nobody who does not know the key can look
//! for two that do, so whatever is kept by identity need not keep the texts.

mod sip;

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use crate::identity::sip::Sip;

/// One limit: an algorithm, a policy's name, a group and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity(u128);

/// What the identities of a policy's limits have in common, computed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix {
    alone: Sip,
    /// Begins otherwise, so that a key in no group is never taken for one in a group that ends as
    /// it begins.
    grouped: Sip,
}

impl Prefix {
    pub(crate) fn new(algorithm: &str, policy: &str) -> Self {
        static KEY: LazyLock<(u64, u64)> = LazyLock::new(|| {
            let random = RandomState::new();
            (random.hash_one(1), random.hash_one(2))
        });
        let begun = |kind: &str| {
            let mut sip = Sip::new(KEY.0, KEY.1);
            for text in [kind, algorithm, policy] {
                sip.text(text);
            }
            sip
        };
        Self {
            alone: begun("alone"),
            grouped: begun("grouped"),
        }
    }

    #[inline]
    pub(crate) fn identity(&self, group: Option<&str>, key: &str) -> Identity {
        let Some(group) = group else {
            return Identity(self.alone.finish(key));
        };
        let mut sip = self.grouped;
        sip.text(group);
        Identity(sip.finish(key))
    }
}

impl Identity {
    /// Bits for a table that compares whole identities.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half is as random as the whole"
    )]
    pub(crate) const fn hash(self) -> u64 {
        self.0 as u64
    }

    /// A number below `count`, of bits that [`hash`](Self::hash) does not have.
    pub(crate) const fn shard(self, count: usize) -> usize {
        ((self.0 >> 64) as u64 % count as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use crate::identity::*;

    #[test]
    fn whatever_differs_makes_another_identity() {
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
