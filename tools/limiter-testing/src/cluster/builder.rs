//! Forming a cluster.

use std::io;
use std::ops::RangeInclusive;

use super::view::{knows, knows_replicas};
use super::{AGREE_LIMIT, RedisCluster};
use crate::port::BUS_OFFSET;
use crate::{RedisServer, RespValue, wait};

const SLOTS: u16 = 16_384;

/// Prepares a [`RedisCluster`].
#[derive(Debug, Clone)]
pub struct RedisClusterBuilder {
    pub(super) primaries: u16,
    pub(super) replicas: usize,
    pub(super) args: Vec<(String, String)>,
}

impl RedisClusterBuilder {
    /// Sets the number of primaries, at least one; three by default.
    #[must_use]
    pub fn primaries(mut self, count: u16) -> Self {
        self.primaries = count.max(1);
        self
    }

    /// Sets the number of replicas of each primary; none by default.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Adds a line of configuration to every node; none by default.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the nodes, gives each primary its share of the slots, and waits until all agree and
    /// all replicas are in step.
    ///
    /// # Panics
    /// As [`RedisCluster::start`].
    #[must_use]
    pub fn start(self) -> RedisCluster {
        let nodes: Vec<_> = (0..self.primaries).map(|_| self.start_node()).collect();
        let replicas: Vec<Vec<_>> = nodes
            .iter()
            .map(|_| (0..self.replicas).map(|_| self.start_node()).collect())
            .collect();
        let cluster = RedisCluster { nodes, replicas };
        self.share_slots(&cluster);
        follow(&cluster);
        cluster
    }

    fn share_slots(&self, cluster: &RedisCluster) {
        let shares: Vec<_> = (0..self.primaries)
            .map(|place| share(place, self.primaries))
            .collect();
        for (node, share) in cluster.nodes().iter().zip(&shares) {
            assign(node, share.clone());
        }
        for (place, node) in cluster.servers().enumerate() {
            // Nodes that all begin at epoch 0 must first resolve the conflict of their epochs,
            // which takes a while.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
        }
        for (place, node) in cluster.servers().enumerate() {
            // Each node meets each other node: the gossip protocol would take seconds longer.
            for peer in cluster.servers().skip(place + 1) {
                let (port, bus) = (peer.port().to_string(), (peer.port() + BUS_OFFSET).to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        let expected: Vec<_> = shares
            .into_iter()
            .zip(cluster.nodes().iter().map(RedisServer::port))
            .collect();
        await_all(cluster, |node| knows(node, &expected));
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

/// Makes the replicas follow their primaries, and waits until they are synchronised and all nodes
/// know them.
fn follow(cluster: &RedisCluster) {
    let mut pairs = Vec::new();
    for (place, node) in cluster.nodes().iter().enumerate() {
        for replica in cluster.replicas_of(place) {
            let id = node.command(&["CLUSTER", "MYID"]).text();
            replica.command(&["CLUSTER", "REPLICATE", &id]);
            pairs.push((replica.port(), node.port()));
        }
    }
    await_all(cluster, |node| knows_replicas(node, &pairs));
    cluster
        .replicas
        .iter()
        .flatten()
        .for_each(RedisServer::wait_for_replication);
}

fn await_all(cluster: &RedisCluster, knows: impl Fn(&RedisServer) -> io::Result<bool>) {
    let agreed = wait::poll(AGREE_LIMIT, || {
        let all = cluster.servers().all(|node| knows(node).unwrap_or(false));
        all.then_some(())
    });
    if agreed.is_none() {
        let views: Vec<_> = cluster
            .servers()
            .map(|node| node.command(&["CLUSTER", "NODES"]).text())
            .collect();
        panic!(
            "the nodes did not form a cluster; each sees:\n{}",
            views.join("\n")
        );
    }
}

/// Returns the slots of one node of `count`; shares differ by at most one slot.
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
        // Redis 6.2 does not support ranges.
        let args = ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter();
        node.command(&args.chain(slots.map(|slot| slot.to_string())).collect::<Vec<_>>());
    }
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
