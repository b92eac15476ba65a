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

/// The policy's part of the identities of its limits, computed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix {
    /// Equal for all policies, as `grouped`. A copy in each policy is read faster than one static.
    ungrouped: Sip,
    /// Starts differently, so that a key without a group never equals a key in a group.
    grouped: Sip,
    policy: u128,
}

/// The key's part of an identity: the hash of a key and its group. The limits of one decision often
/// share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u128);

impl Prefix {
    pub(crate) fn new(algorithm: &str, policy: &str) -> Self {
        static KEY: LazyLock<(u64, u64)> = LazyLock::new(|| {
            let random = RandomState::new();
            (random.hash_one(1), random.hash_one(2))
        });
        let initial_state = |kind: &str| {
            let mut sip = Sip::new(KEY.0, KEY.1);
            sip.text(kind);
            sip
        };
        let mut of_policy = initial_state("policy");
        of_policy.text(algorithm);
        Self {
            ungrouped: initial_state("alone"),
            grouped: initial_state("grouped"),
            policy: of_policy.finish(policy),
        }
    }

    #[inline]
    pub(crate) fn identity(&self, group: Option<&str>, key: &str) -> Identity {
        self.identity_of(self.key_hash(group, key))
    }

    /// Hashes a key. The result is equal for all policies.
    #[inline]
    pub(crate) fn key_hash(&self, group: Option<&str>, key: &str) -> KeyHash {
        let Some(group) = group else {
            return KeyHash(self.ungrouped.finish(key));
        };
        let mut sip = self.grouped;
        sip.text(group);
        KeyHash(sip.finish(key))
    }

    /// Returns the identity of a hashed key. The exclusive or of two independent hashes collides as
    /// rarely as one hash.
    #[inline]
    pub(crate) fn identity_of(&self, key: KeyHash) -> Identity {
        Identity(self.policy ^ key.0)
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
