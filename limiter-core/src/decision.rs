//! What the limiter answers: a `Decision`, and at the edges a `Rejection`.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::algorithm::{Outcome, Standing};
use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::few::Few;
use crate::policy::{Lent, Policy};
use crate::units::{Amount, Timestamp};

/// The answer to one call: allowed or denied, and where each of its limits stands.
///
/// Being limited is not an error. [`require`](Self::require) turns a denial into one where that is wanted.
#[derive(Clone, Debug)]
#[must_use = "a denied decision must stop the call; `require` makes an error of it"]
pub struct Decision {
    pub(crate) limits: Few<LimitOutcome>,
    pub(crate) decided_at: Timestamp,
    pub(crate) store_error: Option<Box<StoreError>>,
    pub(crate) allowed: bool,
    pub(crate) origin: Origin,
    pub(crate) marks: Marks,
}

/// What is to be said of few decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(u8);

impl Marks {
    /// It is allowed in shadow mode, and would be denied.
    pub(crate) const WOULD_DENY: Self = Self(1);
    /// It is denied because of a penalty.
    pub(crate) const BLOCKED: Self = Self(2);
    /// It is denied, and goes on all the same.
    pub(crate) const DEGRADED: Self = Self(4);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One limit's part in a [`Decision`].
#[derive(Clone)]
pub struct LimitOutcome {
    policy: Lent,
    /// Most callers look at nothing of it, so it is computed when they do.
    standing: Standing,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// A script in Redis.
    Redis,
    /// This process, as Redis would: it denied the same a moment ago, and it is not time to ask again
    /// ([`RedisBuilder::deny_cache`](crate::RedisBuilder::deny_cache)).
    DenyCache,
    /// The store in this process.
    Memory,
    /// This process, of permits that Redis lent it ([`PolicyBuilder::lease`](crate::PolicyBuilder::lease)). What remains is
    /// what is held here and what Redis had left when it last answered.
    Lease,
    /// This process, by its share of the policy: the store was out ([`Local`](crate::OnStoreFailure::Local)).
    Insurance,
    /// Nobody: the store was out, and the policy says [`Allow`](crate::OnStoreFailure::Allow).
    FailedOpen,
    /// Nobody: the store was out, and the policy says [`Deny`](crate::OnStoreFailure::Deny).
    FailedClosed,
    /// Nobody: no policy of the name that was asked for is configured, or not for this app, and that is allowed
    /// ([`OnNotConfigured::Allow`](crate::OnNotConfigured::Allow)). There are no limits in the decision.
    NotConfigured,
    /// A list of keys ([`PolicyBuilder::allow_keys`](crate::PolicyBuilder::allow_keys),
    /// [`deny_keys`](crate::PolicyBuilder::deny_keys)). Nobody was asked, and nothing was charged.
    KeyList,
    /// Nobody: all of its limits are [`Off`](crate::Enforcement::Off).
    Off,
}

impl Decision {
    /// One that allows a call of which nobody was asked.
    pub(crate) fn unasked(origin: Origin, at: Timestamp) -> Self {
        Self {
            limits: Few::default(),
            decided_at: at,
            store_error: None,
            allowed: true,
            origin,
            marks: Marks::default(),
        }
    }

    /// Whether the call may go on.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether it allows the call in shadow mode alone: [`Enforcement::Enforce`](crate::Enforcement::Enforce) would deny it, or
    /// reject it for another reason.
    #[must_use]
    pub fn would_deny(&self) -> bool {
        self.marks.has(Marks::WOULD_DENY)
    }

    /// Whether a [`Penalty`](crate::Penalty) blocks the key: [`retry_after`](Self::retry_after) is then when that ends.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.marks.has(Marks::BLOCKED)
    }

    /// Whether the call goes on though it was denied, and is to be served something cheaper
    /// ([`OnDenial::Degrade`](crate::OnDenial::Degrade)). The outcomes of its limits say why.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.marks.has(Marks::DEGRADED)
    }

    /// Each limit's part, in the order in which they were asked for. Empty when nobody decided
    /// ([`Origin::FailedOpen`], [`Origin::FailedClosed`], [`Origin::NotConfigured`]); without those that a list of keys allows, or
    /// that are off.
    #[must_use]
    pub fn limits(&self) -> &[LimitOutcome] {
        &self.limits
    }

    /// The first limit that denies, or would if it were not in shadow.
    #[must_use]
    pub fn denied_by(&self) -> Option<&LimitOutcome> {
        self.limits.iter().find(|limit| !limit.is_allowed())
    }

    /// Whole permits that could be admitted right after this decision: the least of its limits, 0 when nobody decided.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.limits
            .iter()
            .map(|limit| limit.remaining().whole())
            .min()
            .unwrap_or(0)
    }

    /// Time until this cost is admitted with nobody else asking, exact to the microsecond: the largest among the limits
    /// that deny. Half a second for a cost above the share of [`Origin::Insurance`], since nobody knows. `None` when the call is allowed, and when nobody can tell because the store is out.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        // What is allowed in shadow or degraded waits for nothing, and what a list denies never gets better.
        if self.allowed || self.origin == Origin::KeyList {
            return None;
        }
        self.limits
            .iter()
            .filter(|limit| !limit.is_allowed())
            .map(LimitOutcome::retry_after)
            .max()
    }

    /// How long an allowed call waits before it goes on, so that calls leave evenly: the longest among its limits. Zero
    /// unless one of them is a [paced](crate::PolicyBuilder::paced) funnel, and for a denied call.
    #[must_use]
    pub fn delay(&self) -> Duration {
        let delays = self.limits.iter().map(LimitOutcome::delay);
        delays.max().filter(|_| self.allowed).unwrap_or_default()
    }

    /// Time until nothing is left of what was used under any of the limits.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.limits
            .iter()
            .map(LimitOutcome::reset_after)
            .max()
            .unwrap_or_default()
    }

    /// The store's time at which it was decided (this process's where nobody decided).
    #[must_use]
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Who decided.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Why the store did not decide, where it did not.
    #[must_use]
    pub fn store_error(&self) -> Option<&StoreError> {
        self.store_error.as_deref()
    }

    /// The decision as [`Allowed`] if it allows the call, else why not.
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`] with the whole decision, [`Rejection::Unavailable`] when it denies because the store is
    /// out ([`Origin::FailedClosed`]), or [`Rejection::Forbidden`] when a list does ([`Origin::KeyList`]).
    pub fn require(self) -> Result<Allowed, Rejection> {
        match self.store_error {
            _ if self.allowed => Ok(Allowed(self)),
            _ if self.origin == Origin::KeyList => Err(Rejection::Forbidden {
                policy: self
                    .denied_by()
                    .map_or_else(String::new, |limit| limit.policy().name().to_owned()),
            }),
            // Denied because the store is out: no limit was reached.
            Some(error) if self.origin == Origin::FailedClosed => Err(Rejection::Unavailable(*error)),
            _ => Err(Rejection::Limited(Box::new(self))),
        }
    }
}

/// A decision that allows the call. Unlike a [`Decision`] it may be dropped without a look.
#[derive(Clone, Debug)]
pub struct Allowed(Decision);

impl Allowed {
    /// The decision itself.
    pub fn into_decision(self) -> Decision {
        self.0
    }
}

impl Deref for Allowed {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.0
    }
}

impl LimitOutcome {
    #[inline]
    pub(crate) fn new(policy: &Policy, standing: Standing) -> Self {
        Self {
            policy: Lent::of(policy),
            standing,
        }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        self.standing.outcome(self.policy.algorithm())
    }

    /// The policy that was asked, with its name and quota.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether this limit had room for its cost. The call is allowed when all of its limits have.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.standing.fits()
    }

    /// What could be admitted under this limit right after the decision.
    #[must_use]
    pub fn remaining(&self) -> Amount {
        self.policy.amount(self.outcome().remaining)
    }

    /// Time until this cost fits, with nobody else asking, exact to the microsecond; zero when it fits.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        Duration::from_micros(self.outcome().retry_after)
    }

    /// How long a call that this limit admits waits, so that calls leave evenly: until all that was admitted before it has
    /// drained. Zero unless the policy is a [paced](crate::PolicyBuilder::paced) funnel, and where it does not fit.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.standing.delay())
    }

    /// Time until nothing is left of what was used.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.outcome().reset_after)
    }

    /// Time until the stored state equals absence, which is when the store lets go of it; zero when nothing is stored.
    #[must_use]
    pub fn expires_after(&self) -> Duration {
        Duration::from_micros(self.outcome().expires_after)
    }
}

impl fmt::Debug for LimitOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitOutcome")
            .field("policy", &self.policy)
            .field("outcome", &self.outcome())
            .finish()
    }
}

/// Why a call must not go on.
///
/// As the error of an axum handler it needs the feature `axum`, of limiter-core or of limiter-tower; for a
/// `Result<_, tonic::Status>` it is the feature `tonic`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A limit is used up. (HTTP 429, gRPC RESOURCE_EXHAUSTED)
    Limited(Box<Decision>),
    /// The cost is above the policy's quota: waiting would never help. Nothing was asked of the store.
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
        /// The last denial, where the call got as far as asking.
        decision: Option<Box<Decision>>,
        /// The time that the caller would wait at most.
        limit: Duration,
    },
    /// Whoever is called asked for a pause that the caller would not wait for. Nothing was asked of the store, and nothing
    /// charged. Only layers for clients say this, which listen to what their peers answer. (HTTP 429, gRPC RESOURCE_EXHAUSTED)
    Paused {
        /// How long the pause lasts still.
        retry_after: Duration,
    },
    /// No policy of this name is configured, or not for this app.
    NotConfigured {
        /// The name.
        policy: String,
    },
    /// The policy denies the key by a list ([`PolicyBuilder::deny_keys`](crate::PolicyBuilder::deny_keys)), whatever is left.
    /// (HTTP 403, gRPC PERMISSION_DENIED)
    Forbidden {
        /// The policy's name.
        policy: String,
    },
    /// A value computed at run time cannot be used: a cost, a key, a group.
    Config(ConfigError),
    /// The store gave no answer. (HTTP 503, gRPC UNAVAILABLE)
    Unavailable(StoreError),
}

impl Rejection {
    /// Time after which asking again is admitted if nobody else asks. `None` where waiting never helps, or where nobody
    /// can tell.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Paused { retry_after } => Some(*retry_after),
            _ => self.decision().and_then(Decision::retry_after),
        }
    }

    /// The denial behind this rejection, where there is one.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Limited(decision) => Some(decision),
            Self::TimedOut { decision, .. } => decision.as_deref(),
            _ => None,
        }
    }

    /// Whether the caller was limited: a denial, a wait that was not long enough, or a pause that whoever is called asked for.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        matches!(
            self,
            Self::Limited(_) | Self::TimedOut { .. } | Self::Paused { .. }
        )
    }

    /// Whether the store gave no answer.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(decision) => {
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
            Self::NeverFits { policy, cost, quota } => {
                write!(
                    f,
                    "a cost of {cost} never fits policy `{}`, which admits at most {quota}",
                    policy.name()
                )
            }
            Self::TimedOut { limit, .. } => write!(f, "no permit within {limit:?}"),
            Self::Paused { retry_after } => {
                write!(f, "the peer asked for a pause, retry after {retry_after:?}")
            }
            Self::NotConfigured { policy } => write!(f, "no policy `{policy}` is configured"),
            Self::Forbidden { policy } => write!(f, "policy `{policy}` denies the key"),
            Self::Config(error) => write!(f, "the limit is misconfigured: {error}"),
            Self::Unavailable(error) => f.write_str(match error.kind() {
                StoreErrorKind::ShutDown => "the rate limiter was shut down",
                StoreErrorKind::Full => "the rate limiter holds as many keys as it may",
                StoreErrorKind::Overloaded => "the rate limiter has as many calls as it may",
                StoreErrorKind::Refused => "the rate limiter's store refused to answer",
                _ => "the rate limiter's store gave no answer",
            }),
        }
    }
}

impl Error for Rejection {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // `Display` says what is wrong with a configuration.
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
/// Implemented for every `Result` whose error is `From<Rejection>`. Implement it for a return type of your own, and
/// annotated functions that return it need no fallback.
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
