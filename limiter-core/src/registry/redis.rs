//! Follows the registry of a namespace in Redis, and publishes it.

mod source;
mod watcher;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::ConfigError;
use crate::redis::{PublishOutcome, RegistryStore, Stored};
pub use crate::registry::redis::source::RedisSubscription;
use crate::registry::redis::watcher::{RedisWatcher, follow};
use crate::registry::text::{Findings, MOST_REVISION, RegistryError, parse_numbered, without_revision};
use crate::registry::watcher::{BYTES_A_NAME, WatcherTask, WeakRegistry, run_blocking_if_large};
use crate::registry::{PolicyRegistry, Source};
use crate::support::jitter::varied;
use crate::support::real_time::sleep;

/// How often an edit is begun anew because somebody else has published meanwhile.
const MOST_TRIES: usize = 8;

/// The registry of a namespace in Redis: text as [`PolicyRegistry::from_toml`] reads it, under the
/// key `namespace|book` (feature `registry`). Cheap to clone. Made by
/// [`Limiter::redis_registry`](crate::Limiter::redis_registry).
///
/// [`follow`](Self::follow) has the limiter's [registry](crate::Limiter::registry) say what Redis
/// says: a change reaches every replica within a second. While Redis is out, and when it has lost
/// its data, the last registry counts.
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
/// FileSource::follow(&registry, path)?; // counts until Redis is heard
/// let store = limits.redis_registry()?;
/// let redis = store.follow();
/// let _synced = redis.synced().await; // its error: what the file says counts for now
/// assert_eq!(limits.named("search").peek("user:7").await?.remaining(), 5, "Redis says nothing yet");
///
/// // Somewhere else:
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
/// The first line of the text says its revision, `revision = 1763776000000`, a later text having a
/// higher one. A text with a lower one than this process has seen, or with none, is not believed:
/// it comes from a server that lost what it had, or from a backup. To go back on purpose, publish:
/// a revision is the server's time in milliseconds, or one more than the last, so what is published
/// is always believed, also after Redis has lost its data. A text that is written by hand, by SET,
/// needs a first line with a higher revision, also than one that was refused: the same is looked at
/// again every half a minute only, and not at all where only single policies were refused. Keep it
/// near the server's time in milliseconds: above 9007199254740991 it is not believed, and after
/// that one nothing can be published any more.
#[derive(Clone, Debug)]
pub struct RedisRegistry(Arc<RedisRegistryState>);

#[derive(Debug)]
struct RedisRegistryState {
    store: RegistryStore,
    /// Of the limiter.
    registry: PolicyRegistry,
}

impl RedisRegistry {
    pub(crate) fn new(store: RegistryStore, registry: PolicyRegistry) -> Self {
        Self(Arc::new(RedisRegistryState { store, registry }))
    }

    /// Has the limiter's registry say what Redis says, in a task: looks now, when a message tells
    /// of a change, and every half a second, since messages get lost.
    ///
    /// Until the first look is over, a policy that stands only in Redis is not configured, and what
    /// asks for it is [allowed](crate::registry::OnUnknownPolicy): await
    /// [`RedisSubscription::synced`] before the first call.
    ///
    /// A text that is no TOML, or needs a newer version ([`RegistryError::NewerFormat`]), changes
    /// nothing. Of another one, a policy that cannot be read keeps its previous version, with the
    /// quotas of its keys, and the others apply. Both are events, and
    /// [`RedisSubscription::last_error`] says what is wrong as long as it is. Fields that are
    /// unknown are ignored, with a warning: see [versions of the
    /// text](PolicyRegistry#versions-of-the-text).
    ///
    /// The task runs until the registry is dropped; dropping the returned handle does not stop it.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time and I/O.
    pub fn follow(&self) -> RedisSubscription {
        self.0.registry.await_redis();
        let shared = Arc::new(RedisWatcher::new(&self.0.store));
        let (has_looked, looked) = watch::channel(false);
        let following = follow(
            WeakRegistry::downgrade(&self.0.registry),
            Arc::clone(&shared),
            has_looked,
        );
        let task = WatcherTask::spawn(following);
        RedisSubscription { shared, task, looked }
    }

    /// What stands in Redis: its revision and its text, without the first line that says the
    /// revision. `None` for nothing.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Store`] when Redis gives no answer; [`RegistryError::Mistakes`] for a text
    /// without a revision.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn read(&self) -> Result<Option<(u64, String)>, RegistryError> {
        match self.0.store.read(0, RegistryStore::PATIENTLY).await? {
            Stored::Nothing | Stored::Revision(_, None) => Ok(None),
            Stored::Unnumbered => Err(unnumbered(&self.0.store)),
            Stored::TooHigh => Err(too_high(&self.0.store)),
            Stored::Revision(revision, Some(text)) => {
                Ok(Some((revision, without_revision(&text).to_owned())))
            }
        }
    }

    /// Replaces the text of a revision, 0 for none, by another one; says which revision that has. A
    /// first line such as `revision = 7` may stand in it, and means nothing; a revision that is
    /// written otherwise, or stands elsewhere, is a mistake. The limiter's own registry has it at
    /// once.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Mistakes`] for a text that has some, or in which a name turns from a rate
    /// into concurrency, or back: it is not sent. [`RegistryError::Conflict`] when Redis has
    /// another revision than the one to be replaced; nothing is written then.
    /// [`RegistryError::Store`] when Redis gives no answer; it may have been published all the
    /// same.
    ///
    /// # Cancel safety
    ///
    /// Dropped while Redis is asked, it is published or not.
    pub async fn publish(&self, text: &str, replaced: u64) -> Result<u64, RegistryError> {
        let RedisRegistryState { store, registry } = &*self.0;
        let reading = {
            let (text, registry) = (text.to_owned(), registry.clone());
            run_blocking_if_large(text.len(), move || {
                let snapshot = parse_numbered("text", &text)?;
                registry.refuse_turned("text", &snapshot)?;
                Ok(snapshot)
            })
        };
        let snapshot = reading.await?;
        let text = without_revision(text);
        match store
            .publish(text, replaced, registry.published().unwrap_or(0))
            .await?
        {
            PublishOutcome::As(revision) => {
                let adopting = {
                    let registry = registry.clone();
                    run_blocking_if_large(text.len(), move || {
                        Ok(registry.adopt_published(revision, snapshot))
                    })
                };
                adopting.await.map(|_| revision)
            }
            PublishOutcome::Conflict(found) => Err(RegistryError::Conflict {
                expected: replaced,
                found,
            }),
            PublishOutcome::NoneLater => Err(none_later(store)),
        }
    }

    /// Has the limiter's registry say what Redis says now. What cannot be believed changes nothing.
    ///
    /// # Errors
    ///
    /// As [`RedisSubscription::last_error`] would tell.
    pub(crate) async fn poll(&self, patience: Duration) -> Result<(), RegistryError> {
        let RedisRegistryState { store, registry } = &*self.0;
        RedisWatcher::new(store).poll_once(registry, patience).await
    }

    /// Publishes what becomes of the registry in Redis by `change`, which is begun anew when
    /// somebody else has published meanwhile. `change` is given what stands in Redis, and nothing
    /// of the limiter's other sources. Comments in the text are lost.
    ///
    /// Where Redis has lost what it had, or has an older text from a backup, `change` is given what
    /// this process has [followed](Self::follow) or published last, which is what all replicas go
    /// on with: an edit of one policy brings the others back. A process that knows of nothing later
    /// takes Redis at its word, so follow the registry, and [hear](RedisSubscription::synced) it,
    /// before you edit.
    ///
    /// What is taken out is forgotten together with its
    /// [generation](crate::Policy::with_generation), unlike by
    /// [`PolicyRegistry::remove`]: after a reset, a later edit puts the name there again in a generation that it has not had, else what was used before the
    /// reset counts again.
    ///
    /// # Errors
    ///
    /// What `change` says; else as [`publish`](Self::publish), a conflict only after several tries.
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
                Err(RegistryError::Conflict { .. }) if tries < MOST_TRIES => {
                    sleep(varied(Duration::from_millis(2))).await;
                }
                published => return published,
            }
        }
    }
}

impl RedisRegistry {
    /// What a change begins with, and the revision that it replaces: what stands in Redis, or what
    /// it said last, where it has lost that. A change of one name must not take the others away.
    pub(crate) async fn draft(&self) -> Result<(u64, PolicyRegistry), RegistryError> {
        let (revision, text) = self.read().await?.unwrap_or_default();
        let registry = &self.0.registry;
        let text = match registry.published() {
            Some(known) if known > revision => {
                // It would be published without what this version cannot read.
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

/// Nobody knows whether such a text is the latest.
fn unnumbered(store: &RegistryStore) -> RegistryError {
    RegistryError::one(
        store.key(),
        "no revision, expected a first line such as `revision = 7`, with a higher one than before",
    )
}

/// Lua's numbers would take it for another one.
fn too_high(store: &RegistryStore) -> RegistryError {
    let told = format!("a revision above {MOST_REVISION}, expected at most that");
    RegistryError::one(store.key(), &told)
}

/// Somebody wrote the highest one by hand.
fn none_later(store: &RegistryStore) -> RegistryError {
    let told = format!(
        "no revision is later than {MOST_REVISION}: write the text by hand with a lower one, and restart what has seen this one"
    );
    RegistryError::one(store.key(), &told)
}

impl PolicyRegistry {
    /// The revision of what Redis says, where this process has [followed](RedisRegistry::follow) or
    /// published it; `None` before. Replicas that have the same revision have the same policies
    /// from there.
    #[must_use]
    pub fn published(&self) -> Option<u64> {
        Some(self.sources().published).filter(|revision| *revision > 0)
    }

    /// What Redis has said last, as a text without a revision.
    pub(crate) fn last_published(&self) -> String {
        let sources = self.sources();
        sources
            .redis()
            .map(crate::registry::text::write)
            .unwrap_or_default()
    }

    /// What would count under a name if Redis said nothing of it.
    pub(crate) fn get_beside_redis(&self, name: &str) -> Option<Arc<crate::registry::PolicyEntry>> {
        self.sources().beside_redis(name).cloned()
    }

    /// Redis is asked from now on.
    fn await_redis(&self) {
        let is_heard = self.published().is_some();
        self.0.awaits_redis.store(!is_heard, Ordering::Relaxed);
    }

    /// Redis has said what there is, be it nothing, or what is refused.
    fn redis_is_heard(&self) {
        self.0.awaits_redis.store(false, Ordering::Relaxed);
    }

    /// Whether it is a later one than is known.
    fn adopt_published(&self, revision: u64, snapshot: crate::registry::SourceSnapshot) -> bool {
        {
            let mut sources = self.sources();
            if revision <= sources.published {
                return false;
            }
            sources.published = revision;
            sources.published_partly = false;
            self.replace_source(sources, &Source::Redis, snapshot);
        }
        true
    }

    /// Adopts a text that another program published, if it is later than what is known. Policies
    /// that cannot be read, and those that turn into another kind, keep their previous version.
    fn adopt_findings(
        &self,
        key: &str,
        revision: u64,
        mut snapshot: super::SourceSnapshot,
        mut findings: Findings,
    ) -> Option<Findings> {
        let turned = snapshot.entries().filter_map(|entry| {
            let reason = self.kind_change_error(entry)?;
            Some((entry.policy().name().into(), RegistryError::mistake(key, reason)))
        });
        for (name, error) in turned.collect::<Vec<(Box<str>, _)>>() {
            snapshot.remove(&name);
            findings.rejected.insert(name);
            findings.errors.push(error);
        }
        let mut sources = self.sources();
        if revision <= sources.published {
            return None;
        }
        if let Some(before) = sources.redis() {
            if findings.rejects_rules {
                snapshot.retain_rules(before);
            }
            findings
                .rejected
                .iter()
                .for_each(|name| snapshot.retain_generations(name, before));
        }
        sources.published = revision;
        sources.published_partly = !(findings.errors.is_empty() && findings.warnings.is_empty());
        self.replace_source(sources, &Source::Redis, snapshot);
        Some(findings)
    }
}
