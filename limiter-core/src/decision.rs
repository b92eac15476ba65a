//! The result of a call: a `Decision`, or a `Rejection` at the API boundary.
//!
//! Every store and every rule outside the stores returns a `Decision`: whether the call is allowed,
//! the component that decided, and one `LimitOutcome` for each limit that was decided. A denial is
//! not an error; `Decision::require` converts it into the `Rejection` that its origin determines.
//!
//! Invariant: a denial by a concurrency limit or by a rule for the key has no retry time. Tests:
//! `tests/contract/retry.rs`, `tests/entry_points.rs`, and below in `responses.rs`.

mod client_hints;
mod limit;
mod origin;

pub(crate) mod participation;
mod rejection;

use std::ops::Deref;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::StepResult;
pub use crate::decision::limit::LimitOutcome;
pub use crate::decision::origin::Origin;
pub(crate) use crate::decision::participation::{Participation, Participations};
pub use crate::decision::rejection::{FromRejection, Rejection};
use crate::error::StoreError;
use crate::policy::{CachedPolicy, Policy};
use crate::support::one_or_many::OneOrMany;
use crate::units::Timestamp;

/// The result of one call: whether it is allowed, and the state of each of its limits.
///
/// A denial is not an error. [`require`](Self::require) converts it into one.
#[derive(Clone, Debug)]
#[must_use = "a denied decision must stop the call; `require` makes an error of it"]
pub struct Decision {
    pub(crate) limits: OneOrMany<LimitOutcome>,
    pub(crate) decided_at: Timestamp,
    pub(crate) store_error: Option<Box<StoreError>>,
    pub(crate) allowed: bool,
    pub(crate) origin: Origin,
    pub(crate) flags: DecisionFlags,
    pub(crate) parts: Participations,
}

/// The outcome of a limit that was decided alone. A caller that needs only the result builds no
/// decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleOutcome {
    pub(crate) decided_at: Timestamp,
    pub(crate) fits: bool,
    pub(crate) result: StepResult,
    pub(crate) origin: Origin,
}

impl SingleOutcome {
    /// Returns the decision that consists of this outcome.
    #[inline]
    pub(crate) fn decision(&self, policy: &Policy) -> Decision {
        Decision {
            limits: OneOrMany::One(LimitOutcome {
                policy: CachedPolicy::new(policy),
                result: self.result,
            }),
            decided_at: self.decided_at,
            store_error: None,
            allowed: self.fits,
            origin: self.origin,
            flags: DecisionFlags::default(),
            parts: Participations::default(),
        }
    }
}

/// Results of equal requests that were sent to Redis as one batch, in the order of their callers.
pub(crate) type Decisions = SmallVec<[Result<Decision, Rejection>; 1]>;

/// Flags that few decisions set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecisionFlags(u8);

impl DecisionFlags {
    /// Shadow mode allows the call; enforcement would deny it.
    pub(crate) const WOULD_DENY: Self = Self(1);
    /// A penalty denies the call.
    pub(crate) const BLOCKED: Self = Self(2);
    /// The call was denied and continues in degraded form.
    pub(crate) const DEGRADED: Self = Self(4);
    /// Redis and this replica's share have both admitted the call.
    pub(crate) const IN_SHARE: Self = Self(8);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Decision {
    /// Returns a decision that allows a call without a query to the store.
    pub(crate) fn without_query(origin: Origin, at: Timestamp) -> Self {
        Self {
            limits: OneOrMany::default(),
            decided_at: at,
            store_error: None,
            allowed: true,
            origin,
            flags: DecisionFlags::default(),
            parts: Participations::default(),
        }
    }

    /// Returns whether the call may proceed.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns whether only shadow mode allows the call:
    /// [`Enforcement::Enforce`](crate::Enforcement::Enforce) would deny or reject it.
    #[must_use]
    pub fn would_deny(&self) -> bool {
        self.flags.has(DecisionFlags::WOULD_DENY)
    }

    /// Returns whether a [`Penalty`](crate::penalty::Penalty) blocks the key.
    /// [`retry_after`](Self::retry_after) is then the time until the block ends or until the limit
    /// has capacity, whichever is later.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.flags.has(DecisionFlags::BLOCKED)
    }

    /// Returns whether the call was denied and proceeds in degraded form
    /// ([`OnDenial::Degrade`](crate::OnDenial::Degrade)). The outcomes of its limits contain the
    /// reason.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.flags.has(DecisionFlags::DEGRADED)
    }

    /// Returns the outcome of each limit, in the order of the request. It is empty when the call
    /// was decided without limits ([`Origin::FailedOpen`], [`Origin::FailedClosed`],
    /// [`Origin::NotConfigured`]), and it omits limits that are off, and limits whose key list
    /// allows the key.
    #[must_use]
    pub fn limits(&self) -> &[LimitOutcome] {
        &self.limits
    }

    /// Returns the first limit that denies the call, or that would deny it outside shadow mode.
    #[must_use]
    pub fn denied_by(&self) -> Option<&LimitOutcome> {
        self.limits.iter().find(|limit| !limit.is_allowed())
    }

    /// Returns the number of whole permits that the call could still obtain right after this
    /// decision: the minimum of its limits, or 0 if the decision contains no limit.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.limits
            .iter()
            .map(|limit| limit.remaining().whole())
            .min()
            .unwrap_or(0)
    }

    /// Returns the time until this cost is admitted if no other caller takes permits, exact to the
    /// microsecond: the maximum of the limits that deny. A cost above the share of
    /// [`Origin::LocalFallback`] returns 0.5 s as an estimate. Returns `None` when the call is
    /// allowed and when the time is unknown: the store is unavailable, or a concurrency limit
    /// denies ([`LimitOutcome::retry_after`] then returns the time until the first lease expires if
    /// its holder does not renew it).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        // Shadow and degraded calls do not wait, and no wait ends a denial by a rule for the key.
        if self.allowed || self.origin.is_independent_of_permits() {
            return None;
        }
        let denying = || self.limits.iter().filter(|limit| !limit.is_allowed());
        if denying().any(|limit| limit.policy().is_concurrency()) {
            return None;
        }
        denying().map(LimitOutcome::retry_after).max()
    }

    /// Returns the time after which a concurrency denial is outdated: the first lease expires, or
    /// the store may be available again.
    #[cfg(feature = "redis")]
    pub(crate) fn first_lease_ends_after(&self) -> Option<std::time::Duration> {
        let denying = self.limits.iter().filter(|limit| !limit.is_allowed());
        denying.map(LimitOutcome::retry_after).max()
    }

    /// Returns the time that an allowed call waits before it proceeds, so that calls are evenly
    /// spaced: the maximum of its limits. Zero unless one of them is an enforced
    /// [paced](crate::PolicyBuilder::paced) funnel. Zero for denied calls, including those that
    /// proceed in degraded form.
    #[must_use]
    pub fn delay(&self) -> Duration {
        let delays = self.limits.iter().map(LimitOutcome::delay);
        let waits = self.allowed && !self.is_degraded();
        delays.max().filter(|_| waits).unwrap_or_default()
    }

    /// Returns the time until no usage remains under any of the limits.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.limits
            .iter()
            .map(LimitOutcome::reset_after)
            .max()
            .unwrap_or_default()
    }

    /// Returns the store's time of the decision, or this process's time if the store did not
    /// decide.
    #[must_use]
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns the component that made the decision.
    #[must_use]
    #[inline]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the error because of which the store did not decide, if any.
    #[must_use]
    pub fn store_error(&self) -> Option<&StoreError> {
        self.store_error.as_deref()
    }

    /// Returns the decision as [`Allowed`] if it allows the call, otherwise the reason as a
    /// [`Rejection`].
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`] with the whole decision, [`Rejection::Unavailable`] if the call is
    /// denied because the store is unavailable ([`Origin::FailedClosed`]), or
    /// [`Rejection::Forbidden`] if a key list, a suspension or a block denies it
    /// ([`Origin::is_independent_of_permits`]).
    #[inline]
    pub fn require(self) -> Result<Allowed, Rejection> {
        if self.allowed {
            Ok(Allowed(self))
        } else {
            Err(self.into_rejection())
        }
    }

    /// Returns the reason of a denial.
    #[cold]
    fn into_rejection(self) -> Rejection {
        match &self.store_error {
            _ if self.origin.is_independent_of_permits() => Rejection::Forbidden {
                policy: self
                    .denied_by()
                    .map_or_else(String::new, |limit| limit.policy().name().to_owned()),
                decision: Box::new(self),
            },
            // Denied because the store is unavailable: no limit was reached.
            Some(error) if self.origin == Origin::FailedClosed => Rejection::Unavailable {
                error: StoreError::clone(error),
                decision: Some(Box::new(self)),
            },
            _ => Rejection::Limited(Box::new(self)),
        }
    }
}

/// A decision that allows the call. Unlike a [`Decision`], it may be dropped unused.
#[derive(Clone, Debug)]
pub struct Allowed(Decision);

impl Allowed {
    /// Returns the decision.
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
