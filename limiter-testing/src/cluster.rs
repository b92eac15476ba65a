//! Several servers that share the slots.

mod migration;

use std::io;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::time::Duration;

use crate::port::BUS_OFFSET;
use crate::{RedisServer, RespValue, wait};

pub use migration::SlotMigration;

const SLOTS: u16 = 16_384;
const AGREE_LIMIT: Duration = Duration::from_secs(30);

/// A Redis Cluster of primaries on loopback, without replicas; its servers live as long as this handle.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three primaries that share the slots evenly, and waits until each knows about all.
    ///
    /// # Panics
    /// As [`RedisServer::start`], or if the nodes do not agree within thirty seconds.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Prepares a cluster with a configuration of its own.
    #[must_use]
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder {
            primaries: 3,
            args: Vec::new(),
        }
    }

    /// The cluster that all tests of this process share: its users keep to keys of their own, move no
    /// slots, and leave every node running.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisCluster> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Where a client connects to, one URL for each node.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// The nodes; other methods name a node by its place here.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The node at this place.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    #[track_caller]
    pub fn node(&self, place: usize) -> &RedisServer {
        self.nodes
            .get(place)
            .unwrap_or_else(|| panic!("the cluster has no node {place}"))
    }

    /// The slot a key belongs to; its hash tag counts, if it has one.
    #[must_use]
    #[track_caller]
    pub fn slot_of<K: AsRef<[u8]>>(&self, key: K) -> u16 {
        let reply = self.ask(&[b"CLUSTER", b"KEYSLOT", key.as_ref()]);
        u16::try_from(reply.integer()).unwrap_or_else(|_| panic!("not a slot: {reply:?}"))
    }

    /// The place of the node that owns a slot, as the first node that answers knows it.
    ///
    /// # Panics
    /// If no node answers, or none owns the slot.
    #[must_use]
    #[track_caller]
    pub fn owner_of(&self, slot: u16) -> usize {
        owner_in(&ranges(&self.ask(&[b"CLUSTER", b"SLOTS"])), slot)
            .and_then(|port| self.nodes.iter().position(|node| node.port() == port))
            .unwrap_or_else(|| panic!("no node owns slot {slot}"))
    }

    /// Opens the migration of a slot from the node that owns it to another: from now on the owner answers
    /// `ASK` for keys of the slot that it does not hold.
    ///
    /// # Panics
    /// If the slot belongs to that node already, or if a node does not answer.
    #[track_caller]
    pub fn begin_migration(&self, slot: u16, to: usize) -> SlotMigration<'_> {
        SlotMigration::begin(self, slot, to)
    }

    /// Waits until every node names this one as the owner of a slot.
    fn await_owner(&self, slot: u16, place: usize) {
        let port = self.node(place).port();
        let known = |node: &RedisServer| {
            let slots = node.try_command(&["CLUSTER", "SLOTS"]);
            slots.is_ok_and(|reply| owner_in(&ranges(&reply), slot) == Some(port))
        };
        let agreed = wait::poll(AGREE_LIMIT, || self.nodes.iter().all(known).then_some(()));
        assert!(
            agreed.is_some(),
            "the nodes did not agree that node {place} owns slot {slot}"
        );
    }

    #[track_caller]
    fn ask(&self, args: &[&[u8]]) -> RespValue {
        self.nodes
            .iter()
            .find_map(|node| node.try_command(args).ok())
            .unwrap_or_else(|| panic!("no node of the cluster answers"))
    }
}

/// Prepares a [`RedisCluster`].
#[derive(Debug, Clone)]
pub struct RedisClusterBuilder {
    primaries: u16,
    args: Vec<(String, String)>,
}

impl RedisClusterBuilder {
    /// How many nodes there are, at least one; three by default.
    #[must_use]
    pub fn primaries(mut self, count: u16) -> Self {
        self.primaries = count.max(1);
        self
    }

    /// Adds a line of configuration to every node; none by default.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the nodes, gives each its share of the slots, and waits until all agree.
    ///
    /// # Panics
    /// As [`RedisCluster::start`].
    #[must_use]
    pub fn start(self) -> RedisCluster {
        let nodes: Vec<RedisServer> = (0..self.primaries).map(|_| self.start_node()).collect();
        let shares: Vec<_> = (0..self.primaries)
            .map(|place| share(place, self.primaries))
            .collect();
        for (epoch, (node, share)) in (1_u16..).zip(nodes.iter().zip(&shares)) {
            // Nodes that all begin at epoch 0 have to settle who gives way first, which takes a while.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
            assign(node, share.clone());
        }
        for (place, node) in nodes.iter().enumerate() {
            // Each meets each: word of mouth would take seconds more.
            for peer in nodes.iter().skip(place + 1) {
                let (port, bus) = (peer.port().to_string(), (peer.port() + BUS_OFFSET).to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        let expected: Vec<_> = shares
            .into_iter()
            .zip(nodes.iter().map(RedisServer::port))
            .collect();
        let agreed = wait::poll(AGREE_LIMIT, || {
            nodes
                .iter()
                .all(|node| knows(node, &expected).unwrap_or(false))
                .then_some(())
        });
        if agreed.is_none() {
            let views: Vec<_> = nodes
                .iter()
                .map(|node| node.command(&["CLUSTER", "NODES"]).text())
                .collect();
            panic!(
                "the nodes did not form a cluster; each sees:\n{}",
                views.join("\n")
            );
        }
        RedisCluster { nodes }
    }

    fn start_node(&self) -> RedisServer {
        let base = RedisServer::builder()
            .arg("cluster-enabled", "yes")
            // Long enough that a busy machine does not make nodes doubt each other.
            .arg("cluster-node-timeout", "5000")
            .arg("cluster-announce-ip", "127.0.0.1");
        self.args
            .iter()
            .fold(base, |node, (name, value)| node.arg(name, value))
            .start()
    }
}

/// The slots of one node out of `count`; the shares differ by one slot at most.
fn share(place: u16, count: u16) -> RangeInclusive<u16> {
    let bound = |place: u16| {
        let bound = u32::from(SLOTS) * u32::from(place) / u32::from(count);
        u16::try_from(bound).unwrap_or(SLOTS)
    };
    bound(place)..=bound(place + 1) - 1
}

fn assign(node: &RedisServer, slots: RangeInclusive<u16>) {
    let (first, last) = (slots.start().to_string(), slots.end().to_string());
    let reply = node.try_command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
    if !matches!(reply, Ok(RespValue::Status(_))) {
        // Redis 6.2 knows no ranges.
        let args = ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter();
        node.command(&args.chain(slots.map(|slot| slot.to_string())).collect::<Vec<_>>());
    }
}

/// Whether a node takes the cluster for healthy and its slots for distributed as expected.
fn knows(node: &RedisServer, expected: &[(RangeInclusive<u16>, u16)]) -> io::Result<bool> {
    let info = node.try_command(&["CLUSTER", "INFO"])?.text();
    let mut seen = ranges(&node.try_command(&["CLUSTER", "SLOTS"])?);
    seen.sort_by_key(|(slots, _)| *slots.start());
    Ok(info.lines().any(|line| line == "cluster_state:ok") && seen == expected)
}

/// The reply to `CLUSTER SLOTS`: ranges, each with the port of its owner.
fn ranges(reply: &RespValue) -> Vec<(RangeInclusive<u16>, u16)> {
    let number = |value: &RespValue| u16::try_from(value.integer()).ok();
    let range = |entry: &RespValue| match entry.items() {
        [first, last, owner, ..] => Some((number(first)?..=number(last)?, number(owner.items().get(1)?)?)),
        _ => None,
    };
    reply.items().iter().filter_map(range).collect()
}

fn owner_in(ranges: &[(RangeInclusive<u16>, u16)], slot: u16) -> Option<u16> {
    ranges
        .iter()
        .find(|(slots, _)| slots.contains(&slot))
        .map(|(_, port)| *port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_slot_once() {
        for count in [1, 3, 7] {
            let slots: Vec<u16> = (0..count).flat_map(|place| share(place, count)).collect();
            assert_eq!(slots, (0..SLOTS).collect::<Vec<_>>());
        }
    }
}
