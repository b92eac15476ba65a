//! Parameters of token buckets and funnels.
//!
//! Both algorithms have a capacity and a rate, and only a funnel can be paced. The capacity is
//! bounded such that neither the level nor the time until it is full exceeds the exact arithmetic
//! of the Lua script. Tests: `policy/builder/tests.rs`, `tests/contract/paced.rs`.

use crate::error::ConfigError;
use crate::policy::builder::PolicyBuilder;
use crate::policy::{Algorithm, Funnel, Policy, Rate};
use crate::units::{Amount, MAX_EXACT};

/// Parameters of a token bucket or a funnel: a capacity and a rate.
#[derive(Clone, Debug)]
pub struct LevelParams {
    capacity: Option<Amount>,
    rate: Option<Rate>,
    paced: bool,
    algorithm: fn(u64, Rate) -> Algorithm,
}

impl PolicyBuilder<LevelParams> {
    pub(in crate::policy) fn level(name: String, algorithm: fn(u64, Rate) -> Algorithm) -> Self {
        Self::new(
            name,
            LevelParams {
                capacity: None,
                rate: None,
                paced: false,
                algorithm,
            },
        )
    }

    /// Sets the largest cost that can be admitted at once: the tokens of a full bucket, the
    /// capacity of a funnel. Required.
    pub fn capacity(mut self, capacity: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.capacity = self.parse(capacity);
        self
    }

    /// Sets the rate at which tokens are refilled or the funnel drains: a number (per second), text
    /// such as `"100/min"`, or a [`Rate`]. Required.
    pub fn rate(mut self, rate: impl TryInto<Rate, Error: Into<ConfigError>>) -> Self {
        self.shape.rate = self.parse(rate);
        self
    }

    /// Assigns a delay ([`Decision::delay`](crate::Decision::delay)) to each call that a funnel
    /// admits: the time until all earlier calls have drained. Calls that wait for their delay leave
    /// evenly, at the funnel's rate. The capacity bounds the queue: calls beyond it are denied.
    /// Default: no delay.
    ///
    /// After [`Limiter::check`](crate::Limiter::check) and
    /// [`Limiter::admit`](crate::Limiter::admit) the caller waits: a caller that gives up meanwhile
    /// has been charged, and [`Limiter::refund`](crate::Limiter::refund) lets later calls leave
    /// earlier. [`Limiter::acquire`](crate::Limiter::acquire), an annotated function and a layer
    /// wait for the delay, and refund a call that is cancelled meanwhile or ended by a shutdown of
    /// the limiter. In [shadow mode](crate::Enforcement::Shadow) they do not wait. A paced funnel
    /// cannot be leased ([`lease`](Self::lease)), and a token bucket cannot be paced.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let policy = Policy::funnel("mail").capacity(3).rate("2/s").paced().build()?;
    /// for delay in [0, 500, 1_000] {
    ///     let decision = limits.check(&policy, "ann").await?;
    ///     assert_eq!(decision.delay(), Duration::from_millis(delay));
    /// }
    /// let denied = limits.check(&policy, "ann").await?;
    /// assert_eq!(denied.retry_after(), Some(Duration::from_millis(500)));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn paced(mut self) -> Self {
        self.shape.paced = true;
        self
    }

    /// Builds the policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(self) -> Result<Policy, ConfigError> {
        self.finish(
            |LevelParams {
                 capacity,
                 rate,
                 paced,
                 algorithm,
             }| {
                let (capacity, rate) = level(capacity, rate)?;
                match algorithm(capacity, rate) {
                    Algorithm::Funnel(funnel) => Ok(Algorithm::Funnel(Funnel { paced, ..funnel })),
                    _ if paced => {
                        let expected = "a funnel, because pacing needs the level that has not drained";
                        Err(ConfigError::invalid("paced policy", "token bucket", expected))
                    }
                    bucket => Ok(bucket),
                }
            },
        )
    }
}

/// Validates a capacity and a rate for the exact arithmetic.
fn level(capacity: Option<Amount>, rate: Option<Rate>) -> Result<(u64, Rate), ConfigError> {
    let capacity = capacity.ok_or(ConfigError::Missing { field: "capacity" })?;
    let rate = rate.ok_or(ConfigError::Missing { field: "rate" })?;
    let thousandths = u64::try_from(capacity.as_thousandths()).unwrap_or(u64::MAX);
    if thousandths == 0 || thousandths > MAX_EXACT {
        let expected = format!(
            "more than zero and at most {}",
            Amount::from_thousandths(MAX_EXACT)
        );
        return Err(ConfigError::invalid("capacity", capacity, expected));
    }
    if rate.time_for(thousandths, 0) >= MAX_EXACT {
        let expected = format!("a capacity that {rate} fills within 142 years");
        return Err(ConfigError::invalid("capacity", capacity, expected));
    }
    Ok((thousandths, rate))
}
