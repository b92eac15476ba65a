//! Several servers that share the slots.

mod builder;
mod fail_over;
mod migration;
mod view;

use std::sync::OnceLock;
use std::time::Duration;

use crate::{RedisServer, RespValue, wait};
use view::{owner_in, ranges};

pub use builder::RedisClusterBuilder;
pub use migration::SlotMigration;

const AGREE_LIMIT: Duration = Duration::from_secs(30);

/// A Redis Cluster on loopback; its servers live as long as this handle.
///
/// Primaries, each with an optional number of replicas. The index of a primary identifies its
/// shard: after a failover, a replica is its primary.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    /// At the places of their primaries.
    replicas: Vec<Vec<RedisServer>>,
}

impl RedisCluster {
    /// Starts three primaries without replicas, which share the slots evenly, and waits until all
    /// nodes know each other.
    ///
    /// # Panics
    /// As [`RedisServer::start`], or if the nodes do not agree within thirty seconds.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder of a cluster.
    #[must_use]
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder {
            primaries: 3,
            replicas: 0,
            args: Vec::new(),
        }
    }

    /// Returns the cluster that all tests of this process share. A test uses its own keys, moves no
    /// slots, and stops no node.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisCluster> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Returns the URLs for clients, one per server: primaries first, then replicas.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.servers().map(RedisServer::url).collect()
    }

    /// Returns all servers, the replicas after the primaries.
    pub fn servers(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().chain(self.replicas.iter().flatten())
    }

    /// Returns the nodes that were started as primaries; other methods name a node by its place
    /// here.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the node at this place, also if it is not the primary any more.
    ///
    /// # Panics
    /// If it does not exist.
    #[must_use]
    #[track_caller]
    pub fn node(&self, place: usize) -> &RedisServer {
        self.nodes
            .get(place)
            .unwrap_or_else(|| panic!("the cluster has no node {place}"))
    }

    /// Returns the first server that was started as a replica of the node at this place.
    ///
    /// # Panics
    /// If it does not exist.
    #[must_use]
    #[track_caller]
    pub fn replica_of(&self, place: usize) -> &RedisServer {
        self.replicas_of(place)
            .first()
            .unwrap_or_else(|| panic!("node {place} has no replica"))
    }

    /// Returns the servers that were started as replicas of the node at this place.
    #[must_use]
    pub fn replicas_of(&self, place: usize) -> &[RedisServer] {
        self.replicas.get(place).map_or(&[], Vec::as_slice)
    }

    /// Returns the slot of a key; its hash tag counts, if it has one.
    #[must_use]
    #[track_caller]
    pub fn slot_of<K: AsRef<[u8]>>(&self, key: K) -> u16 {
        let reply = self.query(&[b"CLUSTER", b"KEYSLOT", key.as_ref()]);
        u16::try_from(reply.integer()).unwrap_or_else(|_| panic!("not a slot: {reply:?}"))
    }

    /// Returns the index of the shard that owns a slot, according to the first node that replies.
    ///
    /// # Panics
    /// If no node replies, or none owns the slot.
    #[must_use]
    #[track_caller]
    pub fn owner_of(&self, slot: u16) -> usize {
        owner_in(&ranges(&self.query(&[b"CLUSTER", b"SLOTS"])), slot)
            .and_then(|port| {
                (0..self.nodes.len()).find(|place| self.members(*place).any(|member| member.port() == port))
            })
            .unwrap_or_else(|| panic!("no node owns slot {slot}"))
    }

    /// Starts the migration of a slot to another node: from now on the owner replies `ASK` for keys
    /// of the slot that it does not have.
    ///
    /// # Panics
    /// If that node already owns the slot, or if a node does not reply.
    #[track_caller]
    pub fn begin_migration(&self, slot: u16, to: usize) -> SlotMigration<'_> {
        SlotMigration::begin(self, slot, to)
    }

    /// Waits until every node names this one as the owner of a slot.
    fn await_owner(&self, slot: u16, owner: &RedisServer) {
        let port = owner.port();
        let known = |node: &RedisServer| {
            let slots = node.try_command(&["CLUSTER", "SLOTS"]);
            slots.is_ok_and(|reply| owner_in(&ranges(&reply), slot) == Some(port))
        };
        let agreed = wait::poll(AGREE_LIMIT, || self.nodes.iter().all(known).then_some(()));
        assert!(
            agreed.is_some(),
            "the nodes did not agree that slot {slot} is owned on port {port}"
        );
    }

    /// Returns the node at a place and its replicas.
    fn members(&self, place: usize) -> impl Iterator<Item = &RedisServer> {
        self.nodes.get(place).into_iter().chain(self.replicas_of(place))
    }

    #[track_caller]
    fn query(&self, args: &[&[u8]]) -> RespValue {
        self.servers()
            .find_map(|node| node.try_command(args).ok())
            .unwrap_or_else(|| panic!("no node of the cluster answers"))
    }
}
