//! Builds limiters whose state lives in this process.
//!
//! The build cannot fail, so that tests and small programs need no error handling: an invalid
//! default deadline is replaced by the nearest valid one, and an invalid `LIMITER_ENFORCEMENT` is
//! logged. Tests: `tests/limiter_defaults.rs`, `memory/evict/tests.rs` (a full table).

use std::time::Duration;

use crate::backend::Backend;
use crate::backend::memory::MemoryBackend;
use crate::limiter::{Limiter, LimiterSettings};
use crate::memory::MemoryStore;
use crate::policy::{Enforcement, MAX_DEADLINE, OnStoreFailure};
use crate::registry::{OnUnknownPolicy, PolicyRegistry};
use crate::support::clock::{Clock, ManualClock};

/// Builds a [`Limiter`] whose state lives in this process. Returned by [`Limiter::in_process`].
#[derive(Clone, Debug)]
#[must_use = "a limiter exists once `build` has returned it"]
pub struct InProcessBuilder {
    clock: Clock,
    max_keys: usize,
    evicts: bool,
    settings: LimiterSettings,
    enforcement: Option<Enforcement>,
}

impl Default for InProcessBuilder {
    fn default() -> Self {
        Self {
            clock: Clock::System,
            max_keys: 1_000_000,
            evicts: false,
            settings: LimiterSettings::default(),
            enforcement: None,
        }
    }
}

impl InProcessBuilder {
    /// Reads the time from a clock that a test advances. Default: the system's clock.
    pub fn clock(self, clock: &ManualClock) -> Self {
        Self {
            clock: Clock::Manual(clock.clone()),
            ..self
        }
    }

    /// Sets the maximum number of keys in the table; a key counts once for each policy. If the
    /// table is full, a new key is rejected with
    /// [`StoreErrorKind::Full`](crate::StoreErrorKind::Full) and charged nothing, unless an idle
    /// key (its state equals that of an unused key) can be removed. The search for an idle key
    /// examines up to a thousand keys, at most once per millisecond. Calls for stored keys are not
    /// affected. Decisions remove idle keys as they go: all are examined within one call per few
    /// dozen keys. A million keys under buckets and funnels take about 80 MB; a key under a window
    /// takes 8 bytes more per permit. Default: 1,000,000.
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { max_keys, ..self }
    }

    /// Evicts a key when the table is [full](Self::max_keys), and stores the new key in its place.
    /// Default: the new key is rejected with [`StoreErrorKind::Full`](crate::StoreErrorKind::Full),
    /// so that clients with a new key receive 503 until a stored key becomes idle.
    ///
    /// The victim is the key whose state would soonest equal that of an unused key, among 16
    /// randomly chosen keys; in a table of at most 16 keys the choice is exact. A new key examines
    /// at most 16 others, after the search for idle keys that `max_keys` describes.
    ///
    /// An evicted key starts over. Each eviction of a key can therefore admit its usage at that
    /// moment once more, which is at most one quota: a bucket that is evicted e times in a time T
    /// admits at most (e + 1) · capacity + rate · T, a window at most (e + 1) · limit. A debt and a
    /// penalty's count and block are deleted with their key. A client that can invent as many keys
    /// as the table holds can cause evictions: limit such keys by a value that clients cannot
    /// choose, or keep the default.
    ///
    /// Never evicted are the other keys of the same decision, and permits of
    /// [`Policy::concurrency`](crate::Policy::concurrency), which have a table of their own with
    /// the same bound and stay until they are dropped.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().max_keys(2).evict_when_full().build();
    /// let search = Policy::token_bucket("search").capacity(10).rate("1/h").build()?;
    ///
    /// limits.check(&search, "ann").cost(9).await?.require()?;
    /// limits.check(&search, "bob").cost(1).await?.require()?;
    /// limits.check(&search, "eve").await?.require()?; // evicts bob's key, which is full again in an hour
    /// assert_eq!(limits.peek(&search, "bob").await?.remaining(), 10);
    /// assert_eq!(limits.peek(&search, "ann").await?.remaining(), 1);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn evict_when_full(self) -> Self {
        Self { evicts: true, ..self }
    }

    /// Allows limits of different groups in one decision, which a cluster cannot decide. Default:
    /// rejected, so that in-process tests detect decisions that a cluster would reject.
    pub fn standalone_only(mut self) -> Self {
        self.settings.any_groups = true;
        self
    }

    /// Sets the maximum number of calls that wait for permits, in all queues together. Further
    /// calls are rejected with [`StoreErrorKind::Overloaded`](crate::StoreErrorKind::Overloaded).
    /// Default: 10,000.
    pub fn max_waiting(mut self, calls: usize) -> Self {
        self.settings.max_waiting = calls;
        self
    }

    shared_setters!();

    /// Sets the initial enforcement mode, which [`Limiter::set_enforcement`] changes. Default: the
    /// value of the environment variable [`LIMITER_ENFORCEMENT`](Enforcement::ENV) when the limiter
    /// is built, or [`Enforcement::Enforce`]. An invalid value of the variable is logged as an
    /// error, and limits are enforced.
    pub fn enforcement(self, enforcement: Enforcement) -> Self {
        Self {
            enforcement: Some(enforcement),
            ..self
        }
    }

    /// Builds the limiter. An invalid [default deadline](Self::default_deadline) is replaced by the
    /// nearest valid one.
    #[must_use]
    pub fn build(mut self) -> Limiter {
        let deadline = &mut self.settings.defaults.deadline;
        *deadline = (*deadline).clamp(Duration::from_micros(1), MAX_DEADLINE);
        let of_environment = match self.enforcement {
            Some(_) => None,
            None => Enforcement::from_environment().unwrap_or_else(|error| {
                tracing::error!(%error, "invalid LIMITER_ENFORCEMENT; using enforce");
                None
            }),
        };
        let store = MemoryStore::new(self.clock.clone(), self.max_keys);
        let store = if self.evicts { store.evicting() } else { store };
        let backend = MemoryBackend::new(store, self.settings.max_waiting);
        Limiter::new(Backend::Memory(backend), self.clock, self.settings)
            .with_enforcement(self.enforcement, of_environment)
    }
}
