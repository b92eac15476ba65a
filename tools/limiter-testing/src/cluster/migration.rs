//! The migration of a slot in single steps, so that a test can check each intermediate state.

use super::RedisCluster;
use crate::{RedisServer, RespValue};

const BATCH: &str = "100";
const MIGRATE_TIMEOUT_MS: &str = "5000";

/// A slot on its way from one node to another.
///
/// Dropping it leaves the slot where it is: half moved.
#[derive(Debug)]
#[must_use]
pub struct SlotMigration<'a> {
    cluster: &'a RedisCluster,
    slot: u16,
    source: &'a RedisServer,
    target: &'a RedisServer,
}

impl<'a> SlotMigration<'a> {
    #[track_caller]
    pub(super) fn begin(cluster: &'a RedisCluster, slot: u16, to: usize) -> Self {
        let from = cluster.owner_of(slot);
        assert_ne!(from, to, "node {to} owns slot {slot} already");
        let migration = Self {
            cluster,
            slot,
            source: cluster.primary_of(from),
            target: cluster.primary_of(to),
        };
        // In this order: a source that replies ASK needs a target that accepts the redirection.
        migration.set_slot(migration.target(), &["IMPORTING", &id(migration.source())]);
        migration.set_slot(migration.source(), &["MIGRATING", &id(migration.target())]);
        migration
    }

    /// Returns the node that owned the slot at the beginning.
    #[must_use]
    pub fn source(&self) -> &'a RedisServer {
        self.source
    }

    /// Returns the future owner of the slot.
    #[must_use]
    pub fn target(&self) -> &'a RedisServer {
        self.target
    }

    /// Moves the keys that are now in the slot; returns their number.
    ///
    /// # Panics
    /// If a node does not reply, or if the target holds one of the keys.
    #[track_caller]
    pub fn move_keys(&self) -> usize {
        let slot = self.slot.to_string();
        let mut moved = 0;
        loop {
            let reply = self.source().command(&["CLUSTER", "GETKEYSINSLOT", &slot, BATCH]);
            let keys: Vec<&[u8]> = reply.items().iter().map(RespValue::bytes).collect();
            if keys.is_empty() {
                return moved;
            }
            moved += keys.len();
            self.migrate(&keys);
        }
    }

    /// Moves one key. Afterwards, a command with moved and unmoved keys gets `TRYAGAIN` (before
    /// Redis 7.0, `ASK` first).
    ///
    /// # Panics
    /// As [`move_keys`](Self::move_keys).
    #[track_caller]
    pub fn move_key<K: AsRef<[u8]>>(&self, key: K) {
        self.migrate(&[key.as_ref()]);
    }

    /// Assigns the slot to the target after moving the remaining keys, and waits until all nodes
    /// know.
    ///
    /// # Panics
    /// As [`move_keys`](Self::move_keys), or if the nodes do not agree within thirty seconds.
    #[track_caller]
    pub fn finish(self) {
        self.move_keys();
        let owner = id(self.target());
        // The target first: the source redirects to it afterwards, and it must not redirect back.
        self.set_slot(self.target(), &["NODE", &owner]);
        self.set_slot(self.source(), &["NODE", &owner]);
        for place in 0..self.cluster.nodes().len() {
            let node = self.cluster.primary_of(place);
            if node.port() != self.source.port() && node.port() != self.target.port() {
                self.set_slot(node, &["NODE", &owner]);
            }
        }
        self.cluster.await_owner(self.slot, self.target);
    }

    /// Returns the slot, and the moved keys, to the source.
    ///
    /// # Panics
    /// As [`move_keys`](Self::move_keys).
    #[track_caller]
    pub fn cancel(self) {
        // A source that still migrates would refuse a key it lacks; a target that no longer imports
        // would refuse to send one.
        self.set_slot(self.source(), &["STABLE"]);
        let back = Self {
            cluster: self.cluster,
            slot: self.slot,
            source: self.target,
            target: self.source,
        };
        back.move_keys();
        self.set_slot(self.target(), &["STABLE"]);
    }

    #[track_caller]
    fn migrate(&self, keys: &[&[u8]]) {
        let port = self.target().port().to_string();
        let mut args: Vec<&[u8]> = vec![b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0"];
        args.extend([MIGRATE_TIMEOUT_MS.as_bytes(), b"KEYS"]);
        args.extend(keys);
        self.source().command(&args);
    }

    #[track_caller]
    fn set_slot(&self, node: &RedisServer, subcommand: &[&str]) {
        let slot = self.slot.to_string();
        let mut args = vec!["CLUSTER", "SETSLOT", &slot];
        args.extend(subcommand);
        node.command(&args);
    }
}

fn id(node: &RedisServer) -> String {
    node.command(&["CLUSTER", "MYID"]).text()
}
