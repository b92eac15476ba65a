//! The methods of one rate limiter: those of Redisson's `RRateLimiter`.
//!
//! The configuration is an entry of the shared registry, which each change edits as a whole;
//! permits are decided by the limiter under the policy of this entry. The rate type selects the
//! key: one for all clients, or the id of the client.
//!
//! Invariants: the end of a configuration is part of the entry, so it cannot be lost between two
//! writes; and a name that is configured for other apps alone is not changed. Tests:
//! `tests/redisson.rs`, which also lists the defects of Redisson that they exclude.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use limiter_core::future::Acquire;
use limiter_core::registry::{EntryEdit, EntryState, PolicyEntry, RateType};
use limiter_core::{ConfigError, Decision, Key, Policy, Rejection, Window};

use crate::client_state::ClientState;
use crate::config::{ConfiguredRate, RateLimiterConfig, deleted, invalid};

/// A rate limiter by name. Cheap to clone. Made by
/// [`Client::rate_limiter`](crate::Client::rate_limiter); see [the crate](crate).
///
/// # Errors
///
/// [`Rejection::NotConfigured`] if the name is not configured, or has [expired](Self::expire);
/// [`Rejection::Unavailable`] if Redis does not reply and the name is unknown. Methods that change
/// the configuration also fail with `Unavailable` if Redis does not reply (the change may have been
/// made) or if the text of its registry has errors.
///
/// # Cancel safety
///
/// Dropping the future of a change leaves it open whether the change was made. The other methods
/// are as cancel safe as the methods of [`Limiter`](limiter_core::Limiter) that they name.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    client: Arc<ClientState>,
    name: Arc<str>,
}

impl RateLimiter {
    pub(super) fn new(client: Arc<ClientState>, name: String) -> Self {
        Self {
            client,
            name: name.into(),
        }
    }

    /// Returns the name of the limiter, and of its policy.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Configures `rate` permits in each `interval` (a [`Duration`], or text such as `"1m"`), if
    /// nothing is configured. Returns whether it did; one of several concurrent calls does.
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for a rate of 0 or above 4,398,046,511,104, for an interval of zero
    /// or above 142 years (50 days for more than 10,000 permits), for a name that is empty or
    /// longer than 256 bytes, for one more than [`Client::MAX_NAMES`](crate::Client::MAX_NAMES),
    /// and for one that is configured for other apps alone; else see [above](Self#errors).
    pub async fn try_set_rate<W>(&self, of: RateType, rate: u64, interval: W) -> Result<bool, Rejection>
    where
        W: TryInto<Window, Error: Into<ConfigError>>,
    {
        let rate = ConfiguredRate::new(of, rate, interval)?;
        self.change(|found| match free(&self.name, found)? {
            EntryState::Active(_) => Ok((false, EntryEdit::Keep)),
            free => Ok((true, put(rate.create(&self.name, free)?))),
        })
        .await
    }

    /// Sets the rate and resets the usage of all clients. Keeps an end that
    /// [`expire`](Self::expire) has set, and the other settings of the policy.
    ///
    /// # Errors
    ///
    /// As [`try_set_rate`](Self::try_set_rate), and [`Rejection::Config`] for a concurrency policy.
    pub async fn set_rate<W>(&self, of: RateType, rate: u64, interval: W) -> Result<(), Rejection>
    where
        W: TryInto<Window, Error: Into<ConfigError>>,
    {
        let rate = ConfiguredRate::new(of, rate, interval)?;
        self.change(|found| Ok(((), put(rate.reset(&self.name, free(&self.name, found)?)?))))
            .await
    }

    /// Sets the rate and keeps the usage, and an end that [`expire`](Self::expire) has set. Without
    /// a configuration, it sets the rate as [`try_set_rate`](Self::try_set_rate) does.
    ///
    /// The kind of window is kept, since the usage of one kind does not count in the other. Only an
    /// exact window becomes an estimated one above 1,048,576 permits, and starts without usage. The
    /// usage under one rate type does not count under the other.
    ///
    /// # Errors
    ///
    /// As [`try_set_rate`](Self::try_set_rate), but the bound of 50 days applies to estimated
    /// windows of every rate, and to no exact window. [`Rejection::Config`] also for a policy that
    /// is neither a sliding nor a counter window.
    pub async fn update_rate<W>(&self, of: RateType, rate: u64, interval: W) -> Result<(), Rejection>
    where
        W: TryInto<Window, Error: Into<ConfigError>>,
    {
        let rate = ConfiguredRate::new(of, rate, interval)?;
        self.change(|found| Ok(((), put(rate.update(&self.name, free(&self.name, found)?)?))))
            .await
    }

    /// Takes this number of permits if all are available now. Returns whether it did.
    /// `limits.named(name).check(key)` also returns the remaining permits and the time to retry.
    ///
    /// # Errors
    ///
    /// [`Rejection::NeverFits`] for more than the rate; [`Rejection::Config`] for 0; else see
    /// [above](Self#errors), and [`Limiter::check`](limiter_core::Limiter::check).
    pub async fn try_acquire(&self, permits: u64) -> Result<bool, Rejection> {
        let (policy, key) = self.policy(permits).await?;
        let decision = self.client.limits.check(&policy, &key).cost(permits).await?;
        is_granted(decision.require())
    }

    /// Waits up to `timeout` for this number of permits. Returns whether it took them. Calls of a
    /// process are served in order. As with Redisson, a call waits until its timeout even if the
    /// permits are due later.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::Limiter;
    /// use limiter_redisson::{Client, RateType};
    /// use std::time::Duration;
    ///
    /// let mail = Client::new(&Limiter::in_process().build()).rate_limiter("mail");
    /// mail.set_rate(RateType::PerClient, 1, "50ms").await?;
    /// assert!(mail.try_acquire(1).await?);
    /// assert!(!mail.try_acquire_within(1, Duration::from_millis(1)).await?);
    /// assert!(mail.try_acquire_within(1, Duration::from_secs(5)).await?);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and
    /// [`Limiter::acquire`](limiter_core::Limiter::acquire) but for `TimedOut`.
    pub async fn try_acquire_within(&self, permits: u64, timeout: Duration) -> Result<bool, Rejection> {
        is_granted(self.acquire(permits).timeout(timeout).await)
    }

    /// Waits for this number of permits, for a minute ([`Acquire::DEFAULT_TIMEOUT`]) or for
    /// [`AcquirePermits::timeout`]. A change of the configuration, its end, and a change of the
    /// override of the key apply to waiting calls, which may change their order then.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and [`Rejection::TimedOut`] when the permits do not
    /// come in time.
    pub fn acquire(&self, permits: u64) -> AcquirePermits<'_> {
        AcquirePermits {
            limiter: self,
            permits,
            timeout: Acquire::DEFAULT_TIMEOUT,
        }
    }

    /// Returns permits, at most those in use. See
    /// [`Limiter::refund`](limiter_core::Limiter::refund).
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for 0; else see [above](Self#errors).
    pub async fn release(&self, permits: u64) -> Result<(), Rejection> {
        let (policy, key) = self.policy(permits).await?;
        self.client.limits.refund(&policy, &key).cost(permits).await
    }

    /// Returns the number of permits that are available now: the whole rate if calls are allowed
    /// without a decision, for example while limits are [off](limiter_core::Enforcement::Off).
    /// Writes nothing.
    ///
    /// # Errors
    ///
    /// See [above](Self#errors), and [`Limiter::peek`](limiter_core::Limiter::peek).
    pub async fn available_permits(&self) -> Result<u64, Rejection> {
        let (policy, key) = self.policy(1).await?;
        let decision = self.client.limits.peek(&policy, &key).await?;
        Ok(match decision.limits() {
            [] if decision.is_allowed() => policy.quota().whole(),
            _ => decision.remaining(),
        })
    }

    /// Returns the configuration, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] if Redis does not reply and the name is unknown.
    pub async fn config(&self) -> Result<Option<RateLimiterConfig>, Rejection> {
        let entry = self.client.registry.refresh(&self.name).await?;
        Ok(entry.map(|entry| RateLimiterConfig::from_entry(&entry)))
    }

    /// Sets the time after which the configuration ends, by this process's clock. Returns whether
    /// there is a configuration. The usage stays until it no longer counts.
    ///
    /// # Errors
    ///
    /// See [above](Self#errors); a name without a configuration returns `false`.
    pub async fn expire(&self, after: Duration) -> Result<bool, Rejection> {
        let end = self.client.registry.now().after(after);
        self.change(|found| match found.active() {
            Some(entry) => Ok((true, put(entry.clone().until(end)))),
            None => Ok((false, EntryEdit::Keep)),
        })
        .await
    }

    /// Removes the end of the configuration. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// As [`expire`](Self::expire).
    pub async fn clear_expire(&self) -> Result<bool, Rejection> {
        self.change(|found| match found.active() {
            Some(entry) if entry.end().is_some() => Ok((true, put(entry.clone().without_end()))),
            _ => Ok((false, EntryEdit::Keep)),
        })
        .await
    }

    /// Returns the time until the configuration ends, or `None` if it has no end or does not exist.
    ///
    /// # Errors
    ///
    /// As [`config`](Self::config).
    pub async fn remaining_ttl(&self) -> Result<Option<Duration>, Rejection> {
        let entry = self.client.registry.refresh(&self.name).await?;
        let now = self.client.registry.now();
        Ok(entry.and_then(|entry| entry.end()).map(|end| end.since(now)))
    }

    /// Returns whether the limiter is configured.
    ///
    /// # Errors
    ///
    /// As [`config`](Self::config).
    pub async fn exists(&self) -> Result<bool, Rejection> {
        Ok(self.client.registry.refresh(&self.name).await?.is_some())
    }

    /// Deletes the configuration and resets the usage of all clients. Returns whether there was a
    /// configuration. A policy of this name in a file or in the program's own registry applies
    /// again.
    ///
    /// # Errors
    ///
    /// As [`expire`](Self::expire), and [`Rejection::Config`] for a configuration that only a file
    /// has, or with Redis only the program. If Redis does not reply between the deletion and the
    /// reset, the usage stays.
    pub async fn delete(&self) -> Result<bool, Rejection> {
        let now = self.client.registry.now();
        let deleted = self
            .change(|found| match found.active() {
                Some(entry) => {
                    let ended = deleted(entry, now)?;
                    Ok((Some(entry.clone()), EntryEdit::Remove(Box::new(ended))))
                }
                None => Ok((None, EntryEdit::Keep)),
            })
            .await?;
        match deleted {
            Some(entry) => self.forget(&entry).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns the policy and the key of a call for this number of permits.
    async fn policy(&self, permits: u64) -> Result<(Policy, Key<'_>), Rejection> {
        if permits == 0 {
            return Err(invalid("permits", &permits, "at least 1").into());
        }
        let entry = self.client.registry.find(&self.name).await?;
        let key = match &entry {
            Some(entry) => self.key(entry)?,
            None => Key::global(),
        };
        // `Limiter::policy` counts unknown names, and applies overrides of single keys.
        let policy = self.client.limits.policy(&self.name, &key)?;
        Ok((policy, key))
    }

    /// Returns the key whose permits this client takes.
    fn key(&self, entry: &PolicyEntry) -> Result<Key<'_>, ConfigError> {
        match entry.rate_type() {
            // Its key would be that of the total usage.
            RateType::PerClient if self.client.id.is_empty() => {
                let expected = "at least one byte, for a rate per client";
                Err(invalid("client id", &self.client.id, expected))
            }
            RateType::PerClient => Ok(Key::from(&*self.client.id)),
            _ => Ok(Key::global()),
        }
    }

    /// Resets the usage under an entry.
    async fn forget(&self, entry: &PolicyEntry) -> Result<(), Rejection> {
        match self.key(entry) {
            Ok(key) => self.client.limits.reset(entry.policy(), key).await,
            // A client without a key has no usage.
            Err(_) => Ok(()),
        }
    }

    /// Waits until the entry of a call or the policy of its key changes after this revision.
    async fn changed(
        &self,
        entry: Option<&PolicyEntry>,
        (policy, key): (&Policy, &Key<'_>),
        mut revision: u64,
    ) {
        let registry = self.client.limits.registry();
        loop {
            revision = registry.changed(revision).await;
            let current = self.client.limits.policy(&self.name, key);
            if registry.get(&self.name).as_deref() != entry || current.ok().as_ref() != Some(policy) {
                return;
            }
        }
    }

    async fn change<T>(
        &self,
        change: impl FnMut(EntryState<'_>) -> Result<(T, EntryEdit), ConfigError>,
    ) -> Result<T, Rejection> {
        self.client.registry.edit(&self.name, change).await
    }
}

/// Returns the state if this app may set a rate under the name.
fn free<'a>(name: &str, found: EntryState<'a>) -> Result<EntryState<'a>, ConfigError> {
    match found {
        EntryState::OtherApps => {
            let expected = "one that is not configured for other apps alone, as this one is";
            Err(invalid("name of a rate limiter", &name, expected))
        }
        found => Ok(found),
    }
}

fn put(entry: PolicyEntry) -> EntryEdit {
    EntryEdit::Put(Box::new(entry))
}

/// Converts a denial to `false`.
fn is_granted<T>(answer: Result<T, Rejection>) -> Result<bool, Rejection> {
    match answer {
        Ok(_) => Ok(true),
        Err(rejection) if rejection.is_limited() => Ok(false),
        Err(rejection) => Err(rejection),
    }
}

/// Acquires permits when it is awaited. Made by [`RateLimiter::acquire`].
#[derive(Clone, Debug)]
#[must_use = "permits are acquired only when this is awaited"]
pub struct AcquirePermits<'a> {
    limiter: &'a RateLimiter,
    permits: u64,
    timeout: Duration,
}

impl AcquirePermits<'_> {
    /// Sets the total time to wait. Default: [`Acquire::DEFAULT_TIMEOUT`]. A wait of zero is a
    /// [`try_acquire`](RateLimiter::try_acquire).
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn timed_out(&self, decision: Option<Box<Decision>>) -> Rejection {
        let limit = self.timeout;
        Rejection::TimedOut { decision, limit }
    }
}

impl<'a> IntoFuture for AcquirePermits<'a> {
    type Output = Result<(), Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let ClientState { limits, registry, .. } = &*self.limiter.client;
            let began = registry.now();
            loop {
                // An unknown name is read before the revision, which the read changes.
                registry.find(&self.limiter.name).await?;
                let revision = limits.registry().revision();
                let entry = limits.registry().get(&self.limiter.name);
                let (policy, key) = self.limiter.policy(self.permits).await?;
                let now = registry.now();
                let left = self.timeout.saturating_sub(now.since(began));
                // Until the end of the configuration, which is no change of the registry.
                let end = entry.as_ref().and_then(|entry| entry.end());
                let attempt = end.map_or(left, |end| left.min(end.since(now)));
                let acquire = limits.acquire(&policy, &key).cost(self.permits);
                let mut acquire = acquire.timeout(attempt).into_future();
                let mut changed = pin!(self.limiter.changed(entry.as_deref(), (&policy, &key), revision));
                let acquired = poll_fn(|context| match changed.as_mut().poll(context) {
                    // A call that leaves the queue is not charged.
                    Poll::Ready(()) => Poll::Ready(None),
                    Poll::Pending => acquire.as_mut().poll(context).map(Some),
                });
                match acquired.await {
                    None => {}
                    // The configuration ends before the timeout. A block ends a wait at once.
                    Some(Err(Rejection::TimedOut { decision, .. }))
                        if attempt < left && !decision.as_ref().is_some_and(|of| of.is_blocked()) => {}
                    Some(Err(Rejection::Limited(_))) if attempt.is_zero() && !left.is_zero() => {}
                    // The last attempt had no time left, so it did not wait.
                    Some(Err(Rejection::Limited(denied))) if left.is_zero() && !self.timeout.is_zero() => {
                        return Err(self.timed_out(Some(denied)));
                    }
                    Some(Err(Rejection::TimedOut { decision, .. })) => return Err(self.timed_out(decision)),
                    Some(acquired) => return acquired.map(drop),
                }
            }
        })
    }
}
