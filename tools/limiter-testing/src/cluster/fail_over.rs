//! Replicas that take the place of their primary.

use std::time::Duration;

use super::view::{knows_replicas, ranges};
use super::{AGREE_LIMIT, RedisCluster};
use crate::{RedisServer, wait};

/// A replica cancels a requested failover after five seconds without a report.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(6);
const ATTEMPTS: usize = 5;

impl RedisCluster {
    /// Returns the current primary: the node at this place, or one of its replicas.
    ///
    /// # Panics
    /// If none of them reports the role of a primary.
    #[must_use]
    #[track_caller]
    pub fn primary_of(&self, place: usize) -> &RedisServer {
        if self.replicas_of(place).is_empty() {
            return self.node(place);
        }
        // A disconnected server can still report the role of a primary, with an older epoch.
        self.members(place)
            .filter(|member| member.is_primary())
            .max_by_key(|member| config_epoch(member))
            .unwrap_or_else(|| panic!("node {place} and its replicas have no primary among them"))
    }

    /// Promotes a replica, which its former primary then follows. No acknowledged write is lost.
    /// Returns the new primary when all reachable servers know it and its replicas are connected.
    ///
    /// The nodes elect no successor to the same server twice within two `cluster-node-timeout`s; a
    /// second call that soon takes accordingly longer.
    ///
    /// # Panics
    /// If there is no replica, or if that is not so after thirty seconds.
    #[track_caller]
    pub fn fail_over(&self, place: usize) -> &RedisServer {
        let old = self.primary_of(place);
        for _ in 0..ATTEMPTS {
            let heir = || self.members(place).find(|member| is_ready(member, old));
            if let Some(heir) = wait::poll(ATTEMPT_LIMIT, heir) {
                // A refusal has reasons that pass.
                let _ = heir.try_command(&["CLUSTER", "FAILOVER"]);
            }
            if let Some(new) = wait::poll(ATTEMPT_LIMIT, || self.successor(place, old)) {
                return new;
            }
        }
        panic!(
            "no replica of node {place} took over; its log ends:\n{}",
            old.log_tail()
        );
    }

    /// Kills the current primary at this place, and returns it.
    ///
    /// A replica takes over automatically after the `cluster-node-timeout` of the nodes and about
    /// one second, if most of the primaries are alive; see
    /// [`await_fail_over`](Self::await_fail_over).
    ///
    /// # Panics
    /// If there is no primary.
    #[track_caller]
    pub fn kill_primary(&self, place: usize) -> &RedisServer {
        let primary = self.primary_of(place);
        primary.kill();
        primary
    }

    /// Waits until a shard has another primary than `old`, all reachable servers know it, and its
    /// replicas are connected. Returns the new primary.
    ///
    /// # Panics
    /// If that is not so after thirty seconds.
    #[track_caller]
    pub fn await_fail_over(&self, place: usize, old: &RedisServer) -> &RedisServer {
        wait::poll(AGREE_LIMIT, || self.successor(place, old))
            .unwrap_or_else(|| panic!("no replica took over from the server on port {}", old.port()))
    }

    /// Returns the successor of `old` after the failover has finished.
    fn successor(&self, place: usize, old: &RedisServer) -> Option<&RedisServer> {
        let new = self
            .members(place)
            .find(|member| member.port() != old.port() && member.is_primary())?;
        let gone: Vec<u16> = self
            .members(place)
            .map(RedisServer::port)
            .filter(|port| *port != new.port())
            .collect();
        let settled = |server: &RedisServer| {
            let Ok(slots) = server.query(&["CLUSTER", "SLOTS"]) else {
                return true;
            };
            let owners: Vec<u16> = ranges(&slots).into_iter().map(|(_, port)| port).collect();
            owners.contains(&new.port())
                && !owners.iter().any(|owner| gone.contains(owner))
                && (!gone.contains(&server.port()) || is_ready(server, new))
        };
        let healthy = new
            .query(&["CLUSTER", "INFO"])
            .is_ok_and(|info| info.text().contains("cluster_state:ok"));
        (healthy && self.servers().all(settled)).then_some(new)
    }
}

/// Returns whether a replica could take over from its primary; the request to an uninitialised one
/// is ignored.
fn is_ready(replica: &RedisServer, primary: &RedisServer) -> bool {
    replica.follows(primary) && knows_replicas(primary, &[(replica.port(), primary.port())]).unwrap_or(false)
}

/// Returns the age of a node's claim to its slots; higher is younger.
fn config_epoch(node: &RedisServer) -> u64 {
    let info = node
        .query(&["CLUSTER", "INFO"])
        .map(|info| info.text())
        .unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("cluster_my_epoch:"))
        .and_then(|epoch| epoch.parse().ok())
        .unwrap_or_default()
}
