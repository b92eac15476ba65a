//! Edits of the registry in Redis: follow it, read it on demand, publish with a compare-and-set.
//!
//! An edit reads the text of Redis, changes one entry, and publishes the result if the revision is
//! still the one that was read; after a conflict it starts again with the new text. Unknown names
//! cause at most one read per 250 ms, and concurrent callers share its result.
//!
//! Invariant: concurrent edits of several processes all apply or return an error. Tests:
//! `limiter-redisson/tests/redisson.rs` with its modules `rates` and `redis`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex as AsyncMutex;

use crate::decision::Rejection;
use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::redis::registry_store::RegistryStore;
use crate::registry::shared::{is_full, remove_expired, too_many_names};
use crate::registry::{
    BYTES_A_NAME, EntryEdit, PolicyEntry, PolicyRegistry, RedisRegistry, RedisSubscription, RegistryError,
    run_blocking_if_large,
};
use crate::support::jitter::with_jitter;
use crate::support::real_time::sleep;
use crate::support::sync::Mutex;
use crate::units::Timestamp;

/// The minimum interval between reads of Redis for unknown names.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(250);
/// The number of attempts to publish an edit while other programs publish.
const MAX_ATTEMPTS: u32 = 32;

/// The registry of a namespace in Redis.
#[derive(Debug)]
pub(super) struct RedisEdits {
    registry: RedisRegistry,
    /// Follows the registry while a clone of the owner exists.
    source: Mutex<Option<RedisSubscription>>,
    /// The time and the error of the last read for an unknown name. The lock allows one read at a
    /// time.
    last: AsyncMutex<Option<(Instant, Option<StoreError>)>>,
    /// Serializes the edits of this process, which would conflict with each other.
    editing: AsyncMutex<()>,
}

impl Drop for RedisEdits {
    fn drop(&mut self) {
        let source = self.source.get_mut();
        if let Some(source) = source.take() {
            source.stop();
        }
    }
}

impl RedisEdits {
    pub(super) fn new(registry: RedisRegistry) -> Self {
        Self {
            registry,
            source: Mutex::default(),
            last: AsyncMutex::default(),
            editing: AsyncMutex::default(),
        }
    }

    /// Starts to follow the registry, again if the runtime of the previous task has ended.
    fn follow(&self) {
        let mut source = self.source.lock();
        if !source.as_ref().is_some_and(RedisSubscription::is_running) {
            *source = Some(self.registry.follow());
        }
    }

    /// Reads Redis.
    pub(super) async fn sync(&self) -> Result<(), Rejection> {
        self.sync_within(RegistryStore::TIMEOUT).await
    }

    /// Reads Redis within a short time, for a caller with a known entry.
    pub(super) async fn sync_briefly(&self) -> Result<(), Rejection> {
        self.sync_within(RegistryStore::BRIEFLY).await
    }

    async fn sync_within(&self, timeout: Duration) -> Result<(), Rejection> {
        self.follow();
        let polled = self.registry.poll(timeout).await;
        polled.map_err(|error| rejection(error, "read"))
    }

    /// Reads Redis once for an unknown name, unless it was read less than [`MIN_READ_INTERVAL`]
    /// ago.
    pub(super) async fn sync_until(&self, is_known: impl Fn() -> bool) -> Result<(), StoreError> {
        self.follow();
        if is_known() {
            return Ok(());
        }
        let mut last = self.last.lock().await;
        if is_known() {
            return Ok(());
        }
        if let Some((answered, error)) = &*last {
            if answered.elapsed() < MIN_READ_INTERVAL {
                return error.clone().map_or(Ok(()), Err);
            }
        }
        let error = match self.registry.poll(RegistryStore::BRIEFLY).await {
            Ok(()) => None,
            Err(error) => Some(store_error(error, "read")),
        };
        // The interval starts with the reply: waiting callers use it instead of reading in turn.
        *last = Some((Instant::now(), error.clone()));
        error.map_or(Ok(()), Err)
    }

    /// Publishes the registry with an edit of one entry. Tries again after a conflict.
    pub(super) async fn edit<T>(
        &self,
        registry: &PolicyRegistry,
        name: &str,
        now: Timestamp,
        mut change: impl FnMut(Option<&PolicyEntry>) -> Result<(T, EntryEdit), ConfigError>,
    ) -> Result<T, Rejection> {
        self.follow();
        let _editing = self.editing.lock().await;
        let mut attempts = 0;
        loop {
            let (replaced, draft) = self
                .registry
                .draft()
                .await
                .map_err(|error| rejection(error, "read"))?;
            let entry = draft.get(name).or_else(|| registry.get_beside_redis(name));
            let (answer, edit) = change(entry.as_deref())?;
            match edit {
                EntryEdit::Keep => return Ok(answer),
                EntryEdit::Put(entry) => {
                    remove_expired(&draft, now);
                    if is_full(&draft, name) {
                        return Err(too_many_names(name).into());
                    }
                    draft.set(*entry);
                }
                EntryEdit::Remove(ended) => {
                    if !draft.remove(name) {
                        let expected = "a policy that Redis contains";
                        return Err(ConfigError::invalid("policy to be deleted", name, expected).into());
                    }
                    // The ended entry would hide the entry of another source.
                    if registry.get_beside_redis(name).is_none() {
                        draft.set(*ended);
                    }
                    remove_expired(&draft, now);
                }
            }
            attempts += 1;
            let names = draft.names().len();
            let text = run_blocking_if_large(names * BYTES_A_NAME, move || Ok(draft.to_toml())).await;
            let text = text.map_err(|error| rejection(error, "written"))?;
            match self.registry.publish(&text, replaced).await {
                Ok(_) => return Ok(answer),
                Err(RegistryError::Conflict { .. }) if attempts < MAX_ATTEMPTS => {
                    sleep(with_jitter(Duration::from_millis(2) * attempts)).await;
                }
                Err(error) => return Err(rejection(error, "changed")),
            }
        }
    }
}

fn rejection(error: RegistryError, action: &str) -> Rejection {
    match error {
        RegistryError::Config(error) => Rejection::Config(error),
        error => Rejection::from(store_error(error, action)),
    }
}

fn store_error(error: RegistryError, action: &str) -> StoreError {
    match error {
        RegistryError::Store(error) => error,
        error => {
            let detail: Arc<str> = format!("the registry in Redis cannot be {action}").into();
            StoreError::new(StoreErrorKind::Refused, detail).with_source(error)
        }
    }
}
