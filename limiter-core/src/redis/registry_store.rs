//! The book of a namespace: what the third script is asked, and what it answers; the layout is told
//! in `lua/registry.lua`.

use std::time::Duration;

use bb8_redis::redis;
use bb8_redis::redis::Value;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::Route;
use crate::redis::client::connection::Connection;
use crate::redis::script::{Call, REGISTRY, wire};
use crate::redis::topology::slots::slot;
use crate::support::clock::Clock;
use crate::support::deadline::within;

const READ: u8 = 0;
const PUBLISH: u8 = 1;

/// Where the book of a namespace is. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RegistryStore {
    route: Route,
    clock: Clock,
    key: String,
}

/// What stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Nothing,
    /// Something without a revision.
    Unnumbered,
    /// A revision that is higher than what is exact.
    TooHigh,
    /// The revision, with the text where it is a later one than is known.
    Revision(u64, Option<String>),
}

/// What became of a text that was to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishOutcome {
    /// It has this revision.
    As(u64),
    /// Another revision was found than the one to be replaced.
    Conflict(u64),
    /// There is no revision after what is known.
    NoneLater,
}

impl RegistryStore {
    /// How long a look may take that is made again and again, or that a call waits for which wants
    /// a decision.
    pub(crate) const BRIEFLY: Duration = Duration::from_millis(500);
    /// How long what somebody asks of the book may take: to learn a cluster, on a busy machine,
    /// too.
    pub(crate) const PATIENTLY: Duration = Duration::from_secs(5);

    /// How long it may take to dial and to subscribe.
    const PATIENCE_TO_LISTEN: Duration = Duration::from_secs(5);

    pub(crate) fn new(route: Route, clock: Clock, key: String) -> Self {
        Self { route, clock, key }
    }

    /// The name of the key, which is that of the channel too.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// What is there; its text only if it is later than what is known.
    pub(crate) async fn read(&self, known: u64, patience: Duration) -> Result<Stored, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(READ);
        plan.extend_from_slice(&known.to_le_bytes());
        let (found, text) = self.execute(plan, patience).await?;
        Ok(match u64::try_from(found) {
            Err(_) if found == -2 => Stored::TooHigh,
            Err(_) => Stored::Unnumbered,
            Ok(0) => Stored::Nothing,
            Ok(revision) => Stored::Revision(revision, (!text.is_empty()).then_some(text)),
        })
    }

    /// Puts a text in the place of a revision, 0 for none; its own is later than `least`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether it was published.
    pub(crate) async fn publish(
        &self,
        text: &str,
        replaced: u64,
        least: u64,
    ) -> Result<PublishOutcome, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(PUBLISH);
        for revision in [replaced, least] {
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

    /// Has a server tell of what is published from now on: any one, since a cluster passes messages
    /// on to all of its nodes.
    ///
    /// # Errors
    ///
    /// Also where the user may not subscribe, and where the connection is a pool's and cannot.
    pub(crate) async fn listen(&self) -> Result<RegistrySubscription, StoreError> {
        let listening = async {
            let node = match &self.route {
                Route::Standalone(node) => node.clone(),
                Route::Cluster(cluster) => cluster.node_of(slot(&self.key)).await?,
            };
            let mut connection = node.dial().await?;
            connection.subscribe(&self.key).await?;
            Ok(RegistrySubscription(connection))
        };
        within(Self::PATIENCE_TO_LISTEN, listening).await
    }

    async fn execute(&self, plan: Vec<u8>, patience: Duration) -> Result<(i64, String), StoreError> {
        let call = Call::new(&REGISTRY, [&self.key], plan, patience);
        let reply = within(patience, self.route.run(&call)).await?;
        redis::from_redis_value::<(String, Value)>(reply)
            .ok()
            .and_then(|(found, text)| Some((found.parse().ok()?, text_of(text)?)))
            .ok_or_else(malformed)
    }
}

/// Hears what is published.
#[derive(Debug)]
pub(crate) struct RegistrySubscription(Connection);

impl RegistrySubscription {
    /// Waits until something was published since the last time: whether more will be heard.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn hears(&self) -> bool {
        self.0.next_message().await
    }
}

/// What is no text is shown as far as it is: the book's reader tells what is wrong with it.
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

    fn shelf(topology: Topology) -> RegistryStore {
        let node = NodeSettings {
            connections: 1,
            max_in_flight: 16,
        };
        let deployment = Deployment {
            topology,
            certificates: Certificates::default(),
            node,
        };
        let namespace = Namespace::new("", "ear");
        RedisStore::new(deployment, namespace, Clock::System)
            .unwrap()
            .shelf()
    }

    async fn hears(ear: &RegistrySubscription) -> Option<bool> {
        tokio::time::timeout(Duration::from_secs(5), ear.hears())
            .await
            .ok()
    }

    #[tokio::test]
    async fn what_is_published_is_heard_until_the_server_hangs_up() {
        let server = RedisServer::start();
        let shelf = shelf(Topology::Standalone(server.url().into()));
        let ear = shelf.listen().await.unwrap();
        for replaced in 0..3 {
            let PublishOutcome::Conflict(found) = shelf.publish("", u64::MAX, 0).await.unwrap() else {
                unreachable!("nothing has the last revision")
            };
            assert_eq!(found > 0, replaced > 0);
            shelf.publish("", found, 0).await.unwrap();
            assert_eq!(hears(&ear).await, Some(true));
        }
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert_eq!(hears(&ear).await, Some(false));
        assert_eq!(hears(&ear).await, Some(false));
    }

    #[tokio::test]
    async fn any_node_of_a_cluster_tells() {
        let cluster = RedisCluster::shared();
        let shelf = shelf(Topology::Cluster(SecretUrl::list(cluster.urls())));
        let ear = shelf.listen().await.unwrap();
        for node in cluster.nodes() {
            node.command(&["PUBLISH", shelf.key(), "1"]);
            assert_eq!(hears(&ear).await, Some(true));
        }
    }

    #[tokio::test]
    async fn who_may_not_subscribe_is_told() {
        let server = RedisServer::start();
        let user = ["ACL", "SETUSER", "alone", "on", ">secret", "~*"];
        server.command(&[&user, acl::SCRIPT].concat());
        let url = server.url_as("alone:secret");
        let shelf = shelf(Topology::Standalone(url.into()));
        let refused = shelf.listen().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
        assert!(matches!(shelf.publish("", 0, 0).await, Ok(PublishOutcome::As(_))));
    }
}
