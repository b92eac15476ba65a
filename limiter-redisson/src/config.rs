//! Converts a rate to the policy that implements it.
//!
//! No window implements all rates, because an exact one stores each permit. A new rate up to 10,000
//! permits is a sliding window, and a larger one a counter window. An update keeps the kind of
//! window up to 1,048,576 permits, because the state of one kind is invisible to the other.
//!
//! Invariants: `create` and `update` keep the generation, and with it the usage of the same kind of
//! window; `reset` and `deleted` start a new generation, so that no earlier usage counts. Tests:
//! below for the bounds, and `tests/redisson/rates.rs`.

use std::fmt;
use std::time::Duration;

use limiter_core::registry::{EntryState, PolicyEntry, RateType};
use limiter_core::{ConfigError, Policy, Timestamp, Window};

/// The rate above which a new limiter estimates its window.
const MAX_EXACT: u64 = 10_000;
/// The rate above which an updated limiter estimates its window, which forgets its usage.
const MAX_EXACT_UPDATED: u64 = 1 << 20;
/// The largest rate of an estimated window.
const MAX_RATE: u64 = 1 << 42;

/// The configuration of a rate limiter. See [`RateLimiter::config`](crate::RateLimiter::config).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimiterConfig {
    /// The clients that share the permits.
    pub rate_type: RateType,
    /// The permits in each interval.
    pub rate: u64,
    /// The interval, in whole microseconds.
    pub interval: Duration,
}

impl RateLimiterConfig {
    pub(super) fn from_entry(entry: &PolicyEntry) -> Self {
        Self {
            rate_type: entry.rate_type(),
            rate: entry.policy().quota().whole(),
            interval: entry.policy().window(),
        }
    }
}

/// A valid rate.
#[derive(Clone, Debug)]
pub(super) struct ConfiguredRate {
    rate_type: RateType,
    rate: u64,
    interval: Window,
}

impl ConfiguredRate {
    pub(super) fn new<W>(rate_type: RateType, rate: u64, interval: W) -> Result<Self, ConfigError>
    where
        W: TryInto<Window, Error: Into<ConfigError>>,
    {
        let interval = interval.try_into().map_err(|error| renamed(error.into()))?;
        if rate == 0 {
            // The error of an exact window would name the bound of exact windows.
            let expected = format!("whole permits from 1 to {MAX_RATE}");
            return Err(invalid("rate", &rate, &expected));
        }
        Ok(Self {
            rate_type,
            rate,
            interval,
        })
    }

    /// Returns an entry with this rate, and with the settings and the end of the old entry.
    fn replacing(&self, name: &str, old: Option<&PolicyEntry>) -> Result<PolicyEntry, ConfigError> {
        Ok(self.put(old, self.policy(name, MAX_EXACT)?))
    }

    /// Returns an entry for a name without one. The usage under an ended entry still counts.
    pub(super) fn create(&self, name: &str, found: EntryState<'_>) -> Result<PolicyEntry, ConfigError> {
        let entry = self.replacing(name, None)?;
        Ok(in_generation(entry, found.generation().unwrap_or(0)))
    }

    /// Returns an entry in a new generation, which resets the usage of all clients.
    ///
    /// # Errors
    ///
    /// The existing policy is a concurrency policy.
    pub(super) fn reset(&self, name: &str, found: EntryState<'_>) -> Result<PolicyEntry, ConfigError> {
        if let Some(entry) = found.active() {
            if entry.policy().algorithm_name() == "concurrency" {
                let expected = "a rate policy: the calls under a concurrency policy would fail";
                return Err(invalid("policy", entry.policy(), expected));
            }
        }
        let entry = self.replacing(name, found.active())?;
        match found.generation() {
            Some(generation) => Ok(in_generation(entry, next_generation(generation)?)),
            None => Ok(entry),
        }
    }

    /// Returns an entry with the existing kind of window, which keeps the usage.
    ///
    /// # Errors
    ///
    /// The existing policy is neither a sliding window nor a counter window.
    pub(super) fn update(&self, name: &str, found: EntryState<'_>) -> Result<PolicyEntry, ConfigError> {
        let old = found.active();
        let Some(entry) = old else {
            return self.create(name, found);
        };
        let max_exact = match entry.policy().algorithm_name() {
            "sliding_window" => MAX_EXACT_UPDATED,
            "counter_window" => 0,
            _ => {
                let expected = "a sliding window or a counter window: its rate can be updated";
                return Err(invalid("policy", entry.policy(), expected));
            }
        };
        Ok(self.put(old, self.policy(name, max_exact)?))
    }

    fn put(&self, old: Option<&PolicyEntry>, policy: Policy) -> PolicyEntry {
        let entry = match old {
            Some(old) => {
                let policy = match old.policy().algorithm_name() == policy.algorithm_name() {
                    true => old.policy().with_numbers_of(&policy),
                    // State of one kind of window is invisible to the other kind.
                    false => {
                        (policy.with_options_of(old.policy())).with_generation(old.policy().generation())
                    }
                };
                old.clone().with_policy(policy)
            }
            None => PolicyEntry::new(policy),
        };
        entry.with_rate_type(self.rate_type)
    }

    /// Returns a policy with a sliding window up to the rate `max_exact`, and with a counter window
    /// above it.
    fn policy(&self, name: &str, max_exact: u64) -> Result<Policy, ConfigError> {
        let policy = if self.rate > max_exact {
            Policy::counter_window(name)
                .limit(self.rate)
                .window(self.interval)
                .build()
        } else {
            Policy::sliding_window(name)
                .limit(self.rate)
                .window(self.interval)
                .build()
        };
        policy.map_err(|error| match error {
            ConfigError::Policy { policy, error } => ConfigError::Policy {
                policy,
                error: Box::new(renamed(*error)),
            },
            error => renamed(error),
        })
    }
}

fn in_generation(entry: PolicyEntry, generation: u32) -> PolicyEntry {
    let policy = entry.policy().clone().with_generation(generation);
    entry.with_policy(policy)
}

/// Returns an entry that ends now, in a new generation: a reused name starts without usage.
pub(super) fn deleted(entry: &PolicyEntry, now: Timestamp) -> Result<PolicyEntry, ConfigError> {
    let generation = next_generation(entry.policy().generation())?;
    Ok(in_generation(entry.clone(), generation).until(now))
}

/// Returns the generation after this one.
fn next_generation(generation: u32) -> Result<u32, ConfigError> {
    generation
        .checked_add(1)
        .ok_or_else(|| invalid("generation", &generation, "a generation below the last one"))
}

pub(super) fn invalid(subject: &'static str, value: &dyn fmt::Display, expected: &str) -> ConfigError {
    ConfigError::Invalid {
        field: subject,
        value: value.to_string(),
        expected: expected.to_owned(),
    }
}

/// Replaces the names of a window's settings in an error by the names of a rate's settings.
fn renamed(error: ConfigError) -> ConfigError {
    match error {
        ConfigError::Invalid {
            field,
            value,
            expected,
        } => ConfigError::Invalid {
            field: match field {
                "limit" => "rate",
                "window" => "interval",
                field => field,
            },
            value,
            expected,
        },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::*;

    #[test]
    fn rate_out_of_range_names_valid_rates() {
        let quota = |rate| {
            let entry = ConfiguredRate::new(RateType::Overall, rate, "1m")
                .and_then(|rate| rate.replacing("search", None));
            entry.map(|entry| entry.policy().quota().whole())
        };
        for rate in [0, MAX_RATE + 1] {
            let error = quota(rate).unwrap_err().to_string();
            assert!(
                error.ends_with("expected whole permits from 1 to 4398046511104"),
                "{error}"
            );
        }
        assert_eq!(quota(2_000_000), Ok(2_000_000));
    }
}
