//! Routing in Redis Cluster: finds the node that owns a slot and follows redirections.
//!
//! The map of slots is read on the first call and again after redirections and failures, by one
//! task at a time. Invariant: a call is sent again only if a node's reply proves that nothing was
//! executed.
//!
//! Tests: `tests/cluster.rs` (`moving_slot_charges_each_call_once`,
//! `promoted_replica_charges_each_call_once`, `call_waits_while_two_nodes_redirect_to_each_other`),
//! `tests/cluster_batches.rs`.

mod slot_map_refresh;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bb8_redis::redis;
use bb8_redis::redis::{ErrorKind, ServerErrorKind};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::redis::client::connection::Asking;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::failure::Failure;
use crate::redis::cluster::slot_map_refresh::{ABANDONED_AFTER, REFRESH_INTERVAL, SlotMapRefresh};
use crate::redis::dispatch::BatchPart;
use crate::redis::node::NodeOperation;
use crate::redis::node::{Node, NodeSettings};
use crate::redis::topology::dialer::Dialer;
use crate::redis::topology::slots::{Address, Owners, owners, redirected, slot};
use crate::support::clock::Clock;
use crate::support::log_throttle::LogThrottle;
use crate::support::real_time::CallDeadline;
use crate::support::real_time::{sleep, timeout, timeout_at};
use crate::support::sync::RwLock;

/// Upper bound of redirections per call; beyond it, the nodes disagree.
const MAX_REDIRECTIONS: usize = 8;
/// Redirections without a pause. Two nodes redirect to each other while one has given up a slot and
/// the other does not serve it yet. The pauses double and add up to 62 ms.
const IMMEDIATE_REDIRECTIONS: u32 = 2;
/// Pause before a retry while the keys of a slot are being moved.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// Upper bound of retries of a call while the cluster reports CLUSTERDOWN. The pauses double and
/// add up to 30 ms.
const WHILE_DOWN: usize = 4;
/// Timeout of one node's reply with the map.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);
/// Additional time for the other nodes after the first reply without a majority.
const GRACE: Duration = Duration::from_millis(50);

/// A cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Cluster(Arc<ClusterInner>);

#[derive(Debug)]
struct ClusterInner {
    /// Seed nodes; the first one also supplies login and TLS settings.
    seeds: Vec<Endpoint>,
    settings: NodeSettings,
    pub(crate) clock: Clock,
    map: RwLock<Map>,
    refresh: Arc<SlotMapRefresh>,
    /// An outage fails each refresh.
    failure_log: LogThrottle,
}

#[derive(Debug, Default)]
struct Map {
    nodes: HashMap<Address, Node>,
    /// Empty until the first refresh.
    owners: Owners,
}

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<Endpoint>,
        settings: NodeSettings,
        clock: Clock,
    ) -> Result<Self, ConfigError> {
        if seeds.is_empty() {
            return Err(ConfigError::Missing {
                field: "a URL of a cluster node",
            });
        }
        Ok(Self(Arc::new(ClusterInner {
            seeds,
            settings,
            clock,
            map: RwLock::default(),
            refresh: SlotMapRefresh::new(),
            failure_log: LogThrottle::default(),
        })))
    }

    /// Runs the operation on the node that owns its slot. Follows redirections, since they prove
    /// that the redirecting node executed nothing; sends nothing again after any other error.
    pub(crate) async fn execute<E: NodeOperation>(&self, operation: &E) -> Result<E::Output, StoreError> {
        // An unresponsive node cannot redirect to its successor.
        let on_timeout = || self.refresh_after_failure();
        operation
            .wait()
            .for_answer(pin!(self.follow(operation)), on_timeout)
            .await
    }

    async fn follow<E: NodeOperation>(&self, operation: &E) -> Result<E::Output, StoreError> {
        let slot = operation.slot();
        let (mut asking, mut moves) = (Asking::Omitted, 0_u32);
        let mut address = self.owner(slot).await?;
        for attempt in 0..MAX_REDIRECTIONS {
            let node = self.0.node(&address)?;
            let error = match operation.execute(&node, BatchPart { slot, asking }).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Undecided(error)) => return Err(error),
                Err(Failure::Unreachable(error)) => {
                    // A replica may have taken over the slots of the node.
                    if error.kind() != StoreErrorKind::Overloaded {
                        self.refresh_after_failure();
                    }
                    return Err(error);
                }
                Err(Failure::Answered(error)) => error,
            };
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    address = redirected(&error, &address)?;
                    asking = Asking::Omitted;
                    self.refresh_in_background();
                    moves += 1;
                    let doublings = moves.checked_sub(IMMEDIATE_REDIRECTIONS + 1);
                    if let Some(doublings) = doublings.filter(|_| attempt + 1 < MAX_REDIRECTIONS) {
                        sleep(TRY_AGAIN_AFTER * (1 << doublings)).await;
                    }
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    address = redirected(&error, &address)?;
                    asking = Asking::Required;
                }
                ErrorKind::Server(ServerErrorKind::TryAgain) => sleep(TRY_AGAIN_AFTER).await,
                // Nodes reply with CLUSTERDOWN for a moment during a failover, and the reply proves
                // that nothing was executed.
                ErrorKind::Server(ServerErrorKind::ClusterDown) if attempt < WHILE_DOWN => {
                    self.refresh_in_background();
                    sleep(TRY_AGAIN_AFTER * (1 << attempt)).await;
                    address = self.owner(slot).await?;
                    asking = Asking::Omitted;
                }
                _ => {
                    if !matches!(error.kind(), ErrorKind::Extension) {
                        self.refresh_after_failure();
                    }
                    return Err(error.into());
                }
            }
        }
        let detail = format!("nodes of the cluster disagree about slot {slot}");
        Err(StoreError::new(StoreErrorKind::Refused, detail))
    }

    /// Refreshes the map and returns the nodes that own slots.
    pub(crate) async fn primaries(&self) -> Result<Vec<Node>, StoreError> {
        self.refresh().await?;
        let addresses: HashSet<Address> = self.0.read(|map| map.owners.iter().flatten().cloned().collect());
        addresses.iter().map(|address| self.0.node(address)).collect()
    }

    /// Returns a hash tag with this prefix for each node that owns slots in the current map.
    pub(crate) fn tags(&self, prefix: &str) -> Vec<String> {
        self.0.read(|map| {
            let mut missing: HashSet<&Address> = map.owners.iter().flatten().collect();
            let nodes = missing.len();
            let is_of_missing = |tag: &String| {
                let owner = map.owners.get(usize::from(slot(tag)));
                owner
                    .and_then(Option::as_ref)
                    .is_some_and(|owner| missing.remove(owner))
            };
            let tags = (0_u64..).map(|number| format!("{prefix}{number}"));
            tags.filter(is_of_missing).take(nodes).collect()
        })
    }

    /// Returns the owner of a slot according to the current map.
    #[cfg(feature = "registry")]
    pub(crate) async fn node_of(&self, slot: u16) -> Result<Node, StoreError> {
        self.0.node(&self.owner(slot).await?)
    }

    /// Returns the owner of a slot. Sends nothing of the call.
    async fn owner(&self, slot: u16) -> Result<Address, StoreError> {
        let owner = || {
            self.0
                .read(|map| map.owners.get(usize::from(slot)).cloned().flatten())
        };
        if let Some(address) = owner() {
            return Ok(address);
        }
        // On the heap, since it is rare and would enlarge the future of every call.
        let refreshed = Box::pin(self.refresh_for_call()).await;
        refreshed.map_err(StoreError::unsent)?;
        owner().ok_or_else(|| StoreError::new(StoreErrorKind::Refused, format!("no node owns slot {slot}")))
    }

    /// Waits for a refresh of the map on behalf of a call whose slot has no known owner. After the
    /// first refresh, a call waits only for a refresh that it starts: no breaker rejects calls to
    /// an unknown node, and an outage must not delay each of them until its deadline.
    async fn refresh_for_call(&self) -> Result<(), StoreError> {
        if let Some(last) = self.0.refresh.last() {
            if !self.spawn_refresh(REFRESH_INTERVAL) {
                return last;
            }
        }
        self.refresh().await
    }

    /// Waits for the next refresh of the map. Cancellation does not stop the refresh.
    async fn refresh(&self) -> Result<(), StoreError> {
        loop {
            let mut next = self.0.refresh.next();
            self.spawn_refresh(Duration::ZERO);
            // A running refresh may have been abandoned with its runtime; then another one starts.
            if timeout(ABANDONED_AFTER, next.changed()).await.is_ok() {
                return next.borrow().clone().unwrap_or(Ok(()));
            }
        }
    }

    /// Starts a refresh in the background, unless one started recently: a reply has shown that the
    /// map is outdated.
    fn refresh_in_background(&self) {
        self.spawn_refresh(REFRESH_INTERVAL);
    }

    /// Starts a refresh in the background, unless one started recently: a node may have lost its
    /// slots.
    fn refresh_after_failure(&self) {
        self.spawn_refresh(self.0.refresh.interval_after_failure(Instant::now()));
    }

    /// Spawns a refresh of the map, unless one is running or the last one started less than
    /// `interval` ago. Returns whether it spawned one.
    fn spawn_refresh(&self, interval: Duration) -> bool {
        // A call may be dropped outside of its runtime.
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        let Some(guard) = self.0.refresh.start(interval, Instant::now()) else {
            return false;
        };
        let cluster = self.clone();
        runtime.spawn(async move {
            // Moved into the task at its start, so that a task that never runs drops the guard.
            let guard = guard;
            let result = cluster.0.fetch_slot_map().await;
            if let Err(error) = &result {
                if cluster.0.failure_log.is_due(Clock::System.now()) {
                    tracing::warn!(error = %error.with_causes(), "cannot read the slots of the cluster");
                }
            }
            guard.finish(result);
        });
        true
    }
}

impl ClusterInner {
    fn read<T>(&self, read: impl FnOnce(&Map) -> T) -> T {
        read(&self.map.read())
    }

    /// Queries all known nodes in parallel and adopts the map that a majority reports, or the most
    /// frequent one shortly after the first reply. A node that was partitioned off keeps an
    /// outdated map and may be the nearest one; the map carries no version.
    async fn fetch_slot_map(&self) -> Result<(), StoreError> {
        let mut queries = JoinSet::new();
        for address in self.known_addresses() {
            let node = self.node(&address)?;
            queries.spawn(async move { map_of(&node, &address).await });
        }
        let majority = queries.len() / 2 + 1;
        let mut maps: Vec<(Owners, usize)> = Vec::new();
        let mut last = StoreError::new(StoreErrorKind::Connection, "no node of the cluster is known");
        let mut stop_at = Instant::now() + 2 * REFRESH_TIMEOUT;
        while maps.iter().all(|(_, number)| *number < majority) {
            let Ok(Some(answer)) = timeout_at(stop_at, queries.join_next()).await else {
                break;
            };
            match answer {
                Ok(Ok(owners)) => {
                    stop_at = stop_at.min(Instant::now() + GRACE);
                    match maps.iter_mut().find(|(known, _)| *known == owners) {
                        Some((_, number)) => *number += 1,
                        None => maps.push((owners, 1)),
                    }
                }
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
        }
        // The first reported map wins a tie.
        let (owners, _) = maps
            .into_iter()
            .rev()
            .max_by_key(|(_, number)| *number)
            .ok_or(last)?;
        self.adopt(owners);
        Ok(())
    }

    /// Returns the addresses of the seeds and of the known nodes.
    fn known_addresses(&self) -> HashSet<Address> {
        self.read(|map| self.seed_addresses().chain(map.nodes.keys()).cloned().collect())
    }

    fn seed_addresses(&self) -> impl Iterator<Item = &Address> {
        self.seeds.iter().filter_map(Endpoint::address)
    }

    /// Returns the node at an address, with the settings of the first seed.
    fn node(&self, address: &Address) -> Result<Node, StoreError> {
        if let Some(node) = self.read(|map| map.nodes.get(address).cloned()) {
            return Ok(node);
        }
        let no_seed = || StoreError::new(StoreErrorKind::Connection, "no seed node");
        let seed = self.seeds.first().ok_or_else(no_seed)?;
        let endpoint = seed.at(Arc::clone(address));
        let node = Node::new(Dialer::To(endpoint), self.settings, self.clock.clone());
        let mut map = self.map.write();
        Ok(map.nodes.entry(Arc::clone(address)).or_insert(node).clone())
    }

    /// Replaces the map and drops nodes without slots, together with their connections. Seeds are
    /// kept for later refreshes.
    fn adopt(&self, owners: Owners) {
        let used = owners.iter().flatten();
        let kept: HashSet<Address> = used.chain(self.seed_addresses()).cloned().collect();
        let mut map = self.map.write();
        if map.owners != owners {
            self.refresh.end_failures();
        }
        map.owners = owners;
        map.nodes.retain(|address, _| kept.contains(address));
    }
}

/// Reads the map of slots from a node.
async fn map_of(node: &Node, address: &Address) -> Result<Owners, StoreError> {
    let wait = CallDeadline::after(REFRESH_TIMEOUT);
    let answer = async {
        let mut connection = node.connection(REFRESH_TIMEOUT).await?;
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        owners(
            &connection.send(command, Asking::Omitted, &wait).await?,
            &address.0,
        )
    };
    let too_late = |_| {
        StoreError::new(
            StoreErrorKind::Timeout,
            "no answer to CLUSTER SLOTS within a second",
        )
    };
    timeout(REFRESH_TIMEOUT, answer).await.map_err(too_late)?
}
