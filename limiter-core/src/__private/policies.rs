//! The policies of the attributes.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::{OnStoreFailure, Policy, PolicyBuilder, Rate};
use crate::units::Amount;

/// A policy, or why there is none.
pub type BuiltPolicy = Result<Policy, ConfigError>;

/// What an attribute says about its policy beside the algorithm's own parameters.
#[derive(Debug)]
pub struct PolicyOptions {
    /// The deadline, where one is given.
    pub deadline: Option<Result<Duration, ConfigError>>,
    /// The answer when the store is out, where one is given.
    pub on_store_failure: Option<OnStoreFailure>,
    /// For how long permits are borrowed, where they are.
    pub lease: Option<Result<Duration, ConfigError>>,
}

impl PolicyOptions {
    pub(super) fn apply<S>(&self, mut builder: PolicyBuilder<S>) -> Result<PolicyBuilder<S>, ConfigError> {
        if let Some(deadline) = &self.deadline {
            builder = builder.deadline(deadline.clone()?);
        }
        if let Some(answer) = self.on_store_failure {
            builder = builder.on_store_failure(answer);
        }
        if let Some(lease) = &self.lease {
            builder = builder.lease(lease.clone()?);
        }
        Ok(builder)
    }
}

/// The policy of a `#[token_limiter]`.
///
/// # Errors
///
/// The first parameter that cannot be used.
pub fn token_bucket(
    name: &str,
    capacity: Result<Amount, ConfigError>,
    rate: Result<Rate, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::token_bucket(name).capacity(capacity?).rate(rate?);
    options.apply(builder)?.build()
}

/// The policy of a `#[funnel_limiter]`.
///
/// # Errors
///
/// The first parameter that cannot be used.
pub fn funnel(
    name: &str,
    capacity: Result<Amount, ConfigError>,
    rate: Result<Rate, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::funnel(name).capacity(capacity?).rate(rate?);
    options.apply(builder)?.build()
}

/// The policy of a `#[window_limiter]`.
///
/// # Errors
///
/// The first parameter that cannot be used.
pub fn sliding_window(
    name: &str,
    limit: Result<Amount, ConfigError>,
    window: Result<Duration, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::sliding_window(name).limit(limit?).window(window?);
    options.apply(builder)?.build()
}

/// The same where the limit is a constant, whose value the attribute did not see, and
/// `kind = exact` is not written out.
///
/// # Errors
///
/// The first parameter that cannot be used; a limit that is large enough to be meant otherwise.
pub fn unspelled_window(
    name: &str,
    limit: Result<Amount, ConfigError>,
    window: Result<Duration, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    const MOST: u32 = 10_000;
    let limit = limit?;
    if limit > Amount::from(MOST) {
        let expected = format!(
            "at most {MOST}, since an exact window takes 8 bytes a permit for every key: write `kind = exact` if that is \
             meant, or `kind = counter`"
        );
        return Err(ConfigError::invalid("limit", limit, expected));
    }
    sliding_window(name, Ok(limit), window, options)
}

/// The policy of a `#[funnel_limiter(paced)]`.
///
/// # Errors
///
/// The first parameter that cannot be used.
pub fn paced_funnel(
    name: &str,
    capacity: Result<Amount, ConfigError>,
    rate: Result<Rate, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::funnel(name).capacity(capacity?).rate(rate?).paced();
    options.apply(builder)?.build()
}

/// The policy of a `#[window_limiter(kind = counter)]`.
///
/// # Errors
///
/// The first parameter that cannot be used.
pub fn counter_window(
    name: &str,
    limit: Result<Amount, ConfigError>,
    window: Result<Duration, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::counter_window(name).limit(limit?).window(window?);
    options.apply(builder)?.build()
}

/// The policy of a `#[window_limiter(kind = fixed)]`; without a window it is a month.
///
/// # Errors
///
/// The first parameter that cannot be used.
pub fn fixed_window(
    name: &str,
    limit: Result<Amount, ConfigError>,
    window: Option<Result<Duration, ConfigError>>,
    align: Option<&str>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let mut builder = Policy::fixed_window(name).limit(limit?);
    builder = match window {
        Some(window) => builder.window(window?),
        None => builder.window("month"),
    };
    if let Some(align) = align {
        builder = builder.aligned(align);
    }
    options.apply(builder)?.build()
}

/// A rate from `rate = …, per = …`.
///
/// # Errors
///
/// Either cannot be used, or the rate has no exact form.
pub fn rate_per(
    amount: Result<Amount, ConfigError>,
    period: Result<Duration, ConfigError>,
) -> Result<Rate, ConfigError> {
    Rate::per(amount?, period?)
}
