//! The reason why a call must not proceed, and its conversion into a function's return value.
//!
//! A rejection has two texts: `Display` is for clients and contains no configuration
//! (`responses.rs`), and `diagnostic` is for logs and contains the policy, the values and the
//! causes. `FromRejection` converts a rejection into the return type of an annotated function.
//! Tests: `limiter-macros/tests/behaviour/shapes.rs`; secrets: `tests/secrets.rs`.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::decision::{Decision, Origin};
use crate::error::{ConfigError, StoreError};
use crate::policy::Policy;
use crate::units::Amount;

/// The reason why a call must not proceed.
///
/// Its text is for clients; [`diagnostic`](Self::diagnostic) is for logs.
///
/// To use it as the error of an axum handler, enable the feature `axum` of limiter-core or of
/// limiter-tower; for a `Result<_, tonic::Status>`, enable the feature `tonic`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A limit has no capacity for the call. (HTTP 429, gRPC RESOURCE_EXHAUSTED)
    Limited(Box<Decision>),
    /// The cost exceeds the policy's quota, so no wait would help. The store was not queried.
    NeverFits {
        /// The policy whose quota is too small.
        policy: Policy,
        /// The cost of the call.
        cost: Amount,
        /// The largest cost that the policy admits.
        quota: Amount,
    },
    /// No permit became available within the caller's timeout.
    TimedOut {
        /// The last denial, or for a call that waited behind others an estimate of when it would
        /// have been admitted. `None` if no decision was received.
        decision: Option<Box<Decision>>,
        /// The caller's timeout.
        limit: Duration,
    },
    /// The called service requested a pause that exceeds the caller's timeout. The store was not
    /// queried, and nothing was charged. Only client layers that follow the responses of their
    /// peers return it. (HTTP 429, gRPC RESOURCE_EXHAUSTED)
    Paused {
        /// The remaining duration of the pause.
        retry_after: Duration,
    },
    /// The registry contains no policy of this name for this app.
    NotConfigured {
        /// The name.
        policy: String,
    },
    /// A key list of the policy ([`PolicyBuilder::deny_keys`](crate::PolicyBuilder::deny_keys)) or
    /// a [block](crate::registry::PolicyRegistry::block) denies the key, or a
    /// [suspension](crate::registry::PolicyRegistry::suspend) denies all calls, regardless of the
    /// remaining permits. (HTTP 403, gRPC PERMISSION_DENIED)
    Forbidden {
        /// The policy's name.
        policy: String,
        /// The denial. Its origin is [`KeyList`](crate::Origin::KeyList),
        /// [`Block`](crate::Origin::Block) or [`Suspension`](crate::Origin::Suspension).
        decision: Box<Decision>,
    },
    /// A value computed at run time is invalid: a cost, a key or a group.
    Config(ConfigError),
    /// The limiter could not decide: the store did not answer, Redis contains a value in an unknown
    /// format, or the limiter was shut down. (HTTP 503, gRPC UNAVAILABLE)
    Unavailable {
        /// The failure; [`StoreError::kind`] returns the cause.
        error: StoreError,
        /// The denial, if the policy has [`FailClosed`](crate::OnStoreFailure::FailClosed).
        decision: Option<Box<Decision>>,
    },
}

impl Rejection {
    /// Returns the time after which a retry is admitted if no other caller takes permits. `None`
    /// where waiting never helps or the time is unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Paused { retry_after } => Some(*retry_after),
            _ => self.decision().and_then(Decision::retry_after),
        }
    }

    /// Returns the denial behind this rejection, if any: by a limit, by a key list, or by
    /// [`FailClosed`](crate::OnStoreFailure::FailClosed) while the store is unavailable. Its
    /// [origin](Decision::origin) distinguishes these.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Limited(decision) => Some(decision),
            Self::TimedOut { decision, .. } | Self::Unavailable { decision, .. } => decision.as_deref(),
            Self::Forbidden { decision, .. } => Some(decision),
            _ => None,
        }
    }

    /// Returns whether the caller was limited: a denial, a timeout of a wait, or a pause that the
    /// called service requested.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        matches!(
            self,
            Self::Limited(_) | Self::TimedOut { .. } | Self::Paused { .. }
        )
    }

    /// Returns whether the limiter could not decide.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

impl Rejection {
    /// Formats the rejection with its policy, its values and its causes, in one line for a log. Do
    /// not send it to clients.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let policy = Policy::sliding_window("send").limit(1).window("1m").build()?;
    /// let _ = limits.check(&policy, "ann").await?;
    /// let rejection = limits.check(&policy, "ann").await?.require().unwrap_err();
    /// assert_eq!(rejection.to_string(), "rate limit reached, retry after 60 seconds");
    /// assert_eq!(
    ///     rejection.diagnostic().to_string(),
    ///     "rate limit reached: send (sliding window: 1 in any 1m), retry after 60s"
    /// );
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn diagnostic(&self) -> impl fmt::Display + '_ {
        Diagnostic(self)
    }
}

struct Diagnostic<'a>(&'a Rejection);

impl fmt::Display for Diagnostic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Rejection::{
            Config, Forbidden, Limited, NeverFits, NotConfigured, Paused, TimedOut, Unavailable,
        };
        match self.0 {
            Limited(decision) => {
                f.write_str(if decision.is_blocked() {
                    "blocked after too many denials"
                } else {
                    "rate limit reached"
                })?;
                if let Some(limit) = decision.denied_by() {
                    write!(f, ": {}", limit.policy())?;
                }
                match decision.retry_after() {
                    Some(retry_after) => write!(f, ", retry after {retry_after:?}"),
                    None => Ok(()),
                }
            }
            NeverFits { policy, cost, quota } => {
                write!(
                    f,
                    "a cost of {cost} never fits policy `{}`, which admits at most {quota}",
                    policy.name()
                )
            }
            TimedOut { limit, decision } => {
                write!(f, "no permit within {limit:?}")?;
                match decision.as_deref().and_then(Decision::denied_by) {
                    Some(limit) => write!(f, ": {}", limit.policy()),
                    None => Ok(()),
                }
            }
            Paused { retry_after } => {
                write!(f, "the peer requested a pause, retry after {retry_after:?}")
            }
            NotConfigured { policy } => write!(f, "no policy `{policy}` is configured"),
            Forbidden { policy, decision } => match decision.origin() {
                Origin::Suspension => write!(f, "policy `{policy}` is suspended and denies all calls"),
                Origin::Block => write!(
                    f,
                    "a block of the registry denies the key under policy `{policy}`"
                ),
                _ => write!(f, "policy `{policy}` denies the key"),
            },
            Config(error) => write!(f, "the limit is misconfigured: {error}"),
            Unavailable { error, .. } => {
                write!(f, "the rate limiter is unavailable: {}", error.with_causes())
            }
        }
    }
}

impl Error for Rejection {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Unavailable { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<ConfigError> for Rejection {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<StoreError> for Rejection {
    fn from(error: StoreError) -> Self {
        Self::Unavailable {
            error,
            decision: None,
        }
    }
}

/// Converts a rejected call into a function's return value.
///
/// Implemented for every `Result` whose error is `From<Rejection>`. Implement it for a return type
/// of your own so that annotated functions that return it need no fallback.
///
/// ```
/// use limiter_core::{FromRejection, Rejection};
///
/// enum Receipt { Sent, Limited(String) }
///
/// impl FromRejection for Receipt {
///     fn from_rejection(rejection: Rejection) -> Self {
///         Receipt::Limited(rejection.to_string())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a call that is limited cannot return `{Self}`",
    label = "this function may be rejected by its limiter",
    note = "give the attribute a `fallback = function`,",
    note = "or return a `Result<_, E>` with `E: From<limiter_core::Rejection>`,",
    note = "or implement `limiter_core::FromRejection` for `{Self}`"
)]
pub trait FromRejection {
    /// Returns the value that the function returns in place of its result.
    fn from_rejection(rejection: Rejection) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T, E: From<Rejection>> FromRejection for Result<T, E> {
    fn from_rejection(rejection: Rejection) -> Self {
        Err(E::from(rejection))
    }
}
