//! The parameters of a limit on what is in flight.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::{Algorithm, Policy, PolicyBuilder};
use crate::units::Amount;

/// As many members a set in Redis then has.
const MAX_IN_FLIGHT: u64 = 1 << 20;
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
const LONGEST_LEASE: Duration = Duration::from_secs(86_400);

/// Admits while less than `max` is held; what is held comes back when it is given back, or when its
/// holder is not heard of for a lease.
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

/// What a limit on what is in flight needs: how much may be.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyParams {
    max: Option<Amount>,
}

impl Policy {
    /// For how long a permit of [`concurrency`](Self::concurrency) outlives its holder, unless the
    /// policy says otherwise.
    pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

    /// At most so many at once: a permit is held from
    /// [`Limiter::acquire_concurrency`](crate::Limiter::acquire_concurrency) until it is dropped,
    /// in all processes together. What a process held that died comes back after the
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

    /// Whether it limits what is in flight.
    pub(crate) fn is_concurrency(&self) -> bool {
        matches!(self.algorithm(), Algorithm::Concurrency(_))
    }
}

impl PolicyBuilder<ConcurrencyParams> {
    /// How many permits are held at once at most, a whole number from 1 to 1,048,576. Required.
    pub fn max(mut self, max: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.max = self.parse(max);
        self
    }

    /// The policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(mut self) -> Result<Policy, ConfigError> {
        let lease = *self.lease.get_or_insert(Policy::DEFAULT_LEASE);
        self.finish(|ConcurrencyParams { max }| {
            let max = max.ok_or(ConfigError::Missing { what: "max" })?;
            if !max.is_whole() || max.is_zero() || max > Amount::from(MAX_IN_FLIGHT) {
                let expected = format!("whole permits from 1 to {MAX_IN_FLIGHT}");
                return Err(ConfigError::invalid("max", max, expected));
            }
            let millis = u32::try_from(lease.as_millis()).ok();
            match millis.filter(|_| (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease)) {
                Some(lease_ms) if Duration::from_millis(lease_ms.into()) == lease => {
                    let max = max.whole();
                    Ok(Algorithm::Concurrency(Concurrency { max, lease_ms }))
                }
                _ => Err(ConfigError::invalid(
                    "lease",
                    format_args!("{lease:?}"),
                    "whole milliseconds from 100 ms to a day, for a permit that is held",
                )),
            }
        })
    }
}

/// Shown as `4 at once, for 30s at most after their holder died`.
impl std::fmt::Display for Concurrency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at once, each leased for {:?}", self.max, self.lease())
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::concurrency::*;

    #[test]
    fn a_policy_of_concurrency_that_cannot_hold_is_refused_by_name() {
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
    fn a_policy_of_concurrency_tells_what_it_is() {
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
