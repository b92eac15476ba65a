//! Builds policies, and refuses those that cannot hold.

mod extras;
mod windows;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::extras::ExtraSettings;
use super::{Algorithm, Funnel, Inner, OnStoreFailure, Policy, Rate, SlidingWindow};
use crate::error::ConfigError;
use crate::identity::Prefix;
use crate::key::escape_part;
use crate::units::{Amount, MAX_EXACT, micros_ceil, parse_duration};
pub use windows::{CounterWindowShape, FixedWindowShape};
use windows::{Length, whole_permits};

/// The largest limit of an exact window: its ring then takes 8 MiB, which a call of that cost writes at once.
const MAX_WINDOW_LIMIT: u64 = 1 << 20;
const MAX_NAME_BYTES: usize = 256;
/// A lease is of no use where an answer takes as long.
const LEASES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3_600);
const MAX_DEADLINE: Duration = Duration::from_secs(3_600);

/// Collects the parameters of a [`Policy`]; the first mistake is reported by [`build`](PolicyBuilder::build).
#[derive(Clone, Debug)]
#[must_use = "a policy exists once `build` has returned it"]
pub struct PolicyBuilder<S> {
    name: String,
    pub(super) shape: S,
    group: Option<String>,
    on_store_failure: OnStoreFailure,
    deadline: Duration,
    pub(super) lease: Option<Duration>,
    extras: ExtraSettings,
    mistake: Option<ConfigError>,
}

/// What a token bucket or a funnel needs: a capacity and a rate.
#[derive(Clone, Debug)]
pub struct LevelShape {
    capacity: Option<Amount>,
    rate: Option<Rate>,
    paced: bool,
    algorithm: fn(u64, Rate) -> Algorithm,
}

/// What a sliding window needs: a limit and a window.
#[derive(Clone, Debug)]
pub struct SlidingWindowShape {
    limit: Option<Amount>,
    window: Option<Duration>,
}

impl PolicyBuilder<LevelShape> {
    pub(super) fn level(name: String, algorithm: fn(u64, Rate) -> Algorithm) -> Self {
        Self::new(
            name,
            LevelShape {
                capacity: None,
                rate: None,
                paced: false,
                algorithm,
            },
        )
    }
}

impl PolicyBuilder<SlidingWindowShape> {
    pub(super) fn sliding_window(name: String) -> Self {
        Self::new(
            name,
            SlidingWindowShape {
                limit: None,
                window: None,
            },
        )
    }
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
            extras: ExtraSettings::default(),
            mistake: None,
        }
    }

    /// Puts the state of every key of this policy into one group (one slot of a cluster), so that it can be decided
    /// together with other limits of that group. Default: the key is the group. A key can name its own group with
    /// [`Key::in_group`](crate::Key::in_group), which spreads better.
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

    /// Lets a replica borrow permits of a busy key from Redis, spend them without asking, and tell later: a
    /// [`Duration`] or text such as `"1s"`, from 10 ms to an hour, for which it keeps them at most. Default: it does not.
    ///
    /// For token buckets and funnels, in decisions about one limit. Over any time T all replicas together still admit at most
    /// capacity + rate·T, since what is lent is missing in Redis until it is reported or its time is over. What it costs: a replica may
    /// hold up to half of what is left of a key while another is denied, and what one that crashed has borrowed
    /// cannot be used by others until its time is over. A server whose clock is set forward, and a machine that was
    /// suspended, may mint what is lent at that moment, once. [`Limiter::reset`](crate::Limiter::reset) takes nothing from other
    /// replicas that they have borrowed. Of up to 4,096 keys permits are borrowed at once. In process it changes nothing.
    ///
    /// For [`concurrency`](Policy::concurrency), how long a permit outlives a holder that died, or was cut off from Redis:
    /// whole milliseconds from 100 ms to a day. Default: 30 s. It is renewed while the permit is held. In process it is of no account.
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

    pub(super) fn finish(
        self,
        algorithm: impl FnOnce(S) -> Result<Algorithm, ConfigError>,
    ) -> Result<Policy, ConfigError> {
        check_text("policy name", &self.name)?;
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
        if let Some(lease) = self.lease
            && !matches!(algorithm, Algorithm::Concurrency(_))
        {
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
        if self.lease.is_some() && self.extras.penalty.is_some() {
            let expected = "none beside a lease, whose permits are spent without a look at the block";
            return Err(ConfigError::invalid("penalty", "given", expected));
        }
        let mut inner = Inner {
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
            counters: crate::observe::Counters::default(),
            extras: None,
        };
        inner.extras = self.extras.build(&inner);
        Ok(Policy(Arc::new(inner)))
    }
}

impl PolicyBuilder<LevelShape> {
    /// What can be admitted at once: the tokens of a full bucket, what a funnel holds. Required.
    pub fn capacity(mut self, capacity: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.capacity = self.parse(capacity);
        self
    }

    /// How fast tokens come back, or the funnel drains: a number (per second), text such as `"100/min"`, or a [`Rate`].
    /// Required.
    pub fn rate(mut self, rate: impl TryInto<Rate, Error: Into<ConfigError>>) -> Self {
        self.shape.rate = self.parse(rate);
        self
    }

    /// Has a funnel tell each call that it admits how long to wait ([`Decision::delay`](crate::Decision::delay)): until
    /// all that was admitted before it has drained. Calls that wait so long leave evenly, at the funnel's rate. The queue
    /// is bounded by the capacity: who would make it longer is denied. Default: calls leave at once.
    ///
    /// [`Limiter::check`](crate::Limiter::check) tells, and the caller waits; [`Limiter::acquire`](crate::Limiter::acquire) and an
    /// annotated function wait by themselves. A caller that gives up while it waits
    /// has been charged; [`Limiter::refund`](crate::Limiter::refund) lets those go earlier who come after. A paced funnel
    /// can lend nothing ([`lease`](Self::lease)), and a token bucket cannot be paced.
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

    /// The policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(self) -> Result<Policy, ConfigError> {
        self.finish(
            |LevelShape {
                 capacity,
                 rate,
                 paced,
                 algorithm,
             }| {
                let (capacity, rate) = level(capacity, rate)?;
                match algorithm(capacity, rate) {
                    Algorithm::Funnel(funnel) => Ok(Algorithm::Funnel(Funnel { paced, ..funnel })),
                    _ if paced => {
                        let expected = "a funnel, which knows what has not drained yet";
                        Err(ConfigError::invalid("paced policy", "token bucket", expected))
                    }
                    bucket => Ok(bucket),
                }
            },
        )
    }
}

impl PolicyBuilder<SlidingWindowShape> {
    /// The permits in any window, a whole number from 1 to 1,048,576. Required.
    pub fn limit(mut self, limit: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.limit = self.parse(limit);
        self
    }

    /// The window's length: a [`Duration`], or text such as `"1m"`. Required.
    pub fn window(mut self, window: impl TryInto<Window, Error: Into<ConfigError>>) -> Self {
        self.shape.window = self.length("window", window);
        self
    }

    /// The policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(self) -> Result<Policy, ConfigError> {
        self.finish(|SlidingWindowShape { limit, window }| {
            let limit = limit.ok_or(ConfigError::Missing { what: "limit" })?;
            let window = window.ok_or(ConfigError::Missing { what: "window" })?;
            Ok(Algorithm::SlidingWindow(SlidingWindow {
                limit: whole_permits(limit, MAX_WINDOW_LIMIT)?,
                window: whole_micros(window, MAX_EXACT, "142 years")?,
            }))
        })
    }
}

/// A length of time, as [`PolicyBuilder::window`] and [`PolicyBuilder::lease`] read it from a [`Duration`] or from text.
/// `"week"` is seven days; `"month"` is a month of the calendar, of which only a fixed window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(Length);

impl Window {
    /// The length, unless that depends on the calendar.
    pub(super) fn span(self, what: &'static str) -> Result<Duration, ConfigError> {
        match self.0 {
            Length::Of(length) => Ok(length),
            Length::Month => {
                let expected = "a length such as `30d`: only a fixed window can be a month of the calendar";
                Err(ConfigError::invalid(what, "month", expected))
            }
        }
    }
}

impl From<Duration> for Window {
    fn from(length: Duration) -> Self {
        Self(Length::Of(length))
    }
}

impl TryFrom<&str> for Window {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<Self, ConfigError> {
        Ok(Self(match text.trim() {
            "month" => Length::Month,
            "week" => Length::Of(Duration::from_secs(7 * 86_400)),
            text => Length::Of(parse_duration(text)?),
        }))
    }
}

/// A window that the exact arithmetic holds, in microseconds.
fn whole_micros(window: Duration, most: u64, text: &str) -> Result<u64, ConfigError> {
    let micros = micros_ceil(window);
    if micros == 0 || micros > most || !window.as_nanos().is_multiple_of(1_000) {
        let expected = format!("whole microseconds, more than zero and at most {text}");
        return Err(ConfigError::invalid(
            "window",
            format_args!("{window:?}"),
            expected,
        ));
    }
    Ok(micros)
}

/// A capacity and a rate that the exact arithmetic holds.
fn level(capacity: Option<Amount>, rate: Option<Rate>) -> Result<(u64, Rate), ConfigError> {
    let capacity = capacity.ok_or(ConfigError::Missing { what: "capacity" })?;
    let rate = rate.ok_or(ConfigError::Missing { what: "rate" })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_names_the_value_and_what_was_expected() {
        let refused = [
            (Policy::token_bucket("p").rate(1).build(), "capacity is missing"),
            (Policy::token_bucket("p").capacity(1).build(), "rate is missing"),
            (
                Policy::token_bucket("p").capacity(-1).rate(1).build(),
                "amount is `-1`",
            ),
            (
                Policy::token_bucket("p").capacity(f64::NAN).rate(1).build(),
                "amount is `NaN`",
            ),
            (
                Policy::token_bucket("p").capacity(0).rate(1).build(),
                "capacity is `0`",
            ),
            (
                Policy::token_bucket("p").capacity(u64::MAX).rate(1).build(),
                "capacity is `18446744073709551615`",
            ),
            (
                Policy::token_bucket("p")
                    .capacity(1_000_000_000_u64)
                    .rate("1/30d")
                    .build(),
                "fills within 142 years",
            ),
            (Policy::funnel("p").capacity(1).rate("10").build(), "rate is `10`"),
            (
                Policy::sliding_window("p").limit(0.5).window("1s").build(),
                "limit is `0.5`",
            ),
            (
                Policy::sliding_window("p").limit(1).window("10").build(),
                "duration is `10`",
            ),
            (
                Policy::sliding_window("p")
                    .limit(1)
                    .window(Duration::ZERO)
                    .build(),
                "window is `0ns`",
            ),
            (
                Policy::sliding_window("p").limit(2_000_000).window("1s").build(),
                "limit is `2000000`",
            ),
            (
                Policy::sliding_window("p")
                    .limit(1)
                    .window("1s")
                    .lease("1s")
                    .build(),
                "lease is `1s`, expected none for an exact window",
            ),
            (
                Policy::funnel("p")
                    .capacity(1)
                    .rate(1)
                    .paced()
                    .lease("1s")
                    .build(),
                "lease is `1s`, expected none for a paced funnel",
            ),
            (
                Policy::token_bucket("p").capacity(1).rate(1).paced().build(),
                "paced policy is `token bucket`, expected a funnel",
            ),
            (
                Policy::funnel("p").capacity(1).rate(1).lease("1ms").build(),
                "lease is `1ms`, expected 10 ms to an hour",
            ),
            (
                Policy::sliding_window("").limit(1).window("1s").build(),
                "policy name is ``",
            ),
            (
                Policy::sliding_window("p")
                    .limit(1)
                    .window("1s")
                    .deadline(Duration::ZERO)
                    .build(),
                "deadline is `0ns`",
            ),
        ];
        for (policy, message) in refused {
            let error = policy.expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
