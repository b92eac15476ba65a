//! Builds policies, and refuses those that cannot hold.

mod levels;
pub(crate) mod options;
mod windows;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ConfigError, POLICY_NAME};
use crate::identity::Prefix;
use crate::key::escape_part;
pub use crate::policy::builder::levels::LevelParams;
pub use crate::policy::builder::windows::{CounterWindowParams, FixedWindowParams, SlidingWindowParams};
use crate::policy::options::RareSettings;
use crate::policy::window::Window;
use crate::policy::{Algorithm, Funnel, OnDenial, OnStoreFailure, Policy, PolicyInner};

const MAX_NAME_BYTES: usize = 256;
/// A lease is of no use where an answer takes as long.
const LEASES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3_600);
const MAX_DEADLINE: Duration = Duration::from_secs(3_600);

/// Collects the parameters of a [`Policy`]; the first mistake is reported by
/// [`build`](PolicyBuilder::build).
#[derive(Clone, Debug)]
#[must_use = "a policy exists once `build` has returned it"]
pub struct PolicyBuilder<S> {
    name: String,
    pub(super) shape: S,
    group: Option<String>,
    on_store_failure: OnStoreFailure,
    deadline: Duration,
    pub(super) lease: Option<Duration>,
    extras: RareSettings,
    mistake: Option<ConfigError>,
}

impl<S> PolicyBuilder<S> {
    pub(super) fn new(name: String, shape: S) -> Self {
        Self {
            name,
            shape,
            group: None,
            on_store_failure: OnStoreFailure::default(),
            deadline: Policy::DEFAULT_DEADLINE,
            lease: None,
            extras: RareSettings::default(),
            mistake: None,
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

    /// What a decision is when the store gives no answer. Default: [`OnStoreFailure::Local`].
    pub fn on_store_failure(mut self, answer: OnStoreFailure) -> Self {
        self.on_store_failure = answer;
        self
    }

    /// How long a decision may take, the wait for a connection included. Default: 50 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Lets a replica borrow permits of a busy key from Redis, spend them without asking, and tell
    /// later: a [`Duration`] or text such as `"1s"`, from 10 ms to an hour, for which it keeps them
    /// at most. Default: it does not.
    ///
    /// For token buckets and funnels, in decisions about one limit. Over any time T all replicas
    /// together still admit at most capacity + rate·T, since what is lent is missing in Redis until
    /// it is reported or its time is over. What it costs: a replica may hold up to half of what is
    /// left of a key while another is denied, and what one that crashed has borrowed cannot be used
    /// by others until its time is over. A server whose clock is set forward, and a machine that
    /// was suspended, may mint what is lent at that moment, once.
    /// [`Limiter::reset`](crate::Limiter::reset) takes nothing from other replicas that they have
    /// borrowed. Of up to 4,096 keys permits are borrowed at once. In process it changes nothing.
    ///
    /// For [`concurrency`](Policy::concurrency), how long a permit outlives a holder that died, or
    /// was cut off from Redis: whole milliseconds from 100 ms to a day. Default: 30 s. It is
    /// renewed while the permit is held. In process it is of no account.
    pub fn lease(mut self, max_age: impl TryInto<Window, Error: Into<ConfigError>>) -> Self {
        self.lease = self.length("lease", max_age);
        self
    }

    /// Keeps the value, or the first mistake.
    pub(super) fn parse<V, T>(&mut self, value: V) -> Option<T>
    where
        V: TryInto<T, Error: Into<ConfigError>>,
    {
        value
            .try_into()
            .map_err(|error| self.mistake.get_or_insert(error.into()).clone())
            .ok()
    }

    /// Builds the policy. An error names it.
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
        if self.deadline.is_zero() || self.deadline > MAX_DEADLINE {
            return Err(ConfigError::invalid(
                "deadline",
                format_args!("{:?}", self.deadline),
                "more than zero and at most an hour",
            ));
        }
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        let algorithm = algorithm(self.shape)?;
        if let Some(lease) = self.lease {
            if !matches!(algorithm, Algorithm::Concurrency(_)) {
                let invalid = |expected| ConfigError::invalid("lease", format_args!("{lease:?}"), expected);
                if matches!(algorithm, Algorithm::SlidingWindow(_)) {
                    return Err(invalid(
                        "none for an exact window, whose permits are dated when they are spent",
                    ));
                }
                if algorithm.is_window() {
                    return Err(invalid(
                        "none for a window, whose permits do not come back at a rate",
                    ));
                }
                if matches!(algorithm, Algorithm::Funnel(Funnel { paced: true, .. })) {
                    return Err(invalid(
                        "none for a paced funnel, whose calls leave in the order that Redis knows",
                    ));
                }
                if !LEASES.contains(&lease) {
                    return Err(invalid("10 ms to an hour"));
                }
            }
        }
        if let Algorithm::Concurrency(_) = algorithm {
            if self.extras.penalty.is_some() {
                let expected = "none for what is in flight, whose denials say nothing of who asks too often";
                return Err(ConfigError::invalid("penalty", "given", expected));
            }
            if self.extras.on_denial == OnDenial::Degrade {
                let expected =
                    "`reject` or a wait for what is in flight: who is denied holds no permit to go on with";
                return Err(ConfigError::invalid("on_denial", OnDenial::Degrade, expected));
            }
        }
        if self.lease.is_some() && self.extras.penalty.is_some() {
            let expected = "none beside a lease, whose permits are spent without a look at the block";
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
            on_store_failure: self.on_store_failure,
            deadline: self.deadline,
            lease: self.lease,
            generation: 0,
            #[cfg(feature = "redis")]
            code: algorithm.code().into(),
            scaled: None,
            #[cfg(feature = "metrics")]
            counters: crate::metrics_handles::PolicyCounters::default(),
            cached_text: crate::policy::CachedText::default(),
            extras: None,
        };
        inner.extras = self.extras.build(&inner);
        Ok(Policy(Arc::new(inner)))
    }
}

pub(crate) fn check_text(what: &'static str, text: &str) -> Result<(), ConfigError> {
    if text.is_empty() || text.len() > MAX_NAME_BYTES {
        return Err(ConfigError::invalid(
            what,
            text,
            format!("1 to {MAX_NAME_BYTES} bytes"),
        ));
    }
    Ok(())
}

impl<S> PolicyBuilder<S> {
    /// Keeps a length that does not depend on the calendar, or the first mistake.
    pub(super) fn length(
        &mut self,
        what: &'static str,
        length: impl TryInto<Window, Error: Into<ConfigError>>,
    ) -> Option<Duration> {
        let length: Window = self.parse(length)?;
        let span = length.span(what);
        span.map_err(|error| self.mistake.get_or_insert(error).clone())
            .ok()
    }
}

#[cfg(test)]
mod tests;
