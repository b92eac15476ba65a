//! Penalties: a key that is denied too often is blocked for a while.
//!
//! A penalty becomes two policies under the key of its own policy: an exact window that counts
//! denials, and a funnel of one permit, which blocks the key until it has drained. The stores
//! therefore need no further algorithm, and a block applies on every replica.
//!
//! Invariant: no policy of a user has the states of a penalty. Tests: below,
//! `tests/contract/penalties.rs`, `tests/penalty_agreement.rs`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ConfigError;
use crate::identity::Prefix;
#[cfg(feature = "redis")]
use crate::policy::inheritance;
use crate::policy::rate::Span;
use crate::policy::store_settings::PolicyCopies;
use crate::policy::window::Window;
use crate::policy::{Algorithm, Funnel, Policy, PolicyInner, Rate, SlidingWindow};
use crate::units::{Amount, MAX_EXACT, micros_ceil, parse_duration};

/// The syntax that `from_str` accepts.
const EXPECTED: &str = "text such as `10 in 1m: 15m`";

/// Blocks a key for a while after too many denials, on every replica and independent of the
/// remaining permits.
///
/// For [`PolicyBuilder::penalty`](crate::PolicyBuilder::penalty). The text form `10 in 1m: 15m`
/// blocks for 15 minutes after 10 denials within a minute.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::penalty::Penalty;
/// use limiter_core::{Limiter, ManualClock, Policy};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let limits = Limiter::in_process().clock(&clock).build();
/// let login = Policy::token_bucket("login")
///     .capacity(1)
///     .rate("1/s")
///     .penalty(Penalty::after(2, "1m").block_for("15m"))
///     .build()?;
///
/// limits.check(&login, "ann").await?.require()?;
/// assert!(!limits.check(&login, "ann").await?.is_blocked(), "the first denial does not block");
/// // The second denial triggers the block and reports it.
/// let denied = limits.check(&login, "ann").await?;
/// assert!(denied.is_blocked());
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(15 * 60)));
///
/// clock.advance(Duration::from_secs(60));
/// assert!(limits.check(&login, "ann").await?.is_blocked(), "the block outlasts the refill of the bucket");
/// assert!(limits.blocked_until(&login, "ann").await?.is_some());
///
/// limits.reset(&login, "ann").await?;
/// assert!(limits.check(&login, "ann").await?.is_allowed());
/// # Ok::<(), limiter_core::Rejection>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    denials: u32,
    within: Duration,
    block: Duration,
    /// One permit per block time.
    rate: Rate,
}

/// A penalty without its block time. Created by [`Penalty::after`].
#[derive(Clone, Debug)]
#[must_use = "`block_for` returns the penalty"]
pub struct PenaltyBuilder {
    denials: u32,
    within: Result<Duration, ConfigError>,
}

impl Penalty {
    /// The maximum number of denials.
    const MAX_DENIALS: u32 = 10_000;

    /// Starts a penalty for `denials` (1 to 10,000) denials within any time `within`: a
    /// [`Duration`], or text such as `"1m"`.
    pub fn after(denials: u32, within: impl TryInto<Window, Error: Into<ConfigError>>) -> PenaltyBuilder {
        let within = within
            .try_into()
            .map_err(Into::into)
            .and_then(|window: Window| window.span("window of a penalty"));
        PenaltyBuilder { denials, within }
    }

    /// Returns the number of denials that blocks a key.
    #[must_use]
    pub fn denials(&self) -> u32 {
        self.denials
    }

    /// Returns the time within which denials count.
    #[must_use]
    pub fn within(&self) -> Duration {
        self.within
    }

    /// Returns the duration of a block.
    #[must_use]
    pub fn block(&self) -> Duration {
        self.block
    }
}

impl PenaltyBuilder {
    /// Sets the duration of a block: a [`Duration`], or text such as `"15m"`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is out of range: no denial or more than 10,000,
    /// or a time that is not of whole microseconds, zero, or above 142 years.
    pub fn block_for(
        self,
        block: impl TryInto<Window, Error: Into<ConfigError>>,
    ) -> Result<Penalty, ConfigError> {
        let (denials, within) = (self.denials, self.within?);
        let block = block.try_into().map_err(Into::into)?.span("block of a penalty")?;
        if denials == 0 || denials > Penalty::MAX_DENIALS {
            let expected = format!("1 to {}", Penalty::MAX_DENIALS);
            return Err(ConfigError::invalid(
                "denials before a penalty",
                denials,
                expected,
            ));
        }
        for (name, span) in [("window of a penalty", within), ("block of a penalty", block)] {
            let micros = micros_ceil(span);
            if micros == 0 || micros >= MAX_EXACT || span.as_nanos() % 1_000 != 0 {
                let expected = "whole microseconds, more than zero and less than 142 years";
                return Err(ConfigError::invalid(name, format_args!("{span:?}"), expected));
            }
        }
        let rate = Rate::per(Amount::ONE, block).map_err(|_| {
            let expected = "whole milliseconds where it is longer than 50 days";
            ConfigError::invalid("block of a penalty", format_args!("{block:?}"), expected)
        })?;
        Ok(Penalty {
            denials,
            within,
            block,
            rate,
        })
    }
}

/// Lets a builder accept the result of [`PenaltyBuilder::block_for`].
impl TryFrom<Result<Self, ConfigError>> for Penalty {
    type Error = ConfigError;

    fn try_from(penalty: Result<Self, ConfigError>) -> Result<Self, ConfigError> {
        penalty
    }
}

impl TryFrom<&str> for Penalty {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<Self, ConfigError> {
        text.parse()
    }
}

/// `10 in 1m: 15m`, as [`FromStr`] reads it.
impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [within, block] = [self.within, self.block].map(|span| Span(micros_ceil(span)));
        write!(f, "{} in {within}: {block}", self.denials)
    }
}

impl FromStr for Penalty {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let invalid = || ConfigError::invalid("penalty", text, EXPECTED);
        let (denials, rest) = text.split_once(" in ").ok_or_else(invalid)?;
        let (within, block) = rest.split_once(':').ok_or_else(invalid)?;
        let denials = denials.trim().parse().map_err(|_| invalid())?;
        Self::after(denials, parse_duration(within)?).block_for(parse_duration(block)?)
    }
}

/// The two additional limits of a penalty, under the key of its policy.
#[derive(Clone)]
pub(crate) struct PenaltyLimits {
    pub(crate) penalty: Penalty,
    /// Counts denials in a window; the last permit triggers the block.
    pub(crate) counter: Policy,
    /// A funnel of one permit: the key is blocked until the funnel has drained.
    pub(crate) block: Policy,
}

impl PenaltyLimits {
    pub(super) fn new(penalty: Penalty, policy: &PolicyInner) -> Self {
        // No escaped name contains a bar, and no algorithm has such a code, so no user-defined
        // policy shares these states.
        let penalty_policy = |code: &'static str, algorithm: Algorithm| {
            let identity = match policy.generation {
                0 => Prefix::new(code, &policy.name),
                generation => Prefix::new(&format!("{code}.{generation}"), &policy.name),
            };
            Policy(Arc::new(PolicyInner {
                name: policy.name.clone(),
                identity,
                generation: policy.generation,
                #[cfg(feature = "redis")]
                code: inheritance::code(&algorithm, policy.generation),
                scaled: None,
                #[cfg(feature = "redis")]
                escaped_name: format!("{}|{code}", policy.escaped_name).into(),
                algorithm,
                group: policy.group.clone(),
                escaped_group: policy.escaped_group.clone(),
                store: policy.store,
                copies: PolicyCopies::default(),
                lease: None,
                extras: None,
                #[cfg(feature = "metrics")]
                counters: crate::metrics_handles::PolicyCounters::default(),
                #[cfg(feature = "redis")]
                usage: crate::usage_counters::UsageSlot::default(),
                cached_text: crate::policy::CachedText::default(),
            }))
        };
        Self {
            counter: penalty_policy(
                "denials",
                Algorithm::SlidingWindow(SlidingWindow {
                    limit: penalty.denials.into(),
                    window: micros_ceil(penalty.within),
                }),
            ),
            block: penalty_policy(
                "blocked",
                Algorithm::Funnel(Funnel {
                    capacity: 1_000,
                    rate: penalty.rate,
                    paced: false,
                }),
            ),
            penalty,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::penalty::*;

    #[test]
    fn penalty_round_trips_through_text() {
        for text in ["10 in 1m: 15m", "1 in 1s: 500ms", "10000 in 1d: 30d"] {
            let penalty: Penalty = text.parse().unwrap();
            assert_eq!(penalty.to_string(), text);
            assert_eq!(
                Penalty::after(penalty.denials(), penalty.within()).block_for(penalty.block()),
                Ok(penalty)
            );
        }
    }

    #[test]
    fn value_out_of_range_is_named() {
        let cases = [
            ("0 in 1m: 15m", "denials before a penalty is `0`"),
            ("10001 in 1m: 15m", "denials before a penalty is `10001`"),
            ("1 in 0s: 15m", "window of a penalty is `0ns`"),
            ("1 in 1m: 0s", "block of a penalty is `0ns`"),
            (
                "1 in 1m: 60d1us",
                "expected whole milliseconds where it is longer",
            ),
            ("1 in 1m", "penalty is `1 in 1m`"),
            ("1 in 1: 5m", "duration is `1`"),
        ];
        for (text, message) in cases {
            let error = text.parse::<Penalty>().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let nanos = Penalty::after(1, Duration::from_nanos(1)).block_for("1m");
        assert!(nanos.is_err());
    }
}
