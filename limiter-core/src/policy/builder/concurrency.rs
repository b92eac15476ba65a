//! Parameters of a concurrency limit.
//!
//! The maximum bounds the size of the set of leases in Redis, and leases are whole milliseconds.
//! Tests: below, and `tests/contract/concurrency.rs`.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::builder::PolicyBuilder;
use crate::policy::{Algorithm, Concurrency, Policy};
use crate::units::Amount;

/// Maximum number of members of the set in Redis.
const MAX_PERMITS: u64 = 1 << 20;
const MIN_LEASE: Duration = Duration::from_millis(100);
const MAX_LEASE: Duration = Duration::from_secs(86_400);

/// Parameters of a concurrency limit: the maximum number of permits.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyParams {
    max: Option<Amount>,
}

impl PolicyBuilder<ConcurrencyParams> {
    pub(in crate::policy) fn concurrency(name: String) -> Self {
        Self::new(name, ConcurrencyParams::default())
    }

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

#[cfg(test)]
mod tests {
    use super::*;

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
