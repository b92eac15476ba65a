//! Parameters of a concurrency limit.
//!
//! The limit has a maximum number of held permits and the length of a lease, after which the permit
//! of a crashed holder is available again. The maximum bounds the size of the set of leases in
//! Redis, and leases are whole milliseconds. Tests: below, and `tests/contract/concurrency.rs`.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::{Algorithm, Policy, PolicyBuilder};
use crate::units::Amount;

/// Maximum number of members of the set in Redis.
const MAX_PERMITS: u64 = 1 << 20;
const MIN_LEASE: Duration = Duration::from_millis(100);
const MAX_LEASE: Duration = Duration::from_secs(86_400);

/// Admits while fewer than `max` permits are held; a permit is available again when it is released
/// or when its lease expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concurrency {
    /// Whole permits.
    pub(crate) max: u64,
    /// Whole milliseconds.
    pub(crate) lease_ms: u32,
}

impl Concurrency {
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.into())
    }

    pub(crate) fn lease_micros(&self) -> u64 {
        u64::from(self.lease_ms) * 1_000
    }
}

/// Parameters of a concurrency limit: the maximum number of permits.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyParams {
    max: Option<Amount>,
}

impl Policy {
    /// Default time for which a permit of [`concurrency`](Self::concurrency) outlives its holder.
    pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

    /// Limits the number of permits held at once in all processes together: a permit is held from
    /// [`Limiter::acquire_concurrency`](crate::Limiter::acquire_concurrency) until it is dropped.
    /// The permits of a crashed process are available again after the
    /// [`lease`](PolicyBuilder::lease).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let export = Policy::concurrency("export").max(2).lease("30s").build()?;
    ///
    /// let first = limits.acquire_concurrency(&export, "tenant:3").await?;
    /// let second = limits.acquire_concurrency(&export, "tenant:3").await?;
    /// assert!(limits.acquire_concurrency(&export, "tenant:3").await.unwrap_err().is_limited());
    /// drop(first);
    /// assert!(limits.acquire_concurrency(&export, "tenant:3").await.is_ok());
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn concurrency(name: impl Into<String>) -> PolicyBuilder<ConcurrencyParams> {
        PolicyBuilder::new(name.into(), ConcurrencyParams::default())
    }

    /// True for a concurrency policy.
    pub(crate) fn is_concurrency(&self) -> bool {
        matches!(self.algorithm(), Algorithm::Concurrency(_))
    }
}

impl PolicyBuilder<ConcurrencyParams> {
    /// Sets the maximum number of permits held at once, a whole number from 1 to 1,048,576.
    /// Required.
    pub fn max(mut self, max: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.max = self.parse(max);
        self
    }

    /// Builds the policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(mut self) -> Result<Policy, ConfigError> {
        let lease = *self.lease.get_or_insert(Policy::DEFAULT_LEASE);
        self.finish(|ConcurrencyParams { max }| {
            let max = max.ok_or(ConfigError::Missing { field: "max" })?;
            if !max.is_whole() || max.is_zero() || max > Amount::from(MAX_PERMITS) {
                let expected = format!("whole permits from 1 to {MAX_PERMITS}");
                return Err(ConfigError::invalid("max", max, expected));
            }
            let millis = u32::try_from(lease.as_millis()).ok();
            match millis.filter(|_| (MIN_LEASE..=MAX_LEASE).contains(&lease)) {
                Some(lease_ms) if Duration::from_millis(lease_ms.into()) == lease => {
                    let max = max.whole();
                    Ok(Algorithm::Concurrency(Concurrency { max, lease_ms }))
                }
                _ => Err(ConfigError::invalid(
                    "lease",
                    format_args!("{lease:?}"),
                    "whole milliseconds from 100 ms to a day, for a concurrency permit",
                )),
            }
        })
    }
}

/// Shown as `4 at once, each leased for 30s`.
impl std::fmt::Display for Concurrency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at once, each leased for {:?}", self.max, self.lease())
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::concurrency::*;

    #[test]
    fn invalid_concurrency_policy_is_named() {
        let built = |max: f64, lease: &str| Policy::concurrency("p").max(max).lease(lease).build();
        for (policy, message) in [
            (Policy::concurrency("p").build(), "max is missing"),
            (built(0.0, "1s"), "max is `0`"),
            (built(1.5, "1s"), "max is `1.5`"),
            (built(1_048_577.0, "1s"), "max is `1048577`"),
            (built(1.0, "99ms"), "lease is `99ms`, expected whole milliseconds"),
            (built(1.0, "86400001ms"), "lease is `86400.001s`"),
            (built(1.0, "100001us"), "lease is `100.001ms`"),
            (built(1.0, "soon"), "duration is `soon`"),
        ] {
            let error = policy.expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn display_describes_concurrency_policy() {
        let policy = Policy::concurrency("export").max(4).build().unwrap();
        assert_eq!(policy.quota(), Amount::from(4_u32));
        assert_eq!(policy.lease(), Some(Policy::DEFAULT_LEASE));
        assert_eq!(policy.window(), Policy::DEFAULT_LEASE);
        assert_eq!(
            policy.to_string(),
            "export (concurrency: 4 at once, each leased for 30s)"
        );
    }
}
