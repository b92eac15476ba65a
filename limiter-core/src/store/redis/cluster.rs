//! Redis Cluster: which node owns which slot, and how to follow it when that changes.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bb8_redis::redis::{self, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::Mutex;

use super::connection::{self, Dialer};
use super::node::{Failure, Node};
use super::script::Call;
use crate::error::{ConfigError, StoreError, StoreErrorKind};

const SLOTS: u16 = 16_384;
/// More redirections than this for one call mean that the nodes disagree.
const MAX_REDIRECTIONS: usize = 8;
/// How long a slot whose keys are just moving is left alone.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// A cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Cluster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Where to start, and with which settings.
    seeds: Vec<ConnectionInfo>,
    connections: u32,
    map: RwLock<Map>,
    /// Held while the map is learned, so that one asks for all.
    learning: Mutex<()>,
}

#[derive(Debug, Default)]
struct Map {
    nodes: HashMap<Address, Node>,
    /// By slot; empty until the map was learned.
    owners: Vec<Option<Address>>,
    /// Counts how often the map was learned.
    revision: u64,
}

/// Host and port, as the cluster announces them.
type Address = Arc<(String, u16)>;

impl Cluster {
    pub(super) fn new(urls: &[String], connections: u32) -> Result<Self, ConfigError> {
        if urls.is_empty() {
            return Err(ConfigError::Missing {
                what: "a URL of a cluster node",
            });
        }
        let seeds = urls
            .iter()
            .map(|url| connection::connection_info(url))
            .collect::<Result<Vec<_>, _>>()?;
        let (map, learning) = Default::default();
        Ok(Self(Arc::new(Inner {
            seeds,
            connections,
            map,
            learning,
        })))
    }

    /// Runs the script on the node that owns the call's slot. A node's answer that the slot is elsewhere proves that
    /// nothing has run there, so it is followed; nothing else is ever sent again.
    pub(super) async fn run(&self, call: &Call) -> Result<Value, StoreError> {
        let slot = slot(call.key());
        let mut asking = false;
        let mut node = self.owner(slot).await?;
        for _ in 0..MAX_REDIRECTIONS {
            let error = match node.try_run(call, asking).await {
                Ok(reply) => return Ok(reply),
                Err(Failure::Unreachable(error)) => {
                    // Its slots may have gone to a replica.
                    self.learn_soon();
                    return Err(error);
                }
                Err(Failure::Answered(error)) => error,
            };
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    node = self.redirected(&error)?;
                    asking = false;
                    self.learn_soon();
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    node = self.redirected(&error)?;
                    asking = true;
                }
                ErrorKind::Server(ServerErrorKind::TryAgain) => tokio::time::sleep(TRY_AGAIN_AFTER).await,
                _ => {
                    if !matches!(error.kind(), ErrorKind::Extension) {
                        self.learn_soon();
                    }
                    return Err(error.into());
                }
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Refused,
            format!("the cluster's nodes disagree about slot {slot}"),
        ))
    }

    /// Learns the map, and prepares every primary.
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        self.learn(self.0.read(|map| map.revision)).await?;
        let primaries: Vec<Node> = self.0.read(|map| {
            let mut addresses: Vec<&Address> = map.owners.iter().flatten().collect();
            addresses.sort();
            addresses.dedup();
            addresses
                .into_iter()
                .filter_map(|address| map.nodes.get(address).cloned())
                .collect()
        });
        for node in primaries {
            node.prepare().await?;
        }
        Ok(())
    }

    async fn owner(&self, slot: u16) -> Result<Node, StoreError> {
        let owner = || {
            self.0.read(|map| {
                let address = map.owners.get(usize::from(slot))?.as_ref()?;
                map.nodes.get(address).cloned()
            })
        };
        if let Some(node) = owner() {
            return Ok(node);
        }
        self.learn(self.0.read(|map| map.revision)).await?;
        owner().ok_or_else(|| StoreError::new(StoreErrorKind::Refused, format!("no node owns slot {slot}")))
    }

    /// The node to which an answer points.
    fn redirected(&self, error: &RedisError) -> Result<Node, StoreError> {
        let malformed = || {
            StoreError::new(
                StoreErrorKind::Protocol,
                format!("a malformed redirection: {error}"),
            )
        };
        let (address, _) = error.redirect_node().ok_or_else(malformed)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
        let port = port.parse().map_err(|_| malformed())?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        self.0.node(&Arc::new((host.to_owned(), port)))
    }

    /// Learns the map in the background, unless somebody is at it.
    fn learn_soon(&self) {
        let revision = self.0.read(|map| map.revision);
        if self.0.learning.try_lock().is_ok() {
            let this = self.clone();
            tokio::spawn(async move {
                if let Err(error) = this.learn(revision).await {
                    tracing::warn!(%error, "could not learn which node owns which slot");
                }
            });
        }
    }

    /// Asks node after node for the map, unless it was learned since `revision`.
    async fn learn(&self, revision: u64) -> Result<(), StoreError> {
        let _learning = self.0.learning.lock().await;
        if self.0.read(|map| map.revision) != revision {
            return Ok(());
        }
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut last = StoreError::new(StoreErrorKind::Connection, "no node of the cluster is known");
        for address in self.0.known() {
            let answer = async {
                let mut connection = self.0.node(&address)?.connection().await?;
                let answer = connection.command(&command).await?;
                owners(&answer, &address.0)
            };
            match tokio::time::timeout(Duration::from_secs(1), answer).await {
                Ok(Ok(owners)) => {
                    self.0.adopt(owners);
                    return Ok(());
                }
                Ok(Err(error)) => last = error,
                Err(_) => {
                    last = StoreError::new(
                        StoreErrorKind::Timeout,
                        "no answer to CLUSTER SLOTS within a second",
                    )
                }
            }
        }
        Err(last)
    }
}

impl Inner {
    fn read<T>(&self, look: impl FnOnce(&Map) -> T) -> T {
        look(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The seeds, then the nodes that were learned.
    fn known(&self) -> Vec<Address> {
        let seeds = self.seeds.iter().filter_map(|seed| match seed.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Arc::new((host.clone(), *port)))
            }
            _ => None,
        });
        self.read(|map| seeds.chain(map.nodes.keys().cloned()).collect())
    }

    /// The node at an address, reached with the settings of the first seed.
    fn node(&self, address: &Address) -> Result<Node, StoreError> {
        if let Some(node) = self.read(|map| map.nodes.get(address).cloned()) {
            return Ok(node);
        }
        let no_seed = || StoreError::new(StoreErrorKind::Connection, "no seed node");
        let seed = self.seeds.first().ok_or_else(no_seed)?;
        let (host, port) = (address.0.clone(), address.1);
        let addr = match seed.addr() {
            ConnectionAddr::TcpTls {
                insecure, tls_params, ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let node = Node::new(Dialer::at(seed.clone().set_addr(addr))?, self.connections);
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        Ok(map.nodes.entry(Arc::clone(address)).or_insert(node).clone())
    }

    /// Replaces the map. Nodes that own nothing any more are let go, and their connections with them.
    fn adopt(&self, owners: Vec<Option<Address>>) {
        let mut addresses: Vec<Address> = owners.iter().flatten().cloned().collect();
        addresses.sort();
        addresses.dedup();
        for address in &addresses {
            // Fails only where no seed is, which the constructor refuses.
            let _ = self.node(address);
        }
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.nodes
            .retain(|address, _| addresses.binary_search(address).is_ok());
        map.owners = owners;
        map.revision += 1;
    }
}

/// Reads the answer to CLUSTER SLOTS: ranges of slots, each with its primary and then its replicas.
fn owners(answer: &Value, asked: &str) -> Result<Vec<Option<Address>>, StoreError> {
    let mut owners = vec![None; usize::from(SLOTS)];
    let ranges = answer.as_sequence().unwrap_or_default();
    for range in ranges {
        let Some([Value::Int(first), Value::Int(last), primary, ..]) = range.as_sequence() else {
            return Err(StoreError::new(
                StoreErrorKind::Protocol,
                "a malformed answer to CLUSTER SLOTS",
            ));
        };
        let Some([host, Value::Int(port), ..]) = primary.as_sequence() else {
            continue;
        };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
            // The node does not know its own address: it is the one at which it was asked.
            _ => asked.to_owned(),
        };
        let Ok(port) = u16::try_from(*port) else { continue };
        let address = Arc::new((host, port));
        for slot in *first..=*last {
            if let Some(owner) = usize::try_from(slot).ok().and_then(|slot| owners.get_mut(slot)) {
                *owner = Some(Arc::clone(&address));
            }
        }
    }
    if owners.iter().all(Option::is_none) {
        return Err(StoreError::new(
            StoreErrorKind::Refused,
            "no slot of the cluster has an owner",
        ));
    }
    Ok(owners)
}

/// The slot of a key: CRC-16/XMODEM of what stands in its first braces, as the Redis Cluster specification says. Every
/// name that we form has a tag in braces.
fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| tag);
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // CRC-16/XMODEM's check value.
        assert_eq!(slot("123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot("ns|tb|p|{123456789}|x"), slot("123456789"));
        assert_eq!(slot("foo"), 12_182);
    }
}
