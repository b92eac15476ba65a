//! Redis Cluster: which node owns which slot, and how to follow it when that changes.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bb8_redis::redis;
use bb8_redis::redis::{ErrorKind, ServerErrorKind};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::connection::Dialer;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::node::{Failure, Node, NodeSettings};
use crate::redis::dispatch::BatchPart;
use crate::redis::dispatch::operation::NodeOperation;
use crate::redis::topology::slot_map_refresh::{ABANDONED_AFTER, SlotMapRefresh};
use crate::redis::topology::slots::{Address, Owners, owners, redirected};
use crate::support::clock::Clock;
use crate::support::real_time::{sleep, timeout, timeout_at};

/// More redirections than this for one call mean that the nodes disagree.
const MAX_REDIRECTIONS: usize = 8;
/// How long a slot whose keys are just moving is left alone.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// How often a call is sent again to a cluster that says that it is down, after pauses that double:
/// 30 ms in all.
const WHILE_DOWN: usize = 4;
/// How often a call's trouble has the map learned anew.
const LEARN_EVERY: Duration = Duration::from_millis(150);
/// How long a node may take to tell the map.
const LEARN_WITHIN: Duration = Duration::from_secs(1);
/// How much longer the others may take, as long as most do not agree.
const GRACE: Duration = Duration::from_millis(50);

/// A cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Cluster(Arc<ClusterInner>);

#[derive(Debug)]
struct ClusterInner {
    /// Where to start, and with which settings.
    seeds: Vec<Endpoint>,
    settings: NodeSettings,
    pub(crate) clock: Clock,
    map: RwLock<Map>,
    learner: Arc<SlotMapRefresh>,
}

#[derive(Debug, Default)]
struct Map {
    nodes: HashMap<Address, Node>,
    /// Empty until the map was learned.
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
                what: "a URL of a cluster node",
            });
        }
        Ok(Self(Arc::new(ClusterInner {
            seeds,
            settings,
            clock,
            map: RwLock::default(),
            learner: SlotMapRefresh::new(),
        })))
    }

    /// Does the errand on the node that owns its slot. A node's answer that the slot is elsewhere
    /// proves that nothing has run there, so it is followed; nothing else is ever sent again.
    pub(crate) async fn execute<E: NodeOperation>(&self, errand: &E) -> Result<E::Answer, StoreError> {
        // A node that falls silent answers nothing that would tell of its successor.
        let overdue = || self.refresh_in_background();
        errand.wait().for_answer(pin!(self.follow(errand)), overdue).await
    }

    async fn follow<E: NodeOperation>(&self, errand: &E) -> Result<E::Answer, StoreError> {
        let slot = errand.slot();
        let mut asking = false;
        let mut address = self.owner(slot).await?;
        for attempt in 0..MAX_REDIRECTIONS {
            let node = self.0.node(&address)?;
            let error = match errand.execute(&node, BatchPart { slot, asking }).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Undecided(error)) => return Err(error),
                Err(Failure::Unreachable(error)) => {
                    // Its slots may have gone to a replica.
                    if error.kind() != StoreErrorKind::Overloaded {
                        self.refresh_in_background();
                    }
                    return Err(error);
                }
                Err(Failure::Answered(error)) => error,
            };
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    address = redirected(&error, &address)?;
                    asking = false;
                    self.refresh_in_background();
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    address = redirected(&error, &address)?;
                    asking = true;
                }
                ErrorKind::Server(ServerErrorKind::TryAgain) => sleep(TRY_AGAIN_AFTER).await,
                // Nodes say so for a moment as they change places, and it proves that nothing has
                // run.
                ErrorKind::Server(ServerErrorKind::ClusterDown) if attempt < WHILE_DOWN => {
                    self.refresh_in_background();
                    sleep(TRY_AGAIN_AFTER * (1 << attempt)).await;
                    address = self.owner(slot).await?;
                    asking = false;
                }
                _ => {
                    if !matches!(error.kind(), ErrorKind::Extension) {
                        self.refresh_in_background();
                    }
                    return Err(error.into());
                }
            }
        }
        let detail = format!("nodes of the cluster disagree about slot {slot}");
        Err(StoreError::new(StoreErrorKind::Refused, detail))
    }

    /// Learns the map; the nodes that own slots.
    pub(crate) async fn primaries(&self) -> Result<Vec<Node>, StoreError> {
        self.refresh().await?;
        let addresses: HashSet<Address> = self.0.read(|map| map.owners.iter().flatten().cloned().collect());
        addresses.iter().map(|address| self.0.node(address)).collect()
    }

    /// The node that owns a slot, as far as is known.
    #[cfg(feature = "registry")]
    pub(crate) async fn node_of(&self, slot: u16) -> Result<Node, StoreError> {
        self.0.node(&self.owner(slot).await?)
    }

    async fn owner(&self, slot: u16) -> Result<Address, StoreError> {
        let owner = || {
            self.0
                .read(|map| map.owners.get(usize::from(slot)).cloned().flatten())
        };
        if let Some(address) = owner() {
            return Ok(address);
        }
        // On the heap, since it is needed once in a while, and every call's future would have room
        // for it.
        Box::pin(self.refresh()).await?;
        owner().ok_or_else(|| StoreError::new(StoreErrorKind::Refused, format!("no node owns slot {slot}")))
    }

    /// Waits until the map has been learned anew. Whoever stops waiting does not stop the learning.
    async fn refresh(&self) -> Result<(), StoreError> {
        loop {
            let mut next = self.0.learner.next();
            self.start_learning(Duration::ZERO);
            // Who was at it may have been abandoned; then somebody has to take his place.
            if timeout(ABANDONED_AFTER, next.changed()).await.is_ok() {
                return next.borrow().clone();
            }
        }
    }

    /// Learns the map in the background, if it was not learned just now.
    fn refresh_in_background(&self) {
        self.start_learning(LEARN_EVERY);
    }

    /// Learns the map in a task, unless one is at it or the last one started less than `interval`
    /// ago.
    fn start_learning(&self, interval: Duration) {
        // A call may be dropped outside of its runtime.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let Some(learning) = self.0.learner.start(interval, Instant::now()) else {
            return;
        };
        let cluster = self.clone();
        runtime.spawn(async move {
            // Its part of the task from the beginning, so that a task that never runs gives it
            // back.
            let learning = learning;
            let result = cluster.0.fetch_slot_map().await;
            if let Err(error) = &result {
                tracing::warn!(error = %error.with_causes(), "cannot read the slots of the cluster");
            }
            learning.finish(result);
        });
    }
}

impl ClusterInner {
    fn read<T>(&self, look: impl FnOnce(&Map) -> T) -> T {
        look(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks all known nodes at once, and takes the map that most of them tell, or tell within a
    /// moment of the first: one that was cut off goes on telling an old one, and may be the
    /// nearest. The map itself does not say how old it is.
    async fn fetch_slot_map(&self) -> Result<(), StoreError> {
        let mut asked = JoinSet::new();
        for address in self.known_addresses() {
            let node = self.node(&address)?;
            asked.spawn(async move { map_of(&node, &address).await });
        }
        let majority = asked.len() / 2 + 1;
        let mut maps: Vec<(Owners, usize)> = Vec::new();
        let mut last = StoreError::new(StoreErrorKind::Connection, "no node of the cluster is known");
        let mut until = Instant::now() + 2 * LEARN_WITHIN;
        while maps.iter().all(|(_, number)| *number < majority) {
            let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await else {
                break;
            };
            match answer {
                Ok(Ok(owners)) => {
                    until = until.min(Instant::now() + GRACE);
                    match maps.iter_mut().find(|(told, _)| *told == owners) {
                        Some((_, number)) => *number += 1,
                        None => maps.push((owners, 1)),
                    }
                }
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
        }
        // Of those that equally many tell, the first.
        let (owners, _) = maps
            .into_iter()
            .rev()
            .max_by_key(|(_, number)| *number)
            .ok_or(last)?;
        self.adopt(owners);
        Ok(())
    }

    /// The seeds, then the nodes that were learned.
    fn known_addresses(&self) -> HashSet<Address> {
        self.read(|map| self.seed_addresses().chain(map.nodes.keys()).cloned().collect())
    }

    fn seed_addresses(&self) -> impl Iterator<Item = &Address> {
        self.seeds.iter().filter_map(Endpoint::address)
    }

    /// The node at an address, reached with the settings of the first seed.
    fn node(&self, address: &Address) -> Result<Node, StoreError> {
        if let Some(node) = self.read(|map| map.nodes.get(address).cloned()) {
            return Ok(node);
        }
        let no_seed = || StoreError::new(StoreErrorKind::Connection, "no seed node");
        let seed = self.seeds.first().ok_or_else(no_seed)?;
        let endpoint = seed.at(Arc::clone(address));
        let node = Node::new(Dialer::To(endpoint), self.settings, self.clock.clone());
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        Ok(map.nodes.entry(Arc::clone(address)).or_insert(node).clone())
    }

    /// Replaces the map. Nodes that own nothing any more are let go, and their connections with
    /// them; seeds are kept, to be asked again.
    fn adopt(&self, owners: Owners) {
        let own = owners.iter().flatten();
        let kept: HashSet<Address> = own.chain(self.seed_addresses()).cloned().collect();
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.owners = owners;
        map.nodes.retain(|address, _| kept.contains(address));
    }
}

/// The map that a node tells.
async fn map_of(node: &Node, address: &Address) -> Result<Owners, StoreError> {
    let wait = CallDeadline::after(LEARN_WITHIN);
    let answer = async {
        let mut connection = node.connection(LEARN_WITHIN).await?;
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        owners(&connection.send(command, false, &wait).await?, &address.0)
    };
    let too_late = |_| {
        StoreError::new(
            StoreErrorKind::Timeout,
            "no answer to CLUSTER SLOTS within a second",
        )
    };
    timeout(LEARN_WITHIN, answer).await.map_err(too_late)?
}
