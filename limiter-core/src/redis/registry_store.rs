//! Storage of the policy registry of a namespace: encoding of its script. The layout is described
//! in `lua/registry.lua`.

use std::time::Duration;

use bb8_redis::redis;
use bb8_redis::redis::Value;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::escape_part;
use crate::redis::Route;
use crate::redis::client::connection::Connection;
use crate::redis::script::{Call, REGISTRY, wire};
use crate::redis::topology::slots::slot;
use crate::support::clock::Clock;
use crate::support::deadline::within;

const READ: u8 = 0;
const PUBLISH: u8 = 1;

/// The registry of a namespace. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RegistryStore {
    route: Route,
    clock: Clock,
    key: String,
}

/// The stored registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Nothing,
    /// A text without a revision.
    Unnumbered,
    /// A revision beyond the range of exact integers.
    TooHigh,
    /// The revision, with the text if the revision is later than the known one.
    Revision(u64, Option<String>),
}

/// The result of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishOutcome {
    /// Published with this revision.
    As(u64),
    /// The stored revision is not the one to be replaced.
    Conflict(u64),
    /// No later revision exists.
    NoneLater,
}

impl RegistryStore {
    /// Timeout of periodic reads, and of reads that a decision waits for.
    pub(crate) const BRIEFLY: Duration = Duration::from_millis(500);
    /// Timeout of explicit operations. Includes reading a cluster's slots on a busy machine.
    pub(crate) const PATIENTLY: Duration = Duration::from_secs(5);

    /// Timeout of dialling and subscribing.
    const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);

    pub(crate) fn new(route: Route, clock: Clock, key: String) -> Self {
        Self { route, clock, key }
    }

    /// Returns the storage of another text of the namespace.
    pub(crate) fn document(&self, name: &str) -> Self {
        let key = format!("{}|{}", self.key, escape_part(name));
        Self { key, ..self.clone() }
    }

    /// Returns the key, which is also the name of the channel.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Reads the registry. Returns the text only if it is later than `known`.
    pub(crate) async fn read(&self, known: u64, timeout: Duration) -> Result<Stored, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(READ);
        plan.extend_from_slice(&known.to_le_bytes());
        let (found, text) = self.execute(plan, timeout).await?;
        Ok(match u64::try_from(found) {
            Err(_) if found == -2 => Stored::TooHigh,
            Err(_) => Stored::Unnumbered,
            Ok(0) => Stored::Nothing,
            Ok(revision) => Stored::Revision(revision, (!text.is_empty()).then_some(text)),
        })
    }

    /// Replaces the text of revision `replaced`, 0 for none, by a text with a revision above
    /// `min_revision`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the text was published.
    pub(crate) async fn publish(
        &self,
        text: &str,
        replaced: u64,
        min_revision: u64,
    ) -> Result<PublishOutcome, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(PUBLISH);
        for revision in [replaced, min_revision] {
            plan.extend_from_slice(&revision.to_le_bytes());
        }
        plan.extend_from_slice(text.as_bytes());
        let (found, new) = self.execute(plan, Self::PATIENTLY).await?;
        match new.parse::<i64>().map(u64::try_from) {
            Ok(Ok(0)) => Ok(PublishOutcome::Conflict(u64::try_from(found).unwrap_or(0))),
            Ok(Ok(new)) => Ok(PublishOutcome::As(new)),
            Ok(Err(_)) => Ok(PublishOutcome::NoneLater),
            Err(_) => Err(malformed()),
        }
    }

    /// Subscribes to publications on one server; a cluster forwards messages to all of its nodes.
    ///
    /// # Errors
    ///
    /// Fails if the user may not subscribe, or if the connection belongs to a pool and cannot
    /// subscribe.
    pub(crate) async fn listen(&self) -> Result<RegistrySubscription, StoreError> {
        let subscription = async {
            let node = match &self.route {
                Route::Standalone(node) => node.clone(),
                Route::Cluster(cluster) => cluster.node_of(slot(&self.key)).await?,
            };
            let mut connection = node.dial().await?;
            connection.subscribe(&self.key).await?;
            Ok(RegistrySubscription(connection))
        };
        within(Self::SUBSCRIBE_TIMEOUT, subscription).await
    }

    async fn execute(&self, plan: Vec<u8>, timeout: Duration) -> Result<(i64, String), StoreError> {
        let call = Call::new(&REGISTRY, [&self.key], plan, timeout);
        let reply = within(timeout, self.route.run(&call)).await?;
        redis::from_redis_value::<(String, Value)>(reply)
            .ok()
            .and_then(|(found, text)| Some((found.parse().ok()?, text_of(text)?)))
            .ok_or_else(malformed)
    }
}

/// A subscription to publications.
#[derive(Debug)]
pub(crate) struct RegistrySubscription(Connection);

impl RegistrySubscription {
    /// Waits for the next publication. Returns whether the subscription is still usable.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn hears(&self) -> bool {
        self.0.next_message().await
    }
}

/// Decodes a text lossily; its reader reports invalid characters.
fn text_of(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(bytes) => String::from_utf8_lossy(bytes.as_bytes()).into_owned(),
        }),
        _ => None,
    }
}

fn malformed() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "malformed reply of the registry script")
}

#[cfg(test)]
mod tests {
    use limiter_testing::{RedisCluster, RedisServer, acl};

    use crate::key::Namespace;
    use crate::redis::client::tls::Certificates;
    use crate::redis::registry_store::*;
    use crate::redis::secret_url::SecretUrl;
    use crate::redis::{Deployment, NodeSettings, RedisStore, Topology};

    fn store(topology: Topology) -> RegistryStore {
        let node = NodeSettings {
            connections: 1,
            max_in_flight: 16,
        };
        let deployment = Deployment {
            topology,
            certificates: Certificates::default(),
            node,
        };
        let namespace = Namespace::new("", "subscription");
        RedisStore::new(deployment, namespace, Clock::System)
            .unwrap()
            .registry_store()
    }

    async fn hears(subscription: &RegistrySubscription) -> Option<bool> {
        tokio::time::timeout(Duration::from_secs(5), subscription.hears())
            .await
            .ok()
    }

    #[tokio::test]
    async fn subscription_receives_publications_until_disconnect() {
        let server = RedisServer::start();
        let store = store(Topology::Standalone(server.url().into()));
        let subscription = store.listen().await.unwrap();
        for replaced in 0..3 {
            let PublishOutcome::Conflict(found) = store.publish("", u64::MAX, 0).await.unwrap() else {
                unreachable!("nothing has the last revision")
            };
            assert_eq!(found > 0, replaced > 0);
            store.publish("", found, 0).await.unwrap();
            assert_eq!(hears(&subscription).await, Some(true));
        }
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert_eq!(hears(&subscription).await, Some(false));
        assert_eq!(hears(&subscription).await, Some(false));
    }

    #[tokio::test]
    async fn any_cluster_node_delivers_publications() {
        let cluster = RedisCluster::shared();
        let store = store(Topology::Cluster(SecretUrl::list(cluster.urls())));
        let subscription = store.listen().await.unwrap();
        for node in cluster.nodes() {
            node.command(&["PUBLISH", store.key(), "1"]);
            assert_eq!(hears(&subscription).await, Some(true));
        }
    }

    #[tokio::test]
    async fn missing_subscribe_permission_is_an_error() {
        let server = RedisServer::start();
        let user = ["ACL", "SETUSER", "alone", "on", ">secret", "~*"];
        server.command(&[&user, acl::SCRIPT].concat());
        let url = server.url_as("alone:secret");
        let store = store(Topology::Standalone(url.into()));
        let refused = store.listen().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
        assert!(matches!(store.publish("", 0, 0).await, Ok(PublishOutcome::As(_))));
    }
}
