//! Storage of the policy registry of a namespace. The layout is described in `lua/registry.lua`.
//!
//! A script publishes. A read uses GETRANGE, because Redis permits a script on a key only to users
//! that may write the key: a program that only follows the registry needs no such permission. A
//! long text is read in parts, so that it delays no other reply on the connection, and each part
//! has a timeout of its own.
//!
//! Invariants: a text replaces only the revision that its publisher states, and the parts of a text
//! belong to one revision. Tests: below,
//! `tests/registry_redis.rs` (`concurrent_edits_all_apply`), `tests/registry_redis/permissions.rs`,
//! `tests/frozen/redis.rs` (`registry_layout_is_frozen`).

mod subscribers;

use std::ops::Range;
use std::time::Duration;

use bb8_redis::redis;
use bb8_redis::redis::Value;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::escape_part;
use crate::redis::Route;
use crate::redis::client::connection::Connection;
use crate::redis::error_mapping::is_temporary;
pub(crate) use crate::redis::registry_store::subscribers::{SubscriberRecord, SubscriberStore};
use crate::redis::script::{Call, REGISTRY, wire};
use crate::redis::topology::slots::slot;
use crate::support::clock::Clock;
use crate::support::real_time::with_deadline;

/// The maximum revision. Lua's numbers are exact up to it.
const MAX_REVISION: u64 = 9_007_199_254_740_991;
const MAX_DIGITS: usize = 16;
/// The length of the longest first line, `revision = N` with its line end.
const FIRST_LINE_BYTES: usize = 29;
/// The length of one part of a text.
const PART_BYTES: usize = 64 << 10;
/// Maximum number of attempts to read a text that is replaced between two of its parts.
const MAX_READS: usize = 8;

/// The registry of a namespace. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RegistryStore {
    route: Route,
    clock: Clock,
    key: String,
}

/// The stored registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredRegistry {
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
    /// Timeout of each part of periodic reads, and of reads that a decision waits for.
    pub(crate) const BRIEFLY: Duration = Duration::from_millis(500);
    /// Timeout of explicit operations. Includes reading a cluster's slots on a busy machine.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

    /// Maximum number of users whose permissions are queried, one by one.
    const MAX_PROBED_USERS: usize = 32;

    /// Timeout of dialling and subscribing.
    const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);

    pub(super) fn new(route: Route, clock: Clock, key: String) -> Self {
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

    /// Reads the registry. Returns the text only if it is later than `known`. The timeout applies
    /// to each part of the text.
    pub(crate) async fn read(&self, known: u64, timeout: Duration) -> Result<StoredRegistry, StoreError> {
        for _ in 0..MAX_READS {
            let line = self.part(0..FIRST_LINE_BYTES, timeout).await?;
            match first_line(&text_of(line)) {
                StoredRegistry::Revision(revision, _) if revision > known => {}
                found => return Ok(found),
            }
            if let Some(text) = self.read_parts(timeout).await? {
                let text = text_of(text);
                // Another client can have published after the first line was read.
                return Ok(match first_line(&text) {
                    StoredRegistry::Revision(revision, _) => StoredRegistry::Revision(revision, Some(text)),
                    other => other,
                });
            }
        }
        let detail = "the registry was replaced each time while it was read";
        Err(StoreError::new(StoreErrorKind::Refused, detail))
    }

    /// Reads the whole text; `None` if it was replaced between two parts.
    async fn read_parts(&self, timeout: Duration) -> Result<Option<Vec<u8>>, StoreError> {
        let mut text = Vec::new();
        loop {
            let from = text.len();
            text.extend(self.part(from..from + PART_BYTES, timeout).await?);
            if text.len() < from + PART_BYTES {
                break;
            }
        }
        if text.len() < PART_BYTES {
            return Ok(Some(text));
        }
        let line = self.part(0..FIRST_LINE_BYTES, timeout).await?;
        let is_unchanged = text.get(..FIRST_LINE_BYTES) == Some(&*line);
        Ok(is_unchanged.then_some(text))
    }

    async fn part(&self, bytes: Range<usize>, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let (first, last) = (bytes.start.to_string(), (bytes.end - 1).to_string());
        let part = self.run(&["GETRANGE", &self.key, &first, &last], timeout).await?;
        match part {
            Value::BulkString(part) => Ok(part),
            _ => Err(malformed()),
        }
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
        for revision in [replaced, min_revision] {
            plan.extend_from_slice(&revision.to_le_bytes());
        }
        plan.extend_from_slice(text.as_bytes());
        let call = Call::new(&REGISTRY, [&self.key], plan, Self::TIMEOUT);
        let reply = with_deadline(Self::TIMEOUT, self.route.run(&call)).await?;
        let (found, new) = redis::from_redis_value::<(String, String)>(reply).map_err(|_| malformed())?;
        let found = found.parse::<i64>().map_err(|_| malformed())?;
        match new.parse::<i64>().map(u64::try_from) {
            Ok(Ok(0)) => Ok(PublishOutcome::Conflict(u64::try_from(found).unwrap_or(0))),
            Ok(Ok(new)) => Ok(PublishOutcome::As(new)),
            Ok(Err(_)) => Ok(PublishOutcome::NoneLater),
            Err(_) => Err(malformed()),
        }
    }

    /// Returns the user of the connection, and the users that may write the registry. `None` where
    /// the server does not report it: the user needs `+acl|whoami`, `+acl|users` and `+acl|dryrun`,
    /// and the server is Redis 7 or later.
    pub(crate) async fn access(&self) -> Result<(Option<String>, Option<Vec<String>>), StoreError> {
        let words = |reply| redis::from_redis_value::<Vec<String>>(reply).ok();
        let user = match self.run(&["ACL", "WHOAMI"], Self::BRIEFLY).await {
            Ok(user) => redis::from_redis_value::<String>(user).ok(),
            Err(error) if error.kind() == StoreErrorKind::Refused => None,
            Err(error) => return Err(error),
        };
        let users = self
            .run(&["ACL", "USERS"], Self::BRIEFLY)
            .await
            .ok()
            .and_then(words);
        let Some(users) = users.filter(|users| users.len() <= Self::MAX_PROBED_USERS) else {
            return Ok((user, None));
        };
        let mut writers = Vec::new();
        for name in users {
            match self.may_write(&name).await {
                Some(true) => writers.push(name),
                Some(false) => {}
                None => return Ok((user, None)),
            }
        }
        Ok((user, Some(writers)))
    }

    /// Returns whether a user may replace or delete the registry; `None` if the server does not
    /// report it.
    async fn may_write(&self, user: &str) -> Option<bool> {
        for command in [&["SET", &self.key, ""] as &[&str], &["DEL", &self.key]] {
            let words = [&["ACL", "DRYRUN", user], command].concat();
            let reply = self.run(&words, Self::BRIEFLY).await.ok()?;
            // Any other reply is the reason of the refusal.
            if redis::from_redis_value::<String>(reply).ok()? == "OK" {
                return Some(true);
            }
        }
        Some(false)
    }

    async fn run(&self, words: &[&str], timeout: Duration) -> Result<Value, StoreError> {
        let call = Call::of_command(words, &self.key, timeout);
        with_deadline(timeout, self.route.run(&call)).await
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
        with_deadline(Self::SUBSCRIBE_TIMEOUT, subscription).await
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
    pub(crate) async fn next_publication(&self) -> bool {
        self.0.next_message().await
    }
}

/// Reads the revision of a text, or of its beginning. `lua/registry.lua` reads it in the same way.
fn first_line(text: &str) -> StoredRegistry {
    if text.is_empty() {
        return StoredRegistry::Nothing;
    }
    let line = text.split_once('\n').map_or(text, |(line, _)| line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let digits = line.strip_prefix("revision = ").unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return StoredRegistry::Unnumbered;
    }
    match digits.parse::<u64>() {
        Ok(0) => StoredRegistry::Unnumbered,
        Ok(revision) if revision <= MAX_REVISION && digits.len() <= MAX_DIGITS => {
            StoredRegistry::Revision(revision, None)
        }
        _ => StoredRegistry::TooHigh,
    }
}

/// Returns whether Redis answers and the registry cannot be read or written: the user lacks a
/// permission, or the key contains a value of another program. Other errors are outages.
pub(crate) fn is_rejection(error: &StoreError) -> bool {
    match error.kind() {
        StoreErrorKind::Refused => !is_temporary(error),
        StoreErrorKind::Protocol | StoreErrorKind::WrongType | StoreErrorKind::UnknownLayout => true,
        _ => false,
    }
}

/// Decodes a text lossily; its reader reports invalid characters.
fn text_of(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(bytes) => String::from_utf8_lossy(bytes.as_bytes()).into_owned(),
    }
}

fn malformed() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "malformed reply of the registry script")
}

#[cfg(test)]
mod tests {
    use limiter_testing::{RedisCluster, RedisServer, acl};

    use crate::key::Namespace;
    use crate::redis::RedisStore;
    use crate::redis::registry_store::*;
    use crate::redis::settings::{Certificates, Deployment, NodeSettings, SecretUrl, Topology};

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

    async fn receives(subscription: &RegistrySubscription) -> Option<bool> {
        tokio::time::timeout(Duration::from_secs(5), subscription.next_publication())
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
            assert_eq!(receives(&subscription).await, Some(true));
        }
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert_eq!(receives(&subscription).await, Some(false));
        assert_eq!(receives(&subscription).await, Some(false));
    }

    #[tokio::test]
    async fn any_cluster_node_delivers_publications() {
        let cluster = RedisCluster::shared();
        let store = store(Topology::Cluster(SecretUrl::list(cluster.urls())));
        let subscription = store.listen().await.unwrap();
        for node in cluster.nodes() {
            node.command(&["PUBLISH", store.key(), "1"]);
            assert_eq!(receives(&subscription).await, Some(true));
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
