//! What a rate is, and the policy that it becomes.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::{Algorithm, MAX_COUNTED, Policy, Window};
use crate::redisson::lookup::Lookup;
use crate::registry::{PolicyEntry, RateType, next_generation};
use crate::units::Timestamp;

/// The rate above which a window is estimated, unless an exact one is there already.
const MOST_EXACT: u64 = 10_000;
/// The rate above which no window is exact.
const MOST_EXACT_AT_ALL: u64 = 1 << 20;

/// How a rate limiter is configured. See
/// [`RateLimiter::config`](crate::redisson::RateLimiter::config).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimiterConfig {
    /// Whose permits are counted.
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

/// A rate that can be had.
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
            // A window that is exact would tell of its own bound, which is no bound of rates.
            let expected = format!("whole permits from 1 to {MAX_COUNTED}");
            return Err(ConfigError::invalid("rate", rate, expected));
        }
        Ok(Self {
            rate_type,
            rate,
            interval,
        })
    }

    /// An entry of the registry with this rate in place of another one, whose settings and end it
    /// keeps.
    fn replacing(&self, name: &str, old: Option<&PolicyEntry>) -> Result<PolicyEntry, ConfigError> {
        self.put(old, self.policy(name, self.rate > MOST_EXACT)?)
    }

    /// An entry where none is. What was used counts still, under one that has ended.
    pub(super) fn anew(&self, name: &str, found: Lookup<'_>) -> Result<PolicyEntry, ConfigError> {
        let entry = self.replacing(name, None)?;
        Ok(in_generation(entry, found.generation().unwrap_or(0)))
    }

    /// The same, for which everybody starts afresh, all other clients included: with another
    /// generation of states.
    pub(super) fn afresh(&self, name: &str, found: Lookup<'_>) -> Result<PolicyEntry, ConfigError> {
        let entry = self.replacing(name, found.configured())?;
        match found.generation() {
            Some(generation) => Ok(in_generation(entry, next_generation(generation)?)),
            None => Ok(entry),
        }
    }

    /// The same, by the kind of window that is there, where state is.
    ///
    /// # Errors
    ///
    /// Also for a policy that is no window of these kinds, of which nothing could be kept.
    pub(super) fn updating(&self, name: &str, found: Lookup<'_>) -> Result<PolicyEntry, ConfigError> {
        let old = found.configured();
        let Some(entry) = old else {
            return self.anew(name, found);
        };
        let is_counted = match entry.policy().algorithm() {
            Algorithm::SlidingWindow(_) => self.rate > MOST_EXACT_AT_ALL,
            Algorithm::CounterWindow(_) => true,
            _ => {
                let expected = "a sliding window or a counter window, whose rate can be updated";
                return Err(ConfigError::invalid("policy", entry.policy(), expected));
            }
        };
        self.put(old, self.policy(name, is_counted)?)
    }

    fn put(&self, old: Option<&PolicyEntry>, policy: Policy) -> Result<PolicyEntry, ConfigError> {
        let entry = match old {
            Some(old) => {
                let policy = match old.policy().algorithm().code() == policy.algorithm().code() {
                    true => old.policy().with_numbers_of(&policy),
                    // What another kind of window has is not found by this one.
                    false => policy.with_generation(old.policy().generation()),
                };
                old.clone().with_policy(policy)
            }
            None => PolicyEntry::new(policy),
        };
        Ok(entry.with_rate_type(self.rate_type))
    }

    fn policy(&self, name: &str, is_counted: bool) -> Result<Policy, ConfigError> {
        let policy = if is_counted {
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

/// An entry that ends now, and whose name is used afresh: no client finds what was used under it.
pub(super) fn deleted(entry: &PolicyEntry, now: Timestamp) -> Result<PolicyEntry, ConfigError> {
    let generation = next_generation(entry.policy().generation())?;
    Ok(in_generation(entry.clone(), generation).until(now))
}

/// A mistake by the names that values have here.
fn renamed(error: ConfigError) -> ConfigError {
    match error {
        ConfigError::Invalid {
            what,
            value,
            expected,
        } => ConfigError::Invalid {
            what: match what {
                "limit" => "rate",
                "window" => "interval",
                what => what,
            },
            value,
            expected,
        },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use crate::redisson::config::*;

    #[test]
    fn a_rate_that_is_out_of_range_is_told_which_rates_there_are() {
        let told = |rate| {
            let made = ConfiguredRate::new(RateType::Overall, rate, "1m")
                .and_then(|rate| rate.replacing("search", None));
            made.map(|entry| entry.policy().quota().whole())
        };
        for rate in [0, MAX_COUNTED + 1] {
            let error = told(rate).unwrap_err().to_string();
            assert!(
                error.ends_with("expected whole permits from 1 to 4398046511104"),
                "{error}"
            );
        }
        assert_eq!(told(2_000_000), Ok(2_000_000));
    }
}
