//! The functions that the expansions of the attributes and the layers of limiter-tower call. Not a
//! public API: it changes without notice.
//!
//! An expansion runs in the crate of the user, so it can call only public items. This module makes
//! the internal steps of a call public under one path, which the documentation hides: a decision
//! without waiting, a decision with waiting, the policies of attributes, and the conversions of
//! their arguments. Tests: `tests/entry_points.rs`, and those of limiter-macros and limiter-tower.

mod charge_guard;
mod constant_number;
mod convert;
mod entry;
mod fallback;
mod guard;
mod held_permits;
mod layer;
mod peer;
mod policies;
mod reporter;
mod settle;

pub use std::sync::LazyLock;
use std::task::Poll;
pub use std::time::Duration;

pub use inventory;

pub use crate::__private::charge_guard::{ChargeGuard, counts, enter_counted};
pub use crate::__private::constant_number::{ConstantNumber, need_fits};
pub use crate::__private::convert::{ToAmount, ToDuration, ToKey, ToLimiter, ToRate};
pub use crate::__private::entry::AnnotationEntry;
pub use crate::__private::fallback::{Fallback, ResolveValue};
pub use crate::__private::guard::{AnnotationGuard, PendingCall, RejectedEntry, UndecidedCall, enter};
pub use crate::__private::held_permits::{HeldPermits, concurrency, hold};
pub use crate::__private::layer::{
    conflicting_layer_policy, is_concurrency, names_missing_policy, register_layer_policy, verify_key_lists,
    warn_of_unmatchable_entries,
};
pub use crate::__private::peer::{bounded, calendar, give_back, now, sleep_as_waiter, unlimited};
pub use crate::__private::policies::{
    BuiltPolicy, PolicyOptions, counter_window, fixed_window, funnel, paced_funnel, rate_per, sliding_window,
    token_bucket, window_without_kind,
};
pub use crate::__private::reporter::{KeyedLogThrottle, ReportThrottle, Reporter, forwarded_unread, shed};
pub use crate::__private::settle::Settlement;
pub use crate::annotations::key_template::{KeyTemplate, TemplatePiece};
pub use crate::annotations::registered::{AnnotationPolicy, FunctionId, RegisteredAnnotation};
use crate::check::Acquire;
use crate::check::AcquireConcurrency;
use crate::check::Check;
pub use crate::check::registry_lookup::ResolvedPolicies;
pub use crate::check::without_waiting::Passage;
use crate::concurrency::ConcurrencyPermit;
use crate::decision::{Allowed, Decision};
pub use crate::decision::{FromRejection, Rejection};
pub use crate::key::{Key, KeyBuffer};
pub use crate::limiter::LayerToken;
use crate::limiter::Limiter;
pub use crate::policy::KeyPrefixes;
use crate::policy::OnDenial;
pub use crate::policy::{OnStoreFailure, Policy, Rate};
pub use crate::responses::details::{
    DEFAULT_DOMAIN, RETRY_PUSHBACK_MS, grpc_status_details, retry_pushback_ms,
};
pub use crate::responses::problem::problem_of_status;
pub use crate::responses::whole_seconds;
pub use crate::settlement::Settled;
pub use crate::support::one_or_many::OneOrMany;
pub use crate::units::Amount;
pub use crate::waiting::WaitLimit;

/// Decides a check without waiting. `Pending` has charged nothing.
#[must_use = "it may have been charged"]
#[inline]
pub fn try_decide(check: &Check<'_>) -> Poll<Result<Decision, Rejection>> {
    check.try_decide()
}

/// Returns a check for which [`try_decide`] has returned `Pending`: it queries the store at once.
pub fn after_try(check: Check<'_>) -> Check<'_> {
    check.after_try()
}

/// Acquires concurrency permits without waiting. `Pending` has acquired nothing.
#[must_use = "a permit is released when it is dropped"]
pub fn try_acquire_concurrency(enter: &AcquireConcurrency<'_>) -> Poll<Result<ConcurrencyPermit, Rejection>> {
    enter.try_acquire().map_or(Poll::Pending, Poll::Ready)
}

/// Sets the limits of a check whose policies were looked up in the registry: a call that waits
/// follows their changes.
pub fn registered(check: Check<'_>, are_registered: impl IntoIterator<Item = bool>) -> Check<'_> {
    check.registered(are_registered)
}

/// As [`registered`], for the policy of a concurrency limit.
pub fn registered_concurrency(enter: AcquireConcurrency<'_>, is_registered: bool) -> AcquireConcurrency<'_> {
    enter.registered([is_registered])
}

/// Looks a policy up in the limiter's registry, for a call with this key. A failed lookup is
/// counted.
///
/// # Errors
///
/// [`Rejection::NotConfigured`] if the limiter denies calls without a policy.
pub fn named(limiter: &Limiter, name: &str, key: &Key<'_>) -> Result<ResolvedPolicies, Rejection> {
    limiter.resolve_call(name, key)
}

/// As [`named`], for a call that looks its policy up again: a failed lookup is not counted.
///
/// # Errors
///
/// As [`named`].
pub fn named_again(limiter: &Limiter, name: &str, key: &Key<'_>) -> Result<ResolvedPolicies, Rejection> {
    limiter.resolve_again(name, key)
}

/// Returns whether calls under a policy never wait: a denial rejects them, and they are not paced.
#[must_use]
#[inline]
pub fn never_waits(policy: &Policy) -> bool {
    policy.on_denial() == OnDenial::Reject && !policy.is_paced()
}

/// Returns whether the limit at this index of the decision was decided in shadow mode.
#[must_use]
pub fn is_in_shadow(decision: &Decision, index: usize) -> bool {
    decision.is_in_shadow(index)
}

/// Returns the text that `write` returned at its first call for this policy. Used by
/// limiter-tower's headers.
pub fn cached_text(policy: &Policy, write: impl FnOnce() -> String) -> &str {
    policy.cached_text(write)
}

/// Decides a check and applies the policies' reaction to a denial. Returns the decision of a call
/// that may proceed.
///
/// # Errors
///
/// The rejection of the call.
///
/// # Cancel safety
///
/// If the call is dropped while it waits for its turn, its charge is refunded; otherwise as for
/// awaiting the check.
pub async fn admit(check: Check<'_>) -> Result<Decision, Rejection> {
    check.admitted_in_turn().await.map(Allowed::into_decision)
}

/// The wait of the calls of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerWait<'a> {
    /// The time that a call waits if its policies reject denied calls. `None`: calls wait only if
    /// their policies set it.
    pub timeout: Option<Duration>,
    /// Bounds the number of waiting calls.
    pub wait_limit: &'a WaitLimit,
    /// Calls of the layer refund permits, so a call waits even if its permit is due after its
    /// timeout. Otherwise such a call is rejected immediately.
    pub expects_refunds: bool,
}

/// Decides as [`admit`], except that a call whose policies reject denied calls waits as its layer
/// defines. A policy with another reaction to a denial takes precedence. `bound` is the call's own
/// timeout for permits and for its turn. A call with a timeout of zero does not join the queue.
///
/// # Errors
///
/// The rejection of the call. If no slot is free, its retry time is the time when a permit is
/// available after those of all earlier calls.
pub async fn admit_waiting(
    check: Check<'_>,
    waits: Option<LayerWait<'_>>,
    bound: Option<Duration>,
) -> Result<Decision, Rejection> {
    let own = check.on_denial();
    let wait_limit = waits.map(|waits| waits.wait_limit);
    let timeout = match (own, waits) {
        (OnDenial::Wait(own), Some(waits)) => waits.timeout.map_or(own, |timeout| own.min(timeout)),
        (OnDenial::Wait(own), None) => own,
        (
            OnDenial::Reject,
            Some(LayerWait {
                timeout: Some(timeout),
                ..
            }),
        ) if !timeout.is_zero() => timeout,
        (OnDenial::Reject | OnDenial::Degrade, _) => {
            let admitted = check.admitted_in_turn_within(bound, wait_limit).await;
            return admitted.map(Allowed::into_decision);
        }
    };
    let mut acquire = Acquire::new(check).timeout(timeout).bounded_by(bound);
    if let Some(waits) = waits {
        acquire = acquire.within(waits.wait_limit);
        if !waits.expects_refunds {
            acquire = acquire.rejecting_early();
        }
    }
    Ok(acquire.await?.into_decision())
}

/// Decides one limit in process for a caller that reads a decision only if it denies the call.
#[must_use = "it may have been charged"]
#[inline]
pub fn try_pass(limiter: &Limiter, policy: &Policy, key: &Key<'_>, cost: Amount) -> Passage {
    limiter.try_pass(policy, key, cost)
}

/// Takes a permit for a call that otherwise waits, if one is available and no call waits before it.
/// `Pending` has charged nothing.
#[must_use = "it may have been charged"]
pub fn try_acquire(check: &Check<'_>) -> Poll<Result<Decision, Rejection>> {
    check.try_acquire()
}
