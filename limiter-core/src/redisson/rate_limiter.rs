//! A rate limiter by name, method by method.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::key::Key;
use crate::policy::{Policy, Window};
use crate::redisson::client::Client;
use crate::redisson::config::{ConfiguredRate, RateLimiterConfig, deleted};
use crate::redisson::lookup::Lookup;
use crate::registry::RateType;
use crate::registry::{Edit, PolicyEntry};
use crate::waiting::Acquire;

/// A rate limiter by name. Cheap to clone. Made by [`Client::rate_limiter`]; see [the
/// module](super).
///
/// # Errors
///
/// What is not configured, or has [expired](Self::expire), is [`Rejection::NotConfigured`]; where
/// Redis gives no answer and the name is not known, [`Rejection::Unavailable`]. Methods that change
/// what is configured fail with `Unavailable`, too, when Redis gives no answer (it may be changed
/// all the same), and when its registry has mistakes.
///
/// # Cancel safety
///
/// A change that is dropped while Redis is asked is made or not. The others are as cancel safe as
/// the methods of [`Limiter`](crate::Limiter) that they name.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    client: Client,
    name: Arc<str>,
}

impl RateLimiter {
    pub(super) fn new(client: Client, name: String) -> Self {
        Self {
            client,
            name: name.into(),
        }
    }

    /// Its name, and that of its policy.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Configures `rate` permits in each `interval` (a [`Duration`], or text such as `"1m"`), if
    /// nothing is configured: whether it did. Of several that do so at the same time, one.
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for a rate of 0 or above 4,398,046,511,104, for an interval of nothing
    /// or above 142 years (50 days for more than 10,000 permits), for a name that is empty or
    /// longer than 256 bytes, for one more than [`Client::MAX_NAMES`], and for one that is
    /// configured for other apps alone; else see [above](Self#errors).
    pub async fn try_set_rate<W>(&self, of: RateType, rate: u64, interval: W) -> Result<bool, Rejection>
    where
        W: TryInto<Window, Error: Into<ConfigError>>,
    {
        let rate = ConfiguredRate::new(of, rate, interval)?;
        self.change(|found| match found.free(&self.name)? {
            Lookup::Configured(_) => Ok((false, Edit::Keep)),
            free => Ok((true, put(rate.anew(&self.name, free)?))),
        })
        .await
    }

    /// Configures this rate, in place of another one, and forgets what was used, by all clients. An
    /// end that [`expire`](Self::expire) has set stays.
    ///
    /// # Errors
    ///
    /// As [`try_set_rate`](Self::try_set_rate).
    pub async fn set_rate<W>(&self, of: RateType, rate: u64, interval: W) -> Result<(), Rejection>
    where
        W: TryInto<Window, Error: Into<ConfigError>>,
    {
        let rate = ConfiguredRate::new(of, rate, interval)?;
        self.change(|found| Ok(((), put(rate.afresh(&self.name, found.free(&self.name)?)?))))
            .await
    }

    /// Configures this rate, in place of another one, and keeps what was used. An end that
    /// [`expire`](Self::expire) has set stays.
    ///
    /// Nothing can be kept where an exact window gets more than 1,048,576 permits, or the rate's
    /// type becomes another.
    ///
    /// # Errors
    ///
    /// As [`try_set_rate`](Self::try_set_rate), and [`Rejection::Config`] for a policy that is no
    /// sliding or counter window.
    pub async fn update_rate<W>(&self, of: RateType, rate: u64, interval: W) -> Result<(), Rejection>
    where
        W: TryInto<Window, Error: Into<ConfigError>>,
    {
        let rate = ConfiguredRate::new(of, rate, interval)?;
        self.change(|found| Ok(((), put(rate.updating(&self.name, found.free(&self.name)?)?))))
            .await
    }

    /// Takes so many permits if all of them are there now: whether they were.
    /// `limits.named(name).check(key)` is the same, and tells what is left and when to come back.
    ///
    /// # Errors
    ///
    /// [`Rejection::NeverFits`] for more than the rate; [`Rejection::Config`] for 0; else see
    /// [above](Self#errors), and [`Limiter::check`](crate::Limiter::check).
    pub async fn try_acquire(&self, permits: u64) -> Result<bool, Rejection> {
        let (policy, key) = self.policy(permits).await?;
        let decision = self.client.limits().check(&policy, &key).cost(permits).await?;
        is_granted(decision.require())
    }

    /// Waits for so many permits, up to `timeout` in all: whether they came. First come, first
    /// served in a process. As with Redisson the time is waited for to its end, though the permits
    /// be due later.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::Limiter;
    /// use limiter_core::redisson::{Client, RateType};
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
    /// As [`try_acquire`](Self::try_acquire), and [`Limiter::acquire`](crate::Limiter::acquire) but
    /// for `TimedOut`.
    pub async fn try_acquire_within(&self, permits: u64, timeout: Duration) -> Result<bool, Rejection> {
        is_granted(self.acquire(permits).timeout(timeout).await)
    }

    /// Waits for so many permits: for a minute ([`Acquire::DEFAULT_TIMEOUT`]), or what
    /// [`AcquirePermits::timeout`] says.
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

    /// Gives so many permits back, and no more than are used. See
    /// [`Limiter::refund`](crate::Limiter::refund).
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for 0; else see [above](Self#errors).
    pub async fn release(&self, permits: u64) -> Result<(), Rejection> {
        let (policy, key) = self.policy(permits).await?;
        self.client.limits().refund(&policy, &key).cost(permits).await
    }

    /// How many permits could be taken now. Writes nothing.
    ///
    /// # Errors
    ///
    /// See [above](Self#errors), and [`Limiter::peek`](crate::Limiter::peek).
    pub async fn available_permits(&self) -> Result<u64, Rejection> {
        let (policy, key) = self.policy(1).await?;
        Ok(self.client.limits().peek(&policy, &key).await?.remaining())
    }

    /// How it is configured; `None` where it is not.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when Redis gives no answer and nothing is known.
    pub async fn config(&self) -> Result<Option<RateLimiterConfig>, Rejection> {
        let entry = self.client.current(&self.name).await?;
        Ok(entry.map(|entry| RateLimiterConfig::from_entry(&entry)))
    }

    /// Has the configuration end after so long, by this process's clock, in place of an end that
    /// was set before: whether there is one. What was used stays, and goes when it counts no more.
    ///
    /// # Errors
    ///
    /// See [above](Self#errors); what is not configured is `false`.
    pub async fn expire(&self, after: Duration) -> Result<bool, Rejection> {
        let end = self.client.limits().calendar().after(after);
        self.change(|found| match found.configured() {
            Some(entry) => Ok((true, put(entry.clone().until(end)))),
            None => Ok((false, Edit::Keep)),
        })
        .await
    }

    /// Has the configuration not end: whether there was an end.
    ///
    /// # Errors
    ///
    /// As [`expire`](Self::expire).
    pub async fn clear_expire(&self) -> Result<bool, Rejection> {
        self.change(|found| match found.configured() {
            Some(entry) if entry.end().is_some() => Ok((true, put(entry.clone().with_end(None)))),
            _ => Ok((false, Edit::Keep)),
        })
        .await
    }

    /// The time until the configuration ends; `None` where it does not, or there is none.
    ///
    /// # Errors
    ///
    /// As [`config`](Self::config).
    pub async fn remaining_ttl(&self) -> Result<Option<Duration>, Rejection> {
        let entry = self.client.current(&self.name).await?;
        let now = self.client.limits().calendar();
        Ok(entry.and_then(|entry| entry.end()).map(|end| end.since(now)))
    }

    /// Whether it is configured.
    ///
    /// # Errors
    ///
    /// As [`config`](Self::config).
    pub async fn exists(&self) -> Result<bool, Rejection> {
        Ok(self.client.current(&self.name).await?.is_some())
    }

    /// Takes the configuration away, and forgets what was used, by all clients: whether there was
    /// one. Where a file or the program's own registry names the policy besides Redis, that counts
    /// again.
    ///
    /// # Errors
    ///
    /// As [`expire`](Self::expire), and [`Rejection::Config`] for what a file alone says, or with
    /// Redis the program alone. Where Redis gives no answer between the two, what was used counts.
    pub async fn delete(&self) -> Result<bool, Rejection> {
        let now = self.client.limits().calendar();
        let deleted = self
            .change(|found| match found.configured() {
                Some(entry) => {
                    let ended = deleted(entry, now)?;
                    Ok((Some(entry.clone()), Edit::Remove(Box::new(ended))))
                }
                None => Ok((None, Edit::Keep)),
            })
            .await?;
        match deleted {
            Some(entry) => self.forget(&entry).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// By what a call for so many permits is decided.
    async fn policy(&self, permits: u64) -> Result<(Policy, Key<'_>), Rejection> {
        if permits == 0 {
            return Err(ConfigError::invalid("permits", permits, "at least 1").into());
        }
        let entry = self.client.find_entry(&self.name).await?;
        let key = entry.as_deref().map_or(Key::global(), |entry| self.key(entry));
        // Which counts those who ask for what is not there, and knows of quotas of single keys.
        let policy = self.client.limits().policy(&self.name, &key)?;
        Ok((policy, key))
    }

    /// Whose permits this client takes.
    fn key(&self, entry: &PolicyEntry) -> Key<'_> {
        match entry.rate_type() {
            RateType::Overall => Key::global(),
            RateType::PerClient => Key::from(self.client.id()),
        }
    }

    /// Forgets what was used under an entry.
    async fn forget(&self, entry: &PolicyEntry) -> Result<(), Rejection> {
        self.client.limits().reset(entry.policy(), self.key(entry)).await
    }

    async fn change<T>(
        &self,
        change: impl FnMut(Lookup<'_>) -> Result<(T, Edit), ConfigError>,
    ) -> Result<T, Rejection> {
        self.client.change(&self.name, change).await
    }
}

fn put(entry: PolicyEntry) -> Edit {
    Edit::Put(Box::new(entry))
}

/// Being limited is an answer here.
fn is_granted<T>(answer: Result<T, Rejection>) -> Result<bool, Rejection> {
    match answer {
        Ok(_) => Ok(true),
        Err(rejection) if rejection.is_limited() => Ok(false),
        Err(rejection) => Err(rejection),
    }
}

/// A wait for permits, not yet begun: await it. Made by [`RateLimiter::acquire`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked or charged until this is awaited"]
pub struct AcquirePermits<'a> {
    limiter: &'a RateLimiter,
    permits: u64,
    timeout: Duration,
}

impl AcquirePermits<'_> {
    /// How long to wait in total. Default: [`Acquire::DEFAULT_TIMEOUT`]. A wait of zero is a
    /// [`try_acquire`](RateLimiter::try_acquire).
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

impl<'a> IntoFuture for AcquirePermits<'a> {
    type Output = Result<(), Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let limits = self.limiter.client.limits();
            let began = limits.now();
            let (policy, key) = self.limiter.policy(self.permits).await?;
            let left = self.timeout.saturating_sub(limits.now().since(began));
            limits
                .acquire(&policy, &key)
                .cost(self.permits)
                .timeout(left)
                .await?;
            Ok(())
        })
    }
}
