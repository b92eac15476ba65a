//! Names of Redis keys, composed of escaped parts.
//!
//! A name consists of the namespace, the algorithm, the policy and the hash tag in braces, which is
//! the group or else the key, so that the limits of one decision are in one slot of a cluster. Keys
//! that are not limits (replicas, usage, registry, reservations) have a form that no limit's name
//! has.
//!
//! Invariant: different limits have different names. Replicas of other versions derive these names
//! too, so their form is frozen. Tests: `key/tests.rs`, `tests/frozen/redis.rs`.

use crate::key::{Key, escape_part};

/// The first part of a name: the prefix and the namespace, escaped once.
#[derive(Clone, Debug)]
pub(crate) struct Namespace(Box<str>);

impl Namespace {
    pub(crate) fn new(prefix: &str, namespace: &str) -> Self {
        Self(format!("{prefix}{}", escape_part(namespace)).into())
    }

    /// Returns the Redis key of the replica registry. The state of a limit has more parts.
    pub(crate) fn replicas_key(&self) -> String {
        format!("{}|replicas", self.0)
    }

    /// Returns the Redis key of the decisions of a minute. The keys of all minutes are in one slot.
    pub(crate) fn usage_key(&self, minute: u64) -> String {
        format!("{}|{{usage}}|{minute}", self.0)
    }

    /// Returns the Redis key of the denied keys of a minute, in the slot of the decisions.
    pub(crate) fn denied_keys_key(&self, minute: u64) -> String {
        format!("{}|{{usage}}|denied|{minute}", self.0)
    }

    /// Returns the Redis key of a detached reservation: three parts, where the state of a limit has
    /// four.
    #[cfg(feature = "redis")]
    pub(crate) fn reservation_key(&self, id: [u8; 16]) -> String {
        format!("{}|reservation|{:032x}", self.0, u128::from_be_bytes(id))
    }

    /// Returns the Redis key of the policy registry, and its channel.
    #[cfg(feature = "registry")]
    pub(crate) fn registry_key(&self) -> String {
        format!("{}|book", self.0)
    }

    /// Returns the Redis key of the register of processes that follow the policy registry.
    #[cfg(feature = "registry")]
    pub(crate) fn subscribers_key(&self) -> String {
        format!("{}|subscribers", self.0)
    }

    /// Returns Redis keys with this hash tag that belong to no limit: of a bucket, a window and
    /// another bucket.
    pub(crate) fn preflight_keys(&self, tag: &str) -> [String; 3] {
        ["tb", "sw", "tb2"].map(|algorithm| format!("{}|{{{tag}}}|{algorithm}", self.0))
    }

    /// Returns the Redis key of the record of a lease holder, in the slot of the limit. It has two
    /// parts more than the key of the limit.
    #[cfg(feature = "redis")]
    pub(crate) fn holder_key(limit: &str, holder: &str) -> String {
        format!("{limit}|holder|{}", escape_part(holder))
    }

    /// Returns the Redis key of a limit's state. Policy name and group are already escaped.
    pub(crate) fn redis_key(
        &self,
        algorithm: &str,
        policy: &str,
        group: Option<&str>,
        key: &Key<'_>,
    ) -> String {
        /// An empty tag would make the whole name the tag. No escaped text is a lone `%`.
        const EMPTY: &str = "%";
        let tag = group.unwrap_or(&key.text);
        let tag = if tag.is_empty() { EMPTY } else { tag };
        let mut name = String::with_capacity(self.0.len() + policy.len() + tag.len() + key.text.len() + 16);
        for part in [&*self.0, "|", algorithm, "|", policy, "|{", tag, "}"] {
            name.push_str(part);
        }
        if group.is_some() {
            name.push('|');
            name.push_str(&key.text);
        }
        name
    }
}
