//! The registry of a namespace in Redis: subscription, publication and edits.
//!
//! Redis stores one text per namespace, with its revision in the first line. A publication replaces
//! the revision that its author read, by compare-and-set; an edit repeats after a conflict. A
//! subscription reads the text after each message, and by polling, because messages can be lost.
//!
//! Invariants: a text that followers reject as a whole is not sent; the revision never decreases; a
//! process never writes a text of which it has read a part only. Tests: `tests/registry_redis.rs`.

mod access;
mod adoption;
mod document;
mod source;
mod subscribers;
mod watcher;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::ConfigError;
use crate::redis::registry_store::{PublishOutcome, RegistryStore, StoredRegistry, SubscriberStore};
use crate::registry::PolicyRegistry;
pub use crate::registry::redis::access::RegistryAccess;
pub use crate::registry::redis::document::RedisDocument;
pub use crate::registry::redis::source::RedisSubscription;
pub use crate::registry::redis::subscribers::Subscriber;
use crate::registry::redis::subscribers::register_until_dropped;
use crate::registry::redis::watcher::{RedisWatcher, follow};
use crate::registry::text::{MAX_REVISION, RegistryError, check_published, parse_numbered, without_revision};
use crate::registry::watcher::{BYTES_A_NAME, WatcherTask, WeakRegistry, run_blocking_if_large};
use crate::support::jitter::with_jitter;
use crate::support::real_time::sleep;

/// Maximum number of attempts of an edit. An attempt is repeated if another client has published
/// meanwhile.
const MAX_TRIES: usize = 8;

/// The registry of a namespace in Redis: a text in the format of [`PolicyRegistry::from_toml`],
/// stored under the key `namespace|book` (feature `registry`). Cheap to clone. Returned by
/// [`Limiter::redis_registry`](crate::Limiter::redis_registry).
///
/// [`follow`](Self::follow) keeps the limiter's [registry](crate::Limiter::registry) equal to the
/// registry in Redis: a change reaches every replica within a second. While Redis is unavailable,
/// and after it has lost its data, the registry received last stays in effect.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use limiter_core::registry::{FileSource, KeyOverride, PolicyRegistry};
/// use limiter_core::{Inheritance, Limiter, Policy};
///
/// # let server = limiter_testing::RedisServer::start();
/// # let (url, path) = (server.url(), server.dir().join("limits.toml"));
/// # std::fs::write(&path, "policy.search = { algorithm = 'token_bucket', capacity = 5, rate = 1 }")?;
/// let registry = PolicyRegistry::new();
/// let limits = Limiter::redis(url).namespace("prod:checkout").registry(&registry).build()?;
/// FileSource::follow(&registry, path)?; // in effect until the first reply of Redis
/// let store = limits.redis_registry()?;
/// let redis = store.follow();
/// let _synced = redis.synced().await; // on an error, the policies of the file apply
/// assert_eq!(limits.named("search").peek("user:7").await?.remaining(), 5, "Redis has no policies yet");
///
/// // In another process:
/// let search = |capacity: u32| Policy::token_bucket("search").capacity(capacity).rate("10/s").build();
/// store.edit(|draft| {
///     draft.set(search(20)?);
///     draft.set_override(KeyOverride::new(search(100)?, "user:7"))
/// }).await?;
/// assert_eq!(limits.named("search").peek("user:8").await?.remaining(), 20);
/// assert_eq!(limits.named("search").peek("user:7").await?.remaining(), 100);
/// store.edit(|draft| draft.change(search(30)?, Inheritance::Reset)).await?;
/// assert_eq!(limits.named("search").peek("user:8").await?.remaining(), 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Revisions
///
/// The first line of the text contains its revision, `revision = 1763776000000`. A later text has a
/// higher revision. A text with a lower revision than one that this process has received, or
/// without one, is rejected: it comes from a server that lost its data, or from a backup. To
/// restore an older text on purpose, publish it: the new revision is the server's time in
/// milliseconds, or one more than the previous revision, so a published text is always accepted,
/// also after Redis has lost its data.
///
/// If you write a text with SET, choose a revision above all earlier ones, including rejected ones.
/// A rejected text of one revision is read again only every 30 s; if only single policies were
/// rejected, never. Choose a revision near the server's time in milliseconds: a revision above
/// 9007199254740991 is rejected, and after this maximum nothing can be published.
#[derive(Clone, Debug)]
pub struct RedisRegistry(Arc<RedisRegistryState>);

#[derive(Debug)]
struct RedisRegistryState {
    store: RegistryStore,
    subscribers: SubscriberStore,
    /// The limiter's registry.
    registry: PolicyRegistry,
    /// The limiter's app.
    app: Option<Arc<str>>,
}

impl RedisRegistry {
    pub(crate) fn new(
        store: RegistryStore,
        subscribers: SubscriberStore,
        registry: PolicyRegistry,
        app: Option<Arc<str>>,
    ) -> Self {
        Self(Arc::new(RedisRegistryState {
            store,
            subscribers,
            registry,
            app,
        }))
    }

    pub(super) fn subscriber_store(&self) -> &SubscriberStore {
        &self.0.subscribers
    }

    /// Keeps the limiter's registry equal to the registry in Redis, in a task. The task reads the
    /// text now, after each change message, and every half second, since messages can be lost.
    ///
    /// Until the first read has completed, a policy that only Redis defines is not configured, and
    /// calls by its name follow [`OnUnknownPolicy`](crate::registry::OnUnknownPolicy). Await
    /// [`RedisSubscription::synced`] before the first call.
    ///
    /// A text that is not TOML, or that needs a newer version ([`RegistryError::NewerFormat`]),
    /// changes nothing. In any other text, a policy that cannot be read keeps its previous version,
    /// with its key overrides, and the other policies apply. Both cases are logged, and
    /// [`RedisSubscription::last_error`] returns the error until it is corrected. Unknown fields
    /// are ignored with a warning: see [versions of the text](PolicyRegistry#versions-of-the-text).
    ///
    /// The task runs until the registry is dropped; dropping the returned handle does not stop it.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime with time and I/O.
    pub fn follow(&self) -> RedisSubscription {
        self.0.registry.await_redis();
        let shared = Arc::new(RedisWatcher::new(&self.0.store));
        let (set_synced, synced) = watch::channel(false);
        let registry = WeakRegistry::downgrade(&self.0.registry);
        let registration =
            register_until_dropped(self.0.subscribers.clone(), registry.clone(), self.0.app.clone());
        let following = follow(registry, Arc::clone(&shared), set_synced);
        let following = async {
            tokio::select! {
                () = following => {}
                () = registration => {}
            }
        };
        let task = WatcherTask::spawn(following);
        RedisSubscription { shared, task, synced }
    }

    /// Reads the revision and the text in Redis, without the first line that contains the revision.
    /// `None` if there is no text.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Store`] when Redis does not answer; [`RegistryError::Parse`] for a text
    /// without a revision.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn read(&self) -> Result<Option<(u64, String)>, RegistryError> {
        match self.0.store.read(0, RegistryStore::TIMEOUT).await? {
            StoredRegistry::Nothing | StoredRegistry::Revision(_, None) => Ok(None),
            StoredRegistry::Unnumbered => Err(unnumbered(&self.0.store)),
            StoredRegistry::TooHigh => Err(too_high(&self.0.store)),
            StoredRegistry::Revision(revision, Some(text)) => {
                Ok(Some((revision, without_revision(&text).to_owned())))
            }
        }
    }

    /// Returns access to another text of the namespace, stored under the key
    /// `namespace|book|NAME`. It contains no policies, and no limiter reads it.
    #[must_use]
    pub fn document(&self, name: &str) -> RedisDocument {
        RedisDocument::new(self.0.store.document(name))
    }

    /// Replaces the text of revision `replaced` (0 if there is none), and returns the new revision.
    /// A first line such as `revision = 7` in the text is ignored; a revision in another form or at
    /// another place is an error. The limiter's own registry is updated before the method returns.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Parse`] for an invalid text, or one that changes a policy between rate
    /// and concurrency: it is not sent. [`RegistryError::Conflict`] when Redis contains another
    /// revision than `replaced`; nothing is written then. [`RegistryError::Store`] when Redis does
    /// not answer; the text may have been published nevertheless.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while a request to Redis is in flight, the text is published or
    /// not.
    pub async fn publish(&self, text: &str, replaced: u64) -> Result<u64, RegistryError> {
        let RedisRegistryState { store, registry, .. } = &*self.0;
        let reading = {
            let (text, registry) = (text.to_owned(), registry.clone());
            run_blocking_if_large(text.len(), move || {
                let snapshot = parse_numbered("text", &text)?;
                registry.refuse_turned("text", &snapshot)?;
                Ok(snapshot)
            })
        };
        let snapshot = reading.await?;
        let least = registry.published().unwrap_or(0);
        let text = without_revision(text);
        let outcome = store.publish(text, replaced, least).await?;
        let revision = published_revision(store, outcome, replaced)?;
        let adopting = {
            let registry = registry.clone();
            run_blocking_if_large(text.len(), move || {
                Ok(registry.adopt_published(revision, snapshot))
            })
        };
        adopting.await.map(|_| revision)
    }

    /// Replaces the text of revision `replaced` (0 if there is none) by one with a revision above
    /// `least`, and returns it. For programs that manage the registry and do not apply its
    /// policies: unlike [`publish`](Self::publish), the method neither compares the text with the
    /// limiter's own registry, which can be older than the text in Redis, nor changes it.
    ///
    /// `least` is the highest revision that the program knows, for example from its database.
    /// Processes that follow the registry reject lower revisions, which Redis would choose after a
    /// loss of data if its clock is behind that of its predecessor.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish), except for policies that change between rate and concurrency.
    ///
    /// # Cancel safety
    ///
    /// As [`publish`](Self::publish).
    pub async fn publish_above(&self, text: &str, replaced: u64, least: u64) -> Result<u64, RegistryError> {
        let checked = text.to_owned();
        run_blocking_if_large(text.len(), move || parse_numbered("text", &checked)).await?;
        self.replace(text, replaced, least).await
    }

    /// As [`publish_above`](Self::publish_above), also for a text with single policies, rules or
    /// overlays that this version cannot read: processes that follow the registry report them and
    /// adopt the rest. For an urgent change in the text of another program that leaves these parts
    /// as they are.
    ///
    /// # Errors
    ///
    /// As [`publish_above`](Self::publish_above), except for errors of single parts.
    ///
    /// # Cancel safety
    ///
    /// As [`publish`](Self::publish).
    pub async fn publish_beside_errors(
        &self,
        text: &str,
        replaced: u64,
        least: u64,
    ) -> Result<u64, RegistryError> {
        let checked = text.to_owned();
        run_blocking_if_large(text.len(), move || check_published("text", &checked)).await?;
        self.replace(text, replaced, least).await
    }

    async fn replace(&self, text: &str, replaced: u64, least: u64) -> Result<u64, RegistryError> {
        let store = &self.0.store;
        let outcome = store.publish(without_revision(text), replaced, least).await?;
        published_revision(store, outcome, replaced)
    }

    /// Reads the registry in Redis once and adopts it. A rejected text changes nothing.
    ///
    /// # Errors
    ///
    /// Those that [`RedisSubscription::last_error`] would return.
    pub(crate) async fn poll(&self, patience: Duration) -> Result<(), RegistryError> {
        let RedisRegistryState { store, registry, .. } = &*self.0;
        RedisWatcher::new(store).poll_once(registry, patience).await
    }

    /// Applies `change` to the registry in Redis and publishes the result; repeats both if another
    /// client has published meanwhile. `change` receives the policies in Redis, without those of
    /// the limiter's other sources. Comments in the text are lost.
    ///
    /// If Redis has lost its data, or contains an older text from a backup, `change` receives the
    /// text that this process [followed](Self::follow) or published last, which all replicas still
    /// use: an edit of one policy thereby restores the others. A process without a later text
    /// accepts the text in Redis, so follow the registry and await
    /// [`synced`](RedisSubscription::synced) before you edit.
    ///
    /// A removed policy loses its [generation](crate::Policy::with_generation), unlike with
    /// [`PolicyRegistry::remove`]. After a reset, a later edit must add the policy with a
    /// generation that it has not had before, otherwise the usage from before the reset counts
    /// again.
    ///
    /// # Errors
    ///
    /// The errors of `change` and of [`publish`](Self::publish); a conflict only after several
    /// attempts.
    ///
    /// # Cancel safety
    ///
    /// As [`publish`](Self::publish).
    pub async fn edit(
        &self,
        mut change: impl FnMut(&PolicyRegistry) -> Result<(), ConfigError>,
    ) -> Result<u64, RegistryError> {
        let mut tries = 0;
        loop {
            let (replaced, draft) = self.draft().await?;
            change(&draft)?;
            tries += 1;
            let names = draft.names().len();
            let text = run_blocking_if_large(names * BYTES_A_NAME, move || Ok(draft.to_toml())).await?;
            match self.publish(&text, replaced).await {
                Err(RegistryError::Conflict { .. }) if tries < MAX_TRIES => {
                    sleep(with_jitter(Duration::from_millis(2))).await;
                }
                published => return published,
            }
        }
    }
}

impl RedisRegistry {
    /// Returns the starting point of an edit and the revision that it replaces: the registry in
    /// Redis, or the last known one if Redis has lost it, so that an edit of one policy does not
    /// remove the others.
    pub(crate) async fn draft(&self) -> Result<(u64, PolicyRegistry), RegistryError> {
        let (revision, text) = self.read().await?.unwrap_or_default();
        let registry = &self.0.registry;
        let text = match registry.published() {
            Some(known) if known > revision => {
                // The edit would publish the registry without the policies that this version cannot
                // read.
                if registry.sources().published_partly {
                    return Err(RegistryError::Older {
                        found: revision,
                        seen: known,
                    });
                }
                registry.last_published()
            }
            _ => text,
        };
        let length = text.len();
        let draft = run_blocking_if_large(length, move || PolicyRegistry::from_toml(&text)).await?;
        Ok((revision, draft))
    }
}

/// Returns the revision of a published text, or the reason for which it was not published.
fn published_revision(
    store: &RegistryStore,
    outcome: PublishOutcome,
    replaced: u64,
) -> Result<u64, RegistryError> {
    match outcome {
        PublishOutcome::As(revision) => Ok(revision),
        PublishOutcome::Conflict(found) => Err(RegistryError::Conflict {
            expected: replaced,
            found,
        }),
        PublishOutcome::NoneLater => Err(none_later(store)),
    }
}

/// Without a revision it is unknown whether the text is the latest.
fn unnumbered(store: &RegistryStore) -> RegistryError {
    RegistryError::single(
        store.key(),
        "no revision, expected a first line such as `revision = 7`, with a higher one than before",
    )
}

/// Lua's numbers are inexact above the maximum.
fn too_high(store: &RegistryStore) -> RegistryError {
    let message = format!("the revision is too high, expected at most {MAX_REVISION}");
    RegistryError::single(store.key(), &message)
}

/// Only a text written by hand has the highest revision.
fn none_later(store: &RegistryStore) -> RegistryError {
    let message = format!(
        "revision {MAX_REVISION} is the maximum: write the text by hand with a lower revision, and restart the subscribed replicas"
    );
    RegistryError::single(store.key(), &message)
}
