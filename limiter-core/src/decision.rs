//! What the limiter answers: a `Decision`, and at the edges a `Rejection`.

mod effective;
mod limit;
mod origin;

pub(crate) mod participation;
mod rejection;

use std::ops::Deref;
use std::time::Duration;

use smallvec::SmallVec;

pub use crate::decision::limit::LimitOutcome;
pub use crate::decision::origin::Origin;
pub(crate) use crate::decision::participation::{Participation, Participations};
pub use crate::decision::rejection::{FromRejection, Rejection};
use crate::error::StoreError;
use crate::support::one_or_many::OneOrMany;
use crate::units::Timestamp;

/// The answer to one call: allowed or denied, and where each of its limits stands.
///
/// Being limited is not an error. [`require`](Self::require) turns a denial into one where that is
/// wanted.
#[derive(Clone, Debug)]
#[must_use = "a denied decision must stop the call; `require` makes an error of it"]
pub struct Decision {
    pub(crate) limits: OneOrMany<LimitOutcome>,
    pub(crate) decided_at: Timestamp,
    pub(crate) store_error: Option<Box<StoreError>>,
    pub(crate) allowed: bool,
    pub(crate) origin: Origin,
    pub(crate) marks: DecisionFlags,
    pub(crate) parts: Participations,
}

/// The answers to equal requests that were sent as one, in the order of their callers.
pub(crate) type Decisions = SmallVec<[Result<Decision, Rejection>; 1]>;

/// What is to be said of few decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecisionFlags(u8);

impl DecisionFlags {
    /// It is allowed in shadow mode, and would be denied.
    pub(crate) const WOULD_DENY: Self = Self(1);
    /// It is denied because of a penalty.
    pub(crate) const BLOCKED: Self = Self(2);
    /// It is denied, and goes on all the same.
    pub(crate) const DEGRADED: Self = Self(4);

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
    /// One that allows a call of which nobody was asked.
    pub(crate) fn unasked(origin: Origin, at: Timestamp) -> Self {
        Self {
            limits: OneOrMany::default(),
            decided_at: at,
            store_error: None,
            allowed: true,
            origin,
            marks: DecisionFlags::default(),
            parts: Participations::default(),
        }
    }

    /// Whether the call may go on.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether it allows the call in shadow mode alone:
    /// [`Enforcement::Enforce`](crate::Enforcement::Enforce) would deny it, or reject it for
    /// another reason.
    #[must_use]
    pub fn would_deny(&self) -> bool {
        self.marks.has(DecisionFlags::WOULD_DENY)
    }

    /// Whether a [`Penalty`](crate::penalty::Penalty) blocks the key:
    /// [`retry_after`](Self::retry_after) is then the time until that ends, or until the limit has
    /// room, if that is later.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.marks.has(DecisionFlags::BLOCKED)
    }

    /// Whether the call goes on though it was denied, and is to be served something cheaper
    /// ([`OnDenial::Degrade`](crate::OnDenial::Degrade)). The outcomes of its limits say why.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.marks.has(DecisionFlags::DEGRADED)
    }

    /// Each limit's part, in the order in which they were asked for. Empty when nobody decided
    /// ([`Origin::FailedOpen`], [`Origin::FailedClosed`], [`Origin::NotConfigured`]); without those
    /// that a list of keys allows, or that are off.
    #[must_use]
    pub fn limits(&self) -> &[LimitOutcome] {
        &self.limits
    }

    /// The first limit that denies, or would if it were not in shadow.
    #[must_use]
    pub fn denied_by(&self) -> Option<&LimitOutcome> {
        self.limits.iter().find(|limit| !limit.is_allowed())
    }

    /// Whole permits that could be admitted right after this decision: the least of its limits, 0
    /// when nobody decided.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.limits
            .iter()
            .map(|limit| limit.remaining().whole())
            .min()
            .unwrap_or(0)
    }

    /// Time until this cost is admitted with nobody else asking, exact to the microsecond: the
    /// largest among the limits that deny. Half a second for a cost above the share of
    /// [`Origin::LocalFallback`], since nobody knows. `None` when the call is allowed, and when
    /// nobody can tell: because the store is out, or because it is up to those who are in flight
    /// ([`LimitOutcome::retry_after`] then says when the first of their leases ends, should its
    /// holder be gone).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        // What is allowed in shadow or degraded waits for nothing, and what a list denies never
        // gets better.
        if self.allowed || self.origin == Origin::KeyList {
            return None;
        }
        let denying = || self.limits.iter().filter(|limit| !limit.is_allowed());
        if denying().any(|limit| limit.policy().is_concurrency()) {
            return None;
        }
        denying().map(LimitOutcome::retry_after).max()
    }

    /// When a denial says nothing new any more of what is in flight: the first lease ends, or the
    /// store may be back.
    #[cfg(feature = "redis")]
    pub(crate) fn first_lease_ends_after(&self) -> Option<std::time::Duration> {
        let denying = self.limits.iter().filter(|limit| !limit.is_allowed());
        denying.map(LimitOutcome::retry_after).max()
    }

    /// How long an allowed call waits before it goes on, so that calls leave evenly: the longest
    /// among its limits. Zero unless one of them is a [paced](crate::PolicyBuilder::paced) funnel
    /// that is enforced, and for a call that was denied, also where it goes on for something
    /// cheaper.
    #[must_use]
    pub fn delay(&self) -> Duration {
        let delays = self.limits.iter().map(LimitOutcome::delay);
        let waits = self.allowed && !self.is_degraded();
        delays.max().filter(|_| waits).unwrap_or_default()
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
    /// [`Rejection::Limited`] with the whole decision, [`Rejection::Unavailable`] when it denies
    /// because the store is out ([`Origin::FailedClosed`]), or [`Rejection::Forbidden`] when a list
    /// does ([`Origin::KeyList`]).
    pub fn require(self) -> Result<Allowed, Rejection> {
        match &self.store_error {
            _ if self.allowed => Ok(Allowed(self)),
            _ if self.origin == Origin::KeyList => Err(Rejection::Forbidden {
                policy: self
                    .denied_by()
                    .map_or_else(String::new, |limit| limit.policy().name().to_owned()),
                decision: Box::new(self),
            }),
            // Denied because the store is out: no limit was reached.
            Some(error) if self.origin == Origin::FailedClosed => {
                let error = StoreError::clone(error);
                Err(Rejection::Unavailable(error.denying(self)))
            }
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
