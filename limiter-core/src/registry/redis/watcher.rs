//! Keeps a registry equal to the text in Redis, by polling and by Pub/Sub messages.
//!
//! One future polls the revision and reads the text after a change; the other one listens and wakes
//! it. Without the permission to subscribe, polling alone finds changes. A rejected text leaves the
//! last policies in force and is not parsed again at each poll. Tests: `tests/registry_redis.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::observe;
use crate::redis::registry_store::{RegistryStore, StoredRegistry, is_rejection};
use crate::registry::redis::{too_high, unnumbered};
use crate::registry::text::{Findings, parse_published};
use crate::registry::watcher::{LastError, WeakRegistry, reason, run_blocking_if_large};
use crate::registry::{PolicyRegistry, RegistryError};
use crate::support::jitter::with_jitter;
use crate::support::real_time::sleep;
use crate::support::sync::{Mutex, MutexGuard};

/// Polling interval without change messages. Each pause is longer by up to a quarter.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A rejected text of the same revision is read again after this number of polls, because it may
/// have been corrected by hand without a new revision.
const POLLS_PER_REJECTED: u32 = 60;
/// Pause before the second attempt to subscribe; it doubles with each failed attempt.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two attempts to subscribe.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
#[derive(Debug)]
pub(super) struct RedisWatcher {
    store: RegistryStore,
    pub(super) last_error: LastError,
    /// A rejected text was logged and not followed by a valid one. Outages do not change it.
    is_rejected: AtomicBool,
    /// The current text, if it was rejected.
    refused: Mutex<Option<RejectedText>>,
    /// The errors of single policies of the adopted text, with its revision.
    partial: Mutex<Option<(u64, RegistryError)>>,
}

/// A rejected text, which is not read again for a while.
#[derive(Debug)]
struct RejectedText {
    revision: u64,
    error: RegistryError,
    /// Number of polls since it was rejected.
    polls: u32,
}

pub(super) async fn follow(
    registry: WeakRegistry,
    shared: Arc<RedisWatcher>,
    set_synced: watch::Sender<bool>,
) {
    let news = Notify::new();
    tokio::select! {
        () = poll_until_dropped(registry, &shared, &news, &set_synced) => {}
        () = listen(&shared.store, &news) => {}
    }
}

/// Polls until the registry is dropped.
async fn poll_until_dropped(
    registry: WeakRegistry,
    shared: &RedisWatcher,
    news: &Notify,
    set_synced: &watch::Sender<bool>,
) {
    loop {
        {
            let Some(registry) = registry.upgrade() else {
                return;
            };
            shared.poll(&registry).await;
            observe::registry_revision(registry.published().unwrap_or(0));
            set_synced.send_replace(true);
        }
        tokio::select! {
            () = news.notified() => {}
            () = sleep(with_jitter(POLL_INTERVAL)) => {}
        }
    }
}

/// Notifies the polling task of published changes. Without Pub/Sub, polling finds them a little
/// later.
async fn listen(store: &RegistryStore, news: &Notify) {
    let mut pause = FIRST_PAUSE;
    loop {
        match store.listen().await {
            Ok(subscription) => {
                // A change before the subscription sent no message to it.
                news.notify_one();
                while subscription.next_publication().await {
                    news.notify_one();
                }
                pause = FIRST_PAUSE;
            }
            Err(error) => {
                tracing::debug!(key = store.key(), %error, "Pub/Sub unavailable; polling for registry changes")
            }
        }
        sleep(with_jitter(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl RedisWatcher {
    pub(super) fn new(store: &RegistryStore) -> Self {
        Self {
            store: store.clone(),
            last_error: LastError::default(),
            is_rejected: AtomicBool::new(false),
            refused: Mutex::default(),
            partial: Mutex::default(),
        }
    }

    async fn poll(&self, registry: &PolicyRegistry) {
        let key = self.store.key();
        let polled = self.poll_once(registry, RegistryStore::BRIEFLY).await;
        let partial = self.partial_error(registry).filter(|_| polled.is_ok());
        let applies = partial.is_some();
        let error = match polled.and(partial.map_or(Ok(()), Err)) {
            Ok(()) => {
                self.last_error.is_over();
                if self.is_rejected.swap(false, Ordering::Relaxed) {
                    let revision = registry.published().unwrap_or(0);
                    tracing::info!(key, revision, "registry in Redis is valid again");
                }
                return;
            }
            Err(error) => error,
        };
        // Outages are logged by the circuit breaker.
        let is_outage = matches!(&error, RegistryError::Store(error) if !is_rejection(error));
        if !is_outage {
            self.is_rejected.store(true, Ordering::Relaxed);
            observe::registry_rejected("redis");
        }
        let reason = reason(&error);
        if self.last_error.is_new(error) && !is_outage {
            if applies {
                tracing::warn!(key, %reason, "policies in Redis rejected; keeping their previous versions");
            } else {
                tracing::warn!(key, %reason, "registry in Redis rejected; keeping the last policies");
            }
        }
    }

    /// Reads the text in Redis once and adopts it if it is valid.
    pub(super) async fn poll_once(
        &self,
        registry: &PolicyRegistry,
        patience: Duration,
    ) -> Result<(), RegistryError> {
        let known = registry.published().unwrap_or(0);
        let refused = self.refused_for_now().filter(|refused| *refused > known);
        let mut stored = self.store.read(refused.unwrap_or(known), patience).await?;
        if let (Some(refused), StoredRegistry::Revision(found, None)) = (refused, &stored) {
            if *found == refused {
                if let Some(error) = self.count_poll() {
                    return Err(error);
                }
            }
            // The text has another revision, which may still be later than the known one.
            if *found > known {
                stored = self.store.read(known, patience).await?;
            }
        }
        let taken = self.apply_text(registry, stored, known).await;
        registry.redis_is_received();
        *self.refused() = match &taken {
            Err((Some(revision), error)) => Some(RejectedText {
                revision: *revision,
                error: error.clone(),
                polls: 0,
            }),
            _ => None,
        };
        taken.map_err(|(_, error)| error)
    }

    /// Adopts a text that was read. An error contains the revision of the rejected text.
    async fn apply_text(
        &self,
        registry: &PolicyRegistry,
        stored: StoredRegistry,
        known: u64,
    ) -> Result<(), (Option<u64>, RegistryError)> {
        let older = |found| Err((None, RegistryError::Older { found, seen: known }));
        match stored {
            StoredRegistry::Nothing if known == 0 => Ok(()),
            StoredRegistry::Nothing => older(0),
            StoredRegistry::Unnumbered => Err((None, unnumbered(&self.store))),
            StoredRegistry::TooHigh => Err((None, too_high(&self.store))),
            StoredRegistry::Revision(revision, _) if revision < known => older(revision),
            StoredRegistry::Revision(_, None) => Ok(()),
            StoredRegistry::Revision(revision, Some(text)) => {
                let key = self.store.key();
                let reading = {
                    let (key, registry) = (key.to_owned(), registry.clone());
                    run_blocking_if_large(text.len(), move || {
                        let (snapshot, findings) = parse_published(&key, &text)?;
                        Ok(registry.adopt_findings(&key, revision, snapshot, findings))
                    })
                };
                let adopted = reading.await.map_err(|error| (Some(revision), error))?;
                if let Some(findings) = adopted {
                    self.adopted(revision, findings);
                }
                Ok(())
            }
        }
    }

    fn adopted(&self, revision: u64, findings: Findings) {
        const SHOWN: usize = 10;
        let key = self.store.key();
        tracing::info!(key, revision, "policies in Redis changed");
        if !findings.warnings.is_empty() {
            let shown = findings.warnings.iter().take(SHOWN).map(ToString::to_string);
            tracing::warn!(
                key,
                revision,
                fields = shown.collect::<Vec<_>>().join("; "),
                "unknown fields of the registry in Redis ignored"
            );
        }
        let errors = findings.errors;
        let partial = (!errors.is_empty()).then_some((revision, RegistryError::Parse { errors }));
        *self.partial.lock() = partial;
    }

    /// Returns the errors of single policies of the current text.
    fn partial_error(&self, registry: &PolicyRegistry) -> Option<RegistryError> {
        let partial = self.partial.lock();
        let (_, error) = partial
            .as_ref()
            .filter(|(revision, _)| registry.published() == Some(*revision))?;
        Some(error.clone())
    }

    /// Returns the revision of a rejected text, unless it is due to be read again.
    fn refused_for_now(&self) -> Option<u64> {
        let refused = self.refused();
        let refused = refused
            .as_ref()
            .filter(|refused| refused.polls < POLLS_PER_REJECTED);
        refused.map(|refused| refused.revision)
    }

    /// Counts a poll of a rejected text, and returns its error.
    fn count_poll(&self) -> Option<RegistryError> {
        let mut refused = self.refused();
        let refused = refused.as_mut()?;
        refused.polls += 1;
        Some(refused.error.clone())
    }

    fn refused(&self) -> MutexGuard<'_, Option<RejectedText>> {
        self.refused.lock()
    }
}
