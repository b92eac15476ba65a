//! Rates in Redis: the registry of the namespace, followed, looked into and changed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex as Turns;

use crate::decision::Rejection;
use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::limiter::Limiter;
use crate::redis::RegistryStore;
use crate::redisson::client::{crowded, is_crowded, remove_expired};
use crate::registry::{
    BYTES_A_NAME, Edit, PolicyEntry, RedisRegistry, RedisSubscription, RegistryError, run_blocking_if_large,
};
use crate::support::jitter::varied;
use crate::support::real_time::sleep;

/// How often Redis is asked at most for names that are not known.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often a change is begun anew because somebody else has changed the registry meanwhile.
const MOST_TRIES: u32 = 32;

/// The registry of a namespace.
#[derive(Debug)]
pub(super) struct Remote {
    registry: RedisRegistry,
    /// Follows it while there is a client.
    source: Mutex<Option<RedisSubscription>>,
    /// When Redis last answered about a name that was not known, or why it did not. One asks at a
    /// time.
    last: Turns<Option<(Instant, Option<StoreError>)>>,
    /// One of this client's changes at a time: they would only be in each other's way.
    changing: Turns<()>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        let source = self.source.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = source.take() {
            source.stop();
        }
    }
}

impl Remote {
    pub(super) fn from_limiter(limits: &Limiter) -> Option<Self> {
        let registry = limits.redis_registry().ok()?;
        Some(Self {
            registry,
            source: Mutex::default(),
            last: Turns::default(),
            changing: Turns::default(),
        })
    }

    /// Follows the registry, if that is not done yet, or the runtime in which it was has ended.
    fn follow(&self) {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        if !source.as_ref().is_some_and(RedisSubscription::is_running) {
            *source = Some(self.registry.follow());
        }
    }

    /// Looks what Redis says now: patiently, unless something is known that counts otherwise.
    pub(super) async fn sync(&self, is_known: bool) -> Result<(), Rejection> {
        self.follow();
        let patience = match is_known {
            true => RegistryStore::BRIEFLY,
            false => RegistryStore::PATIENTLY,
        };
        self.registry
            .poll(patience)
            .await
            .map_err(|error| rejection(error, "read"))
    }

    /// Looks once for what is not known, unless it was looked for a moment ago.
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
            if answered.elapsed() < LOOK_EVERY {
                return error.clone().map_or(Ok(()), Err);
            }
        }
        let error = match self.registry.poll(RegistryStore::BRIEFLY).await {
            Ok(()) => None,
            Err(error) => Some(store_error(error, "read")),
        };
        // From the answer on: those who waited for it take it, however long it took, and ask not
        // one after the other.
        *last = Some((Instant::now(), error.clone()));
        error.map_or(Ok(()), Err)
    }

    /// Publishes the registry with what becomes of the entry of this name; again and again while
    /// others publish.
    pub(super) async fn change<T>(
        &self,
        limits: &Limiter,
        name: &str,
        mut change: impl FnMut(Option<&PolicyEntry>) -> Result<(T, Edit), ConfigError>,
    ) -> Result<T, Rejection> {
        self.follow();
        let _turn = self.changing.lock().await;
        let mut tries = 0;
        loop {
            let (replaced, draft) = self
                .registry
                .draft()
                .await
                .map_err(|error| rejection(error, "read"))?;
            let entry = draft
                .get(name)
                .or_else(|| limits.registry().get_beside_redis(name));
            let (answer, edit) = change(entry.as_deref())?;
            match edit {
                Edit::Keep => return Ok(answer),
                Edit::Put(entry) => {
                    remove_expired(&draft, limits.calendar());
                    if is_crowded(&draft, name) {
                        return Err(crowded(name).into());
                    }
                    draft.set(*entry);
                }
                Edit::Remove(ended) => {
                    if !draft.remove(name) {
                        let expected = "a policy that stands in Redis";
                        return Err(ConfigError::invalid("policy to be deleted", name, expected).into());
                    }
                    // What has ended would hide what counts again.
                    if limits.registry().get_beside_redis(name).is_none() {
                        draft.set(*ended);
                    }
                    remove_expired(&draft, limits.calendar());
                }
            }
            tries += 1;
            let names = draft.names().len();
            let text = run_blocking_if_large(names * BYTES_A_NAME, move || Ok(draft.to_toml())).await;
            let text = text.map_err(|error| rejection(error, "written"))?;
            match self.registry.publish(&text, replaced).await {
                Ok(_) => return Ok(answer),
                Err(RegistryError::Conflict { .. }) if tries < MOST_TRIES => {
                    sleep(varied(Duration::from_millis(2) * tries)).await;
                }
                Err(error) => return Err(rejection(error, "changed")),
            }
        }
    }
}

fn rejection(error: RegistryError, what: &str) -> Rejection {
    match error {
        RegistryError::Config(error) => Rejection::Config(error),
        error => Rejection::Unavailable(store_error(error, what)),
    }
}

fn store_error(error: RegistryError, what: &str) -> StoreError {
    match error {
        RegistryError::Store(error) => error,
        error => {
            let detail: Arc<str> = format!("the registry in Redis cannot be {what}").into();
            StoreError::new(StoreErrorKind::Refused, detail).with_source(error)
        }
    }
}
