//! Publishes saved documents to the registry in force.
//!
//! Each node runs a publisher; there is no leader. A publisher reads SQL and the registry,
//! [decides](reconcile::next_step) the next step, and publishes by compare-and-set, so concurrent
//! publishers repeat each other's work at worst. A crash between publication and confirmation is
//! repaired by the next pass, which recognizes the texts. Without Redis, the registry of the node's
//! own gateway follows SQL. Tests: `tests/publish.rs`.

pub(crate) mod beside_errors;
mod database_mark;
mod draft;
mod error;
mod guard;
pub(crate) mod key_secret;
mod known;
mod outside;
pub mod reconcile;
mod registry_text;
mod replacement;
pub(crate) mod tokens;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use limiter_core::registry::{PolicyRegistry, RedisRegistry, RegistryError};
use tokio::sync::{Notify, watch};

use crate::policy_text::{PolicyText, TextError};
use crate::publish::database_mark::follows_lost_change;
use crate::publish::draft::{Draft, title};
use crate::publish::error::PublishError;
use crate::publish::reconcile::{KnownDocument, ObservedRegistry, Step, next_step};
pub(crate) use crate::publish::registry_text::timestamp;
use crate::publish::registry_text::{is_damaged, put};
use crate::store::{DocumentKind, Store, StoreError, StoredDocument, now_micros};

/// The interval between passes without a notification.
const INTERVAL: Duration = Duration::from_millis(500);
/// After this many passes, a pass decides on the next step even if no version has changed.
const FULL_PASS: u64 = 20;
/// The confirmed revision of the registry in Redis while there is none: a Redis that is added later
/// has lost no data.
const NO_REGISTRY: i64 = 0;
/// The largest number of steps of a pass.
const MAX_STEPS: usize = 8;

/// The registry in force.
#[derive(Clone, Debug)]
pub enum PublicationTarget {
    /// The registry of a namespace in Redis.
    Redis(RedisRegistry),
    /// The registry of this node's gateway.
    Gateway(PolicyRegistry),
}

/// The last result of a publisher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublisherStatus {
    /// The number of completed passes.
    pub passes: u64,
    /// The reason why the last pass failed.
    pub error: Option<String>,
}

/// Publishes one namespace. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Publisher(Arc<PublisherInner>);

#[derive(Debug)]
struct PublisherInner {
    namespace: String,
    store: Store,
    target: PublicationTarget,
    wake: Notify,
    status: watch::Sender<PublisherStatus>,
    /// The state in which SQL and the registry agreed last.
    agreed: Mutex<Option<Versions>>,
    /// The newest revision whose suspensions agreed with SQL beside policies that cannot be read.
    overlays_agreed: AtomicU64,
}

/// Versions that differ after each change. Identities of changes are not committed in their order,
/// but then the number of pending documents differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Versions {
    registry: u64,
    newest_change: i64,
    pending: i64,
    confirmed: i64,
}

impl Publisher {
    /// Creates a publisher of the documents of a namespace.
    #[must_use]
    pub fn new(namespace: impl Into<String>, store: Store, target: PublicationTarget) -> Self {
        Self(Arc::new(PublisherInner {
            namespace: namespace.into(),
            store,
            target,
            wake: Notify::new(),
            status: watch::Sender::new(PublisherStatus::default()),
            agreed: Mutex::new(None),
            overlays_agreed: AtomicU64::new(0),
        }))
    }

    /// Returns the namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// Returns the registry in Redis; `None` without Redis.
    #[must_use]
    pub fn redis(&self) -> Option<&RedisRegistry> {
        match &self.0.target {
            PublicationTarget::Redis(redis) => Some(redis),
            PublicationTarget::Gateway(_) => None,
        }
    }

    /// Returns the registry in force.
    ///
    /// # Errors
    ///
    /// The reason why Redis did not return it.
    pub async fn registry_in_force(&self) -> Result<PolicyRegistry, RegistryError> {
        match &self.0.target {
            PublicationTarget::Gateway(registry) => Ok(registry.clone()),
            PublicationTarget::Redis(redis) => {
                let (_, text) = redis.read().await?.unwrap_or_default();
                Ok(PolicyRegistry::from_toml(&text)?)
            }
        }
    }

    /// Starts a pass now, after a save.
    pub fn wake(&self) {
        self.0.wake.notify_one();
    }

    /// Returns the result of the last pass.
    #[must_use]
    pub fn status(&self) -> PublisherStatus {
        self.0.status.borrow().clone()
    }

    /// Publishes until the task is dropped.
    pub async fn run(self) {
        for pass in 1_u64.. {
            if pass % FULL_PASS == 0 {
                self.set_agreed(None);
            }
            let result = self.pass().await;
            let error = result.err().map(|error| error.to_string());
            let before = self.status().error;
            if let Some(error) = error.as_deref().filter(|error| before.as_deref() != Some(error)) {
                tracing::warn!(namespace = self.namespace(), %error, "cannot publish; trying again");
            }
            self.0.status.send_modify(|status| {
                status.passes = pass;
                status.error = error;
            });
            // A timeout is the usual end of the wait.
            let _ = tokio::time::timeout(INTERVAL, self.0.wake.notified()).await;
        }
    }

    /// Runs passes until SQL and the registry agree.
    ///
    /// # Errors
    ///
    /// The reason as one message.
    pub async fn publish(&self) -> Result<(), String> {
        self.pass().await.map_err(|error| error.to_string())
    }

    async fn versions(&self, registry: u64) -> Result<Versions, StoreError> {
        let publication = self.0.store.publication(&self.0.namespace).await?;
        Ok(Versions {
            registry,
            newest_change: self.0.store.newest_change().await?,
            pending: publication.pending,
            confirmed: publication.registry_revision,
        })
    }

    fn has_agreed(&self, versions: Versions) -> bool {
        *self.0.agreed.lock().unwrap_or_else(PoisonError::into_inner) == Some(versions)
    }

    fn set_agreed(&self, versions: Option<Versions>) {
        *self.0.agreed.lock().unwrap_or_else(PoisonError::into_inner) = versions;
    }

    async fn pass(&self) -> Result<(), PublishError> {
        match &self.0.target {
            PublicationTarget::Gateway(registry) => self.apply(registry).await,
            PublicationTarget::Redis(redis) => {
                for _ in 0..MAX_STEPS {
                    if !self.step(redis).await? {
                        return Ok(());
                    }
                }
                Err(PublishError::Busy)
            }
        }
    }

    /// Copies the documents to the registry of the gateway.
    async fn apply(&self, registry: &PolicyRegistry) -> Result<(), PublishError> {
        let inner = &*self.0;
        let versions = self.versions(0).await?;
        if self.has_agreed(versions) {
            return Ok(());
        }
        let mut documents = inner.store.documents(&inner.namespace).await?;
        // A call between two changes finds each rule with its policy: new policies come before the
        // rules, and deleted ones after them.
        documents.sort_by_key(|of| match of.kind {
            DocumentKind::Rules => 1,
            DocumentKind::Policy if of.is_deleted => 2,
            DocumentKind::Policy | DocumentKind::Overlays => 0,
        });
        let (mut confirmed, mut unreadable) = (Vec::new(), Vec::new());
        for document in &documents {
            let of_registry = PolicyText::of(registry, &document.name);
            let is_same = of_registry.is_some_and(|of| of.to_toml() == document.body);
            if !is_same && let Err(error) = put(document, registry) {
                unreadable.push(format!("{} is not in force: {error}", title(document)));
                continue;
            }
            if document.published < document.revision {
                confirmed.push((document.kind, document.name.clone(), document.revision));
            }
        }
        remove_others(registry, &documents)?;
        if !confirmed.is_empty() && !inner.store.is_read_only() {
            inner
                .store
                .confirm(&inner.namespace, NO_REGISTRY, &confirmed, now_micros())
                .await?;
        }
        if !unreadable.is_empty() {
            return Err(PublishError::Unreadable(unreadable.join("; ")));
        }
        // A save that was committed after the read is pending.
        let agreed = self.versions(0).await?;
        let is_current = agreed.newest_change == versions.newest_change && agreed.pending == 0;
        self.set_agreed(Some(agreed).filter(|_| is_current));
        Ok(())
    }

    /// Takes one step towards agreement. Returns whether there may be another one.
    async fn step(&self, redis: &RedisRegistry) -> Result<bool, PublishError> {
        let inner = &*self.0;
        // The registry is read before SQL: a publication between the two is then newer than the
        // text that was read, and compare-and-set detects it.
        let (read, unnumbered) = match redis.read().await {
            Ok(read) => (read, None),
            Err(error @ RegistryError::Parse { .. }) => (None, Some(error)),
            Err(error) => return Err(error.into()),
        };
        let versions = self
            .versions(read.as_ref().map_or(0, |(revision, _)| *revision))
            .await?;
        if unnumbered.is_none() && self.has_agreed(versions) {
            return Ok(false);
        }
        // One time for both: a policy that ends meanwhile would have ended in one of them only.
        let now = now_micros();
        let known = self.known_state(now).await?;
        let (replaced, text) = read.unwrap_or_default();
        let follows_lost_change = follows_lost_change(&inner.store, redis, &text).await?;
        let is_damaged = unnumbered.is_some() || is_damaged(&text);
        let found = match unnumbered.map_or_else(|| PolicyRegistry::from_toml(&text), Err) {
            Ok(found) => found,
            Err(error) if known.documents.is_empty() || follows_lost_change => return Err(error.into()),
            Err(_) if is_damaged && inner.store.is_read_only() => return Ok(false),
            Err(error) if !is_damaged => {
                let overlays = self.step_overlays(redis, &known, (replaced, &text), now);
                return match !inner.store.is_read_only() && overlays.await? {
                    true => Ok(true),
                    false => Err(error.into()),
                };
            }
            Err(error) => {
                tracing::warn!(namespace = self.namespace(), %error, "replacing the text of the registry");
                return self
                    .publish_all(redis, &known, replaced, Some(replacement::DAMAGED))
                    .await;
            }
        };
        let observed = (replaced > 0).then(|| ObservedRegistry {
            revision: i64::try_from(replaced).unwrap_or(i64::MAX),
            contents: registry_text::contents(&found, now),
            follows_lost_change,
        });
        let step = next_step(&known, observed.as_ref());
        if inner.store.is_read_only() && step != Step::Nothing {
            return Ok(false);
        }
        match step {
            Step::Nothing => {
                self.set_agreed(Some(versions));
                Ok(false)
            }
            Step::PublishAll { went_back } => {
                // Another node may have published and confirmed between the two reads. A registry
                // that is still the older one after the read of the confirmation has lost data,
                // since confirmations follow publications.
                if went_back && redis.read().await?.map_or(0, |(revision, _)| revision) != replaced {
                    return Ok(true);
                }
                self.publish_all(
                    redis,
                    &known,
                    replaced,
                    went_back.then_some(replacement::WENT_BACK),
                )
                .await
            }
            Step::PublishPending => {
                let unreadable = guard::unreadable(redis, &known).await?;
                let is_sent = |of: &&KnownDocument| of.is_pending() && !unreadable.contains(&of.document);
                let mut draft = Draft::new(found);
                draft.add(known.documents.values().filter(is_sent));
                draft.keep_back(&unreadable.to_string());
                if draft.confirmed().is_empty() {
                    return draft.complete().map(|()| false);
                }
                self.send(redis, &draft, (&known, replaced)).await
            }
            Step::Confirm(documents) => {
                let documents: Vec<_> = documents
                    .into_iter()
                    .map(|((kind, name), revision)| (kind, name, revision))
                    .collect();
                let revision = observed.map_or(0, |of| of.revision);
                inner
                    .store
                    .confirm(&inner.namespace, revision, &documents, now_micros())
                    .await?;
                Ok(true)
            }
            Step::Import { documents, restored } => {
                let revision = observed.map_or(0, |of| of.revision);
                let documents = documents.into_iter().collect();
                self.import(&known, &found, (revision, now), documents, restored)
                    .await?;
                Ok(true)
            }
        }
    }
}

/// Removes the policies, rules and overlays without a document from the registry of a gateway. A
/// cache of an earlier run can contain them.
fn remove_others(registry: &PolicyRegistry, documents: &[StoredDocument]) -> Result<(), TextError> {
    let unsuitable = |error: limiter_core::ConfigError| TextError::Unsuitable(error.to_string());
    let has = |kind| documents.iter().any(|of| of.kind == kind);
    if !has(DocumentKind::Rules) {
        registry.set_rules([]).map_err(unsuitable)?;
    }
    if !has(DocumentKind::Overlays) {
        registry.set_overlays([], []).map_err(unsuitable)?;
    }
    let is_policy = |of: &StoredDocument, name: &str| of.kind == DocumentKind::Policy && of.name == name;
    for name in registry.names() {
        if !documents.iter().any(|of| is_policy(of, &name)) {
            registry.remove(&name);
        }
    }
    Ok(())
}
