//! The policies of the attributes.
//!
//! Each attribute has one function here, which passes the converted arguments to the builder of its
//! algorithm and returns the first error. The expansion calls it once if all arguments are
//! constant, else for each call. Tests: `limiter-macros/tests/behaviour/windows.rs`.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::{OnStoreFailure, Policy, PolicyBuilder, Rate};
use crate::units::Amount;

/// A policy, or the error of building it.
pub type BuiltPolicy = Result<Policy, ConfigError>;

/// The settings of an attribute's policy except the parameters of its algorithm.
#[derive(Debug)]
pub struct PolicyOptions {
    /// The deadline, if set.
    pub deadline: Option<Result<Duration, ConfigError>>,
    /// The reaction to an unavailable store, if set.
    pub on_store_failure: Option<OnStoreFailure>,
    /// The duration of leases, if permits are leased.
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

/// Builds the policy of a `#[token_limiter]`.
///
/// # Errors
///
/// The first invalid parameter.
pub fn token_bucket(
    name: &str,
    capacity: Result<Amount, ConfigError>,
    rate: Result<Rate, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::token_bucket(name).capacity(capacity?).rate(rate?);
    options.apply(builder)?.build()
}

/// Builds the policy of a `#[funnel_limiter]`.
///
/// # Errors
///
/// The first invalid parameter.
pub fn funnel(
    name: &str,
    capacity: Result<Amount, ConfigError>,
    rate: Result<Rate, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::funnel(name).capacity(capacity?).rate(rate?);
    options.apply(builder)?.build()
}

/// Builds the policy of a `#[window_limiter]`.
///
/// # Errors
///
/// The first invalid parameter.
pub fn sliding_window(
    name: &str,
    limit: Result<Amount, ConfigError>,
    window: Result<Duration, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::sliding_window(name).limit(limit?).window(window?);
    options.apply(builder)?.build()
}

/// Builds the policy of a `#[window_limiter]` whose limit is a constant that the attribute cannot
/// evaluate, without `kind = exact`.
///
/// # Errors
///
/// The first invalid parameter, or a limit so large that a counter window was probably intended.
pub fn window_without_kind(
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

/// Builds the policy of a `#[funnel_limiter(paced)]`.
///
/// # Errors
///
/// The first invalid parameter.
pub fn paced_funnel(
    name: &str,
    capacity: Result<Amount, ConfigError>,
    rate: Result<Rate, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::funnel(name).capacity(capacity?).rate(rate?).paced();
    options.apply(builder)?.build()
}

/// Builds the policy of a `#[window_limiter(kind = counter)]`.
///
/// # Errors
///
/// The first invalid parameter.
pub fn counter_window(
    name: &str,
    limit: Result<Amount, ConfigError>,
    window: Result<Duration, ConfigError>,
    options: &PolicyOptions,
) -> BuiltPolicy {
    let builder = Policy::counter_window(name).limit(limit?).window(window?);
    options.apply(builder)?.build()
}

/// Builds the policy of a `#[window_limiter(kind = fixed)]`. Default of the window: a month.
///
/// # Errors
///
/// The first invalid parameter.
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

/// Builds a rate from `rate = …, per = …`.
///
/// # Errors
///
/// One of them is invalid, or the rate has no exact form.
pub fn rate_per(
    amount: Result<Amount, ConfigError>,
    period: Result<Duration, ConfigError>,
) -> Result<Rate, ConfigError> {
    Rate::per(amount?, period?)
}
