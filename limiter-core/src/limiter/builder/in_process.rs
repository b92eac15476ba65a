//! Builds limiters whose state lives in this process.

use crate::backend::Backend;
use crate::backend::memory::MemoryBackend;
use crate::limiter::Limiter;
use crate::limiter::builder::MAX_WAITING;
use crate::memory::MemoryStore;
use crate::policy::Enforcement;
use crate::registry::lookup::PolicyLookup;
use crate::registry::{OnUnknownPolicy, PolicyRegistry};
use crate::support::clock::{Clock, ManualClock};

/// Builds a [`Limiter`] whose state lives in this process. Made by [`Limiter::in_process`].
#[derive(Clone, Debug)]
#[must_use = "a limiter exists once `build` has returned it"]
pub struct InProcessBuilder {
    clock: Clock,
    max_keys: usize,
    evicts: bool,
    any_groups: bool,
    max_waiting: usize,
    names: PolicyLookup,
    enforcement: Option<Enforcement>,
}

impl Default for InProcessBuilder {
    fn default() -> Self {
        Self {
            clock: Clock::System,
            max_keys: 1_000_000,
            evicts: false,
            any_groups: false,
            max_waiting: MAX_WAITING,
            names: PolicyLookup::default(),
            enforcement: None,
        }
    }
}

impl InProcessBuilder {
    /// Takes the time from a clock that a test moves. Default: the system's clock.
    pub fn clock(self, clock: &ManualClock) -> Self {
        Self {
            clock: Clock::Manual(clock.clone()),
            ..self
        }
    }

    /// How many keys are kept at most, each under one policy; never more. A new key beyond it is
    /// answered with [`StoreErrorKind::Full`](crate::StoreErrorKind::Full), and charged nothing,
    /// unless one that is idle (its state equals absence) can go in its place: for that, up to a
    /// thousand keys are looked through, once a millisecond at most. Calls on other keys are
    /// decided as ever, and what is idle leaves within as many calls as there are dozens of keys. A
    /// million keys under buckets and funnels take about 80 MB; a key under a window takes 8 bytes
    /// a permit more. Default: 1,000,000.
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { max_keys, ..self }
    }

    /// Evicts a key when the table is [full](Self::max_keys), and stores the new key in its place.
    /// Default: the new key is rejected with [`StoreErrorKind::Full`](crate::StoreErrorKind::Full),
    /// so that clients without a key yet get 503 until a key is idle.
    ///
    /// The victim is the key whose state would soonest equal that of an unused key, among 16 that
    /// are chosen at random; in a table of at most 16 keys it is exact. A new key examines no more
    /// than 16 others, after the search for idle keys that `max_keys` describes.
    ///
    /// An evicted key starts over. So each eviction of a key can admit at most what it had used at
    /// that moment once more, which is at most one quota: a bucket that is evicted e times in a
    /// time T admits at most (e + 1) · capacity + rate · T, a window at most (e + 1) · limit. A
    /// debt, and a penalty's count and block, are forgotten with their key. Whoever can make up as
    /// many keys as the table holds can have keys evicted: limit such keys by something that
    /// clients cannot choose, or keep the default.
    ///
    /// Never evicted are the other keys of the same decision, and permits of
    /// [`Policy::concurrency`](crate::Policy::concurrency): these are counted in a table of their
    /// own, with the same bound, and stay until they are dropped.
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

    /// Allows limits of different groups in one decision, which no cluster could decide. Default:
    /// refused, so that tests in process see what a cluster would refuse.
    pub fn standalone_only(self) -> Self {
        Self {
            any_groups: true,
            ..self
        }
    }

    /// How many calls may wait for permits at once, in all queues together. One more is told so
    /// ([`StoreErrorKind::Overloaded`](crate::StoreErrorKind::Overloaded)). Default: 10,000.
    pub fn max_waiting(self, calls: usize) -> Self {
        Self {
            max_waiting: calls,
            ..self
        }
    }

    names_of_policies!();

    /// Whether decisions are obeyed, until [`Limiter::set_enforcement`] says otherwise. Default:
    /// what the environment variable [`LIMITER_ENFORCEMENT`](Enforcement::ENV) says when the
    /// limiter is built, else [`Enforcement::Enforce`]. A variable that says nothing of the kind is
    /// told in an event, and limits are enforced.
    pub fn enforcement(self, enforcement: Enforcement) -> Self {
        Self {
            enforcement: Some(enforcement),
            ..self
        }
    }

    /// The limiter.
    #[must_use]
    pub fn build(self) -> Limiter {
        let enforcement = self.enforcement.unwrap_or_else(|| {
            let said = Enforcement::from_environment().unwrap_or_else(|error| {
                tracing::error!(%error, "invalid LIMITER_ENFORCEMENT; using enforce");
                None
            });
            said.unwrap_or_default()
        });
        let store = MemoryStore::new(self.clock.clone(), self.max_keys).evicting(self.evicts);
        Limiter::new(
            Backend::Memory(MemoryBackend::new(store, self.max_waiting)),
            self.clock,
            self.any_groups,
            self.max_waiting,
            self.names,
        )
        .with_enforcement(enforcement)
    }
}
