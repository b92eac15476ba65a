//! Why a call must not go on, and how that becomes what a function returns.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::decision::Decision;
use crate::error::{ConfigError, StoreError};
use crate::policy::Policy;
use crate::units::Amount;

/// Why a call must not go on.
///
/// Its text is for clients; [`diagnostic`](Self::diagnostic) is for logs.
///
/// As the error of an axum handler it needs the feature `axum`, of limiter-core or of
/// limiter-tower; for a `Result<_, tonic::Status>` it is the feature `tonic`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A limit is used up. (HTTP 429, gRPC RESOURCE_EXHAUSTED)
    Limited(Box<Decision>),
    /// The cost is above the policy's quota: waiting would never help. Nothing was asked of the
    /// store.
    NeverFits {
        /// The policy whose quota is too small.
        policy: Policy,
        /// What the call would have cost.
        cost: Amount,
        /// The most that the policy ever admits at once.
        quota: Amount,
    },
    /// No permit within the time that the caller would wait.
    TimedOut {
        /// What it comes to: the last denial, or, of who waited behind others, when there would be
        /// room for it after them. `None` where nobody said.
        decision: Option<Box<Decision>>,
        /// The time that the caller would wait at most.
        limit: Duration,
    },
    /// Whoever is called asked for a pause that the caller would not wait for. Nothing was asked of
    /// the store, and nothing charged. Only layers for clients say this, which listen to what their
    /// peers answer. (HTTP 429, gRPC RESOURCE_EXHAUSTED)
    Paused {
        /// How long the pause lasts still.
        retry_after: Duration,
    },
    /// No policy of this name is configured, or not for this app.
    NotConfigured {
        /// The name.
        policy: String,
    },
    /// The policy denies the key by a list
    /// ([`PolicyBuilder::deny_keys`](crate::PolicyBuilder::deny_keys)), whatever is left. (HTTP
    /// 403, gRPC PERMISSION_DENIED)
    Forbidden {
        /// The policy's name.
        policy: String,
        /// The denial, by [`Origin::KeyList`](crate::Origin::KeyList).
        decision: Box<Decision>,
    },
    /// A value computed at run time cannot be used: a cost, a key, a group.
    Config(ConfigError),
    /// The limiter could not decide: no answer from the store, a value in Redis that is not this
    /// limiter's, or a limiter that was shut down. [`StoreError::kind`] tells which. (HTTP 503,
    /// gRPC UNAVAILABLE)
    Unavailable(StoreError),
}

impl Rejection {
    /// Time after which asking again is admitted if nobody else asks. `None` where waiting never
    /// helps, or where nobody can tell.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Paused { retry_after } => Some(*retry_after),
            _ => self.decision().and_then(Decision::retry_after),
        }
    }

    /// The denial behind this rejection, where there is one: by a limit, by a list of keys, or
    /// because the store is out and the policy says
    /// [`FailClosed`](crate::OnStoreFailure::FailClosed), of which the [origin](Decision::origin)
    /// tells.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Limited(decision) => Some(decision),
            Self::TimedOut { decision, .. } => decision.as_deref(),
            Self::Forbidden { decision, .. } => Some(decision),
            Self::Unavailable(error) => error.denial(),
            _ => None,
        }
    }

    /// Whether the caller was limited: a denial, a wait that was not long enough, or a pause that
    /// whoever is called asked for.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        matches!(
            self,
            Self::Limited(_) | Self::TimedOut { .. } | Self::Paused { .. }
        )
    }

    /// Whether the limiter could not decide.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

/// The [`client_message`](Rejection::client_message): programs put this text into bodies, so it
/// contains neither the configuration nor an internal cause. [`diagnostic`](Rejection::diagnostic)
/// contains them.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.client_message())
    }
}

impl Rejection {
    /// The rejection with its policy, its numbers and its causes, in one line for a log. Do not
    /// send it to clients.
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
            Forbidden { policy, .. } => write!(f, "policy `{policy}` denies the key"),
            Config(error) => write!(f, "the limit is misconfigured: {error}"),
            Unavailable(error) => write!(f, "the rate limiter is unavailable: {}", error.with_causes()),
        }
    }
}

impl Error for Rejection {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Unavailable(error) => Some(error),
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
        Self::Unavailable(error)
    }
}

/// How a rejected call becomes a function's return value.
///
/// Implemented for every `Result` whose error is `From<Rejection>`. Implement it for a return type
/// of your own, and annotated functions that return it need no fallback.
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
    /// The value that the function returns in place of its result.
    fn from_rejection(rejection: Rejection) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T, E: From<Rejection>> FromRejection for Result<T, E> {
    fn from_rejection(rejection: Rejection) -> Self {
        Err(E::from(rejection))
    }
}
