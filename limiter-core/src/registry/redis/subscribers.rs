//! The processes that follow a registry in Redis.
//!
//! Each subscription registers its process in Redis, for a bounded time and again before this time
//! ends. All subscriptions of one registry and app are one entry. A process that ends without
//! notice disappears from the list when its registration ends.
//!
//! Tests: `tests/registry_redis/subscribers.rs`.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::redis::registry_store::{RegistryStore, SubscriberRecord, SubscriberStore};
use crate::registry::text::OVERLAYS_FORMAT;
use crate::registry::watcher::WeakRegistry;
use crate::registry::{PolicyRegistry, RedisRegistry, RegistryError};
use crate::support::jitter::{random_part, with_jitter};
use crate::support::real_time::sleep;

/// The duration of a registration.
const LIFE: Duration = Duration::from_secs(60);
/// Interval of registrations; each one is longer by up to a quarter.
const INTERVAL: Duration = Duration::from_secs(20);
/// The time in which all processes register after a publication. A registration takes longer the
/// more processes there are, so those of a large fleet would delay decisions if sent at once.
const SPREAD: Duration = Duration::from_secs(2);
/// Separates the parts of a description.
const SEPARATOR: char = '\n';

/// A process that follows a registry in Redis. Returned by
/// [`RedisRegistry::subscribers`](crate::registry::RedisRegistry::subscribers).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subscriber {
    /// The app of its limiter.
    pub app: Option<String>,
    /// The name of its host.
    pub host: String,
    /// The version of this library.
    pub version: String,
    /// The format of a text that it reads, as [`PolicyRegistry::FORMAT`].
    pub format: u32,
    /// The revision that it has adopted; 0 for none.
    pub revision: u64,
    /// Microseconds by which its clock is ahead of the clock of Redis, including half the duration
    /// of the request.
    pub clock_ahead: i64,
}

impl Subscriber {
    /// Returns whether it obeys suspensions, blocks and ends of key list entries. Otherwise it
    /// rejects a text that contains them and keeps its last policies.
    #[must_use]
    pub fn supports_overlays(&self) -> bool {
        self.format >= OVERLAYS_FORMAT
    }

    fn from_record(record: SubscriberRecord) -> Self {
        let mut parts = record.description.splitn(3, SEPARATOR).map(str::to_owned);
        let mut part = || parts.next().unwrap_or_default();
        let (version, host, app) = (part(), part(), part());
        Self {
            app: Some(app).filter(|app| !app.is_empty()),
            host,
            version,
            format: record.format,
            revision: record.revision,
            clock_ahead: record.skew,
        }
    }
}

impl RedisRegistry {
    /// Returns the processes that [follow](Self::follow) this registry, in any order. A process
    /// that has ended is listed for up to a minute. Processes with a version of this library
    /// without this method are not listed.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Store`] when Redis does not answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn subscribers(&self) -> Result<Vec<Subscriber>, RegistryError> {
        let records = self.subscriber_store().list(RegistryStore::TIMEOUT).await?;
        Ok(records.into_iter().map(Subscriber::from_record).collect())
    }
}

/// Registers this process until the registry is dropped.
pub(super) async fn register_until_dropped(
    store: SubscriberStore,
    registry: WeakRegistry,
    app: Option<Arc<str>>,
) {
    // Random in each process.
    static IDS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let app = app.as_deref().unwrap_or_default();
    let id = IDS.hash_one((std::process::id(), registry.address(), app));
    let description = [env!("CARGO_PKG_VERSION"), &host(), app].join(&SEPARATOR.to_string());
    let mut record = SubscriberRecord {
        id: id.to_le_bytes(),
        revision: 0,
        format: PolicyRegistry::FORMAT,
        description,
        skew: 0,
    };
    loop {
        let Some(published) = published(&registry) else {
            return;
        };
        record.revision = published;
        let registered = store.register(&record, LIFE, RegistryStore::BRIEFLY).await;
        if let Err(error) = registered {
            tracing::debug!(%error, "cannot register this process as a subscriber of the registry");
        }
        tokio::select! {
            () = other_revision(&registry, published) => sleep(random_part(SPREAD)).await,
            () = sleep(with_jitter(INTERVAL)) => {}
        }
    }
}

/// Returns the revision that the registry has adopted from Redis; `None` if it was dropped.
fn published(registry: &WeakRegistry) -> Option<u64> {
    Some(registry.upgrade()?.published().unwrap_or(0))
}

/// Waits until the registry has adopted another revision, or was dropped. Changes of code alone do
/// not end the wait.
async fn other_revision(registry: &WeakRegistry, known: u64) {
    let Some(mut changes) = registry.upgrade().map(|registry| registry.watch_revision()) else {
        return;
    };
    while published(registry) == Some(known) {
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the name of the host, or an empty text.
fn host() -> String {
    let of_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = of_kernel.or_else(|| std::env::var("HOSTNAME").ok());
    let host = host.unwrap_or_default();
    host.trim().chars().take(255).collect()
}
