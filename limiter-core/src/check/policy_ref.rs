//! References to policies: a policy, or its name in the limiter's registry.
//!
//! All calls are generic over the reference. A call looks its policies up when it is polled for the
//! first time: a policy refers to itself, and a name refers to the registry's current policy, which
//! the call keeps until it ends; a call that waits follows the changes of the registry. If the
//! registry has no policy of the name, the limiter's `OnUnknownPolicy` decides whether the call is
//! allowed without limits or rejected.
//!
//! Tests: `tests/entry_points.rs`, `tests/contract/named.rs`.

use std::fmt;
use std::task::Poll;

use crate::algorithm::Mode;
use crate::check::Check;
use crate::check::query::PendingDecision;
use crate::check::registry_lookup::{RegisteredLimits, ResolvedPolicies};
use crate::decision::{Decision, Rejection};
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::{LimitCharge, LimitRequest};
use crate::support::one_or_many::OneOrMany;

/// A reference to a policy: the policy, or its name, which each call looks up in the
/// [registry](Limiter::registry).
///
/// Calls such as [`Check`](crate::future::Check) are generic over it. Only `&Policy` and `&str`
/// implement it.
pub trait PolicyRef: Lookup {}

impl PolicyRef for &Policy {}

impl PolicyRef for &str {}

/// The methods of [`PolicyRef`], in a private module, so that no other type can implement it.
pub trait Lookup: Copy + fmt::Debug + Send + Sync + Unpin {
    /// The policy that was looked up.
    type Found: Send + Sync;

    /// The limits of a call whose policies are looked up.
    const REGISTERED: RegisteredLimits;

    /// Returns the name of the policy.
    fn name(&self) -> &str;

    /// Looks the policy up for a call with this key. A call without a policy is counted.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown name if the limiter denies such calls.
    fn look_up(self, limiter: &Limiter, key: &Key<'_>) -> Result<ResolvedPolicies<Self::Found>, Rejection>;

    /// Returns the policy that was looked up.
    fn policy<'b>(self, found: &'b Self::Found) -> &'b Policy
    where
        Self: 'b;

    /// Returns the check if its policies need no lookup.
    fn without_lookup<'b>(check: &'b Check<'_, Self>) -> Option<&'b Check<'b>>;

    /// Looks up the policy of a check. A peek without a policy is not counted.
    ///
    /// # Errors
    ///
    /// As [`look_up`](Self::look_up).
    fn look_up_for(check: &Check<'_, Self>) -> Result<ResolvedPolicies<Self::Found>, Rejection>;

    /// Decides a check without waiting, or returns `Pending` and writes the future that queries the
    /// store. `charge` is the identity and the cost of the only limit, if an attempt to decide has
    /// computed them.
    fn start<'b>(
        check: &mut Check<'b, Self>,
        charge: Option<LimitCharge>,
        query: &mut Option<PendingDecision<'b>>,
    ) -> Poll<Result<Decision, Rejection>>
    where
        Self: 'b;
}

impl Lookup for &str {
    type Found = Policy;

    const REGISTERED: RegisteredLimits = RegisteredLimits::FIRST;

    fn name(&self) -> &str {
        self
    }

    fn look_up(self, limiter: &Limiter, key: &Key<'_>) -> Result<ResolvedPolicies, Rejection> {
        limiter.resolve_call(self, key)
    }

    fn policy<'b>(self, found: &'b Policy) -> &'b Policy
    where
        Self: 'b,
    {
        found
    }

    fn without_lookup<'b>(_: &'b Check<'_, Self>) -> Option<&'b Check<'b>> {
        None
    }

    fn look_up_for(check: &Check<'_, Self>) -> Result<ResolvedPolicies, Rejection> {
        let request = check.only_request()?;
        match check.mode {
            Mode::Charge => check.limiter.resolve_call(request.policy, &request.key),
            _ => check.limiter.resolve(request.policy, &request.key),
        }
    }

    fn start<'b>(
        check: &mut Check<'b, Self>,
        _: Option<LimitCharge>,
        query: &mut Option<PendingDecision<'b>>,
    ) -> Poll<Result<Decision, Rejection>>
    where
        Self: 'b,
    {
        let policy = match Self::look_up_for(check)? {
            ResolvedPolicies::Policy(policy) => policy,
            ResolvedPolicies::Allowed(decision) => return Poll::Ready(Ok(decision)),
        };
        let request = check.only_request()?.borrowed().resolved(&policy);
        if let Poll::Ready(answer) = Check::alone(check.limiter, request, check.mode).try_decide() {
            return Poll::Ready(answer);
        }
        let check = check.take();
        *query = Some(Box::pin(async move { check.resolved(&policy).after_try().await }));
        Poll::Pending
    }
}

impl<'a> Check<'a, &'a str> {
    /// Returns the limit of a check by name. Such a check has one limit.
    fn only_request(&self) -> Result<&LimitRequest<'a, &'a str>, Rejection> {
        self.requests.first().ok_or_else(|| {
            let policy = String::new();
            Rejection::NotConfigured { policy }
        })
    }
}

impl<'a, P: PolicyRef> LimitRequest<'a, P> {
    /// Looks up the policy of a call.
    pub(crate) fn look_up(&self, limiter: &Limiter) -> Result<ResolvedPolicies<P::Found>, Rejection> {
        self.policy.look_up(limiter, &self.key)
    }

    /// Returns the request with the policy that was looked up.
    #[inline]
    pub(crate) fn resolved<'b>(self, found: &'b P::Found) -> LimitRequest<'b>
    where
        'a: 'b,
        P: 'b,
    {
        LimitRequest {
            policy: self.policy.policy(found),
            key: self.key,
            cost: self.cost,
        }
    }
}

impl<'a, P: PolicyRef> Check<'a, P> {
    /// Returns the check with the policy that was looked up.
    #[inline]
    pub(super) fn resolved<'b>(self, found: &'b P::Found) -> Check<'b>
    where
        'a: 'b,
        P: 'b,
    {
        Check {
            limiter: self.limiter,
            requests: match self.requests {
                OneOrMany::One(request) => OneOrMany::One(request.resolved(found)),
                OneOrMany::Several(requests) => {
                    let resolved = requests.into_iter().map(|request| request.resolved(found));
                    OneOrMany::Several(resolved.collect())
                }
            },
            mode: self.mode,
            is_tried: self.is_tried,
            registered: self.registered.and(P::REGISTERED),
        }
    }
}
