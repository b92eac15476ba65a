//! Builders of policies and their validation.
//!
//! `PolicyBuilder` is generic over the parameters of an algorithm (`levels`, `windows`,
//! `concurrency`) and contains the settings that all algorithms have. Setters parse their argument
//! and store the first error, which `build` returns with the name of the policy.
//!
//! Invariant: an existing policy is valid: its numbers fit the exact arithmetic, and its settings
//! suit its algorithm. Tests: `policy/builder/tests.rs`.

mod concurrency;
mod levels;
pub(crate) mod options;
mod windows;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ConfigError, POLICY_NAME};
use crate::identity::Prefix;
use crate::key::escape_part;
pub use crate::policy::builder::concurrency::ConcurrencyParams;
pub use crate::policy::builder::levels::LevelParams;
pub use crate::policy::builder::windows::{CounterWindowParams, FixedWindowParams, SlidingWindowParams};
use crate::policy::options::RareSettings;
use crate::policy::store_settings::{PolicyCopies, StoreSettings};
use crate::policy::window::Window;
use crate::policy::{Algorithm, Funnel, OnDenial, OnStoreFailure, Policy, PolicyInner};

const MAX_NAME_BYTES: usize = 256;
/// Range of leases: shorter ones are no longer than a store call.
const LEASES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3_600);
pub(crate) const MAX_DEADLINE: Duration = Duration::from_secs(3_600);

/// Collects the parameters of a [`Policy`]; [`build`](PolicyBuilder::build) reports the first
/// error.
#[derive(Clone, Debug)]
#[must_use = "`build` returns the policy"]
pub struct PolicyBuilder<S> {
    name: String,
    pub(super) shape: S,
    group: Option<String>,
    on_store_failure: Option<OnStoreFailure>,
    deadline: Option<Duration>,
    pub(super) lease: Option<Duration>,
    extras: RareSettings,
    error: Option<ConfigError>,
}

impl<S> PolicyBuilder<S> {
    pub(super) fn new(name: String, shape: S) -> Self {
        Self {
            name,
            shape,
            group: None,
            on_store_failure: None,
            deadline: None,
            lease: None,
            extras: RareSettings::default(),
            error: None,
        }
    }

    /// Puts the state of every key of this policy into one group (one slot of a cluster), so that
    /// it can be decided together with other limits of that group. Default: the key is the group. A
    /// key can name its own group with [`Key::in_group`](crate::Key::in_group), which spreads
    /// better.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets the decision if the store does not reply. Default: that of the
    /// [limiter](crate::InProcessBuilder::default_on_store_failure), which is
    /// [`OnStoreFailure::Local`].
    pub fn on_store_failure(mut self, answer: OnStoreFailure) -> Self {
        self.on_store_failure = Some(answer);
        self
    }

    /// Sets the deadline of a decision, including the wait for a connection. Default: that of the
    /// [limiter](crate::InProcessBuilder::default_deadline), which is 50 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Lets a replica lease permits of a busy key from Redis, spend them without further calls and
    /// report the usage later. The argument is the maximum time for which a replica keeps them: a
    /// [`Duration`] or text such as `"1s"`, from 10 ms to an hour. Default: no leases.
    ///
    /// For token buckets and funnels, in decisions about one limit. Over any time T all replicas
    /// together still admit at most capacity + rate·T, because Redis subtracts leased permits until
    /// they are reported or expire. Costs: a replica may hold up to half of the remaining permits
    /// of a key while another one denies, and the permits of a crashed replica are unavailable
    /// until their lease expires. If the server's clock is set forward, or a machine was suspended,
    /// the permits leased at that time may be admitted twice, once.
    /// [`Limiter::reset`](crate::Limiter::reset) does not revoke permits leased by other replicas.
    /// A replica leases permits of up to 4,096 keys at once. In process the setting has no effect.
    ///
    /// For [`concurrency`](Policy::concurrency), the time for which a permit outlives a holder that
    /// crashed or was disconnected from Redis: whole milliseconds from 100 ms to a day. Default: 30
    /// s. The lease is renewed while the permit is held. In process it has no effect.
    pub fn lease(mut self, max_age: impl TryInto<Window, Error: Into<ConfigError>>) -> Self {
        self.lease = self.length("lease", max_age);
        self
    }

    /// Parses a value and records the first error.
    pub(super) fn parse<V, T>(&mut self, value: V) -> Option<T>
    where
        V: TryInto<T, Error: Into<ConfigError>>,
    {
        value
            .try_into()
            .map_err(|error| self.error.get_or_insert(error.into()).clone())
            .ok()
    }

    /// Builds the policy. Errors contain its name.
    pub(super) fn finish(
        self,
        algorithm: impl FnOnce(S) -> Result<Algorithm, ConfigError>,
    ) -> Result<Policy, ConfigError> {
        let name = self.name.clone();
        self.try_finish(algorithm).map_err(|error| error.of_policy(&name))
    }

    fn try_finish(
        self,
        algorithm: impl FnOnce(S) -> Result<Algorithm, ConfigError>,
    ) -> Result<Policy, ConfigError> {
        check_text(POLICY_NAME, &self.name)?;
        if let Some(group) = &self.group {
            check_text("group", group)?;
        }
        if let Some(deadline) = self.deadline {
            check_deadline("deadline", deadline)?;
        }
        if let Some(error) = self.error {
            return Err(error);
        }
        let algorithm = algorithm(self.shape)?;
        if let Some(lease) = self.lease {
            if !matches!(algorithm, Algorithm::Concurrency(_)) {
                let invalid = |expected| ConfigError::invalid("lease", format_args!("{lease:?}"), expected);
                if matches!(algorithm, Algorithm::SlidingWindow(_)) {
                    return Err(invalid(
                        "none for an exact window, which needs the time of each permit",
                    ));
                }
                if algorithm.is_window() {
                    return Err(invalid(
                        "none for a window: its permits are not refilled at a rate",
                    ));
                }
                if matches!(algorithm, Algorithm::Funnel(Funnel { paced: true, .. })) {
                    return Err(invalid("none for a paced funnel: Redis orders its calls"));
                }
                if !LEASES.contains(&lease) {
                    return Err(invalid("10 ms to an hour"));
                }
            }
        }
        if let Algorithm::Concurrency(_) = algorithm {
            if self.extras.penalty.is_some() {
                let expected = "none for a concurrency policy: its denials do not indicate excessive calls";
                return Err(ConfigError::invalid("penalty", "given", expected));
            }
            if self.extras.on_denial == OnDenial::Degrade {
                let expected = "`reject` or a wait for a concurrency policy: a denied call holds no permit";
                return Err(ConfigError::invalid("on_denial", OnDenial::Degrade, expected));
            }
        }
        if self.lease.is_some() && self.extras.penalty.is_some() {
            let expected = "none together with a lease: its permits are spent without a check of the block";
            return Err(ConfigError::invalid("penalty", "given", expected));
        }
        let mut inner = PolicyInner {
            identity: Prefix::new(algorithm.code(), &self.name),
            algorithm,
            #[cfg(feature = "redis")]
            escaped_name: escape_part(&self.name).into(),
            name: self.name.into(),
            escaped_group: self.group.as_deref().map(|group| escape_part(group).into()),
            group: self.group.map(Into::into),
            store: StoreSettings::new(self.deadline, self.on_store_failure),
            copies: PolicyCopies::default(),
            lease: self.lease,
            generation: 0,
            #[cfg(feature = "redis")]
            code: algorithm.code().into(),
            scaled: None,
            #[cfg(feature = "metrics")]
            counters: crate::metrics_handles::PolicyCounters::default(),
            #[cfg(feature = "redis")]
            usage: crate::usage_counters::UsageSlot::default(),
            cached_text: crate::policy::CachedText::default(),
            extras: None,
        };
        inner.extras = self.extras.build(&inner);
        Ok(Policy(Arc::new(inner)))
    }
}

pub(crate) fn check_deadline(field: &'static str, deadline: Duration) -> Result<(), ConfigError> {
    if deadline.is_zero() || deadline > MAX_DEADLINE {
        return Err(ConfigError::invalid(
            field,
            format_args!("{deadline:?}"),
            "more than zero and at most an hour",
        ));
    }
    Ok(())
}

pub(crate) fn check_text(field: &'static str, text: &str) -> Result<(), ConfigError> {
    if text.is_empty() || text.len() > MAX_NAME_BYTES {
        return Err(ConfigError::invalid(
            field,
            text,
            format!("1 to {MAX_NAME_BYTES} bytes"),
        ));
    }
    Ok(())
}

impl<S> PolicyBuilder<S> {
    /// Parses a length that does not depend on the calendar, and records the first error.
    pub(super) fn length(
        &mut self,
        field: &'static str,
        length: impl TryInto<Window, Error: Into<ConfigError>>,
    ) -> Option<Duration> {
        let length: Window = self.parse(length)?;
        let span = length.span(field);
        span.map_err(|error| self.error.get_or_insert(error).clone()).ok()
    }
}

#[cfg(test)]
mod tests;
