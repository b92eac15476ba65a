//! The functions that the expansions of the attributes call. Not a public API: it changes without
//! notice.

mod charge_guard;
mod constant_number;
mod convert;
mod entry;
mod fallback;
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
use crate::__private::entry::EntryPolicy;
pub use crate::__private::fallback::{Fallback, ResolveValue};
pub use crate::__private::held_permits::{HeldPermits, concurrency, hold};
pub use crate::__private::layer::{
    conflicting_layer_policy, is_concurrency, names_missing_policy, register_layer_policy, verify_key_lists,
    warn_of_unmatchable_entries,
};
pub use crate::__private::peer::{bounded, give_back, now, sleep_as_waiter, unlimited};
pub use crate::__private::policies::{
    BuiltPolicy, PolicyOptions, counter_window, fixed_window, funnel, paced_funnel, rate_per, sliding_window,
    token_bucket, unspelled_window,
};
pub use crate::__private::reporter::{KeyedLogThrottle, ReportThrottle, Reporter, forwarded_unread, shed};
pub use crate::__private::settle::Settlement;
use crate::annotations::context;
use crate::annotations::context::CurrentLimiter;
pub use crate::annotations::key_template::{KeyTemplate, TemplatePiece};
pub use crate::annotations::registered::{AnnotationPolicy, RegisteredAnnotation};
use crate::check::Acquire;
use crate::check::AcquireConcurrency;
use crate::check::Check;
pub use crate::check::registry_lookup::ResolvedPolicies;
pub use crate::check::try_decide::Passage;
use crate::concurrency::ConcurrencyPermit;
use crate::decision::{Allowed, Decision};
pub use crate::decision::{FromRejection, Rejection};
use crate::error::ConfigError;
pub use crate::key::Key;
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

/// The decision of an annotated function, built from the arguments of one call.
#[derive(Debug)]
pub struct AnnotationGuard<const N: usize> {
    reporter: &'static Reporter,
    limiter: Option<Limiter>,
    entries: [AnnotationEntry; N],
    wait: Option<Result<Duration, ConfigError>>,
}

impl<const N: usize> AnnotationGuard<N> {
    /// Creates the guard with the limits of all attributes, in their order in the source.
    #[must_use]
    pub fn new(
        reporter: &'static Reporter,
        limiter: Option<Limiter>,
        entries: [AnnotationEntry; N],
        wait: Option<Result<Duration, ConfigError>>,
    ) -> Self {
        Self {
            reporter,
            limiter,
            entries,
            wait,
        }
    }
}

/// Decides a check without waiting. `Pending` has charged nothing.
#[must_use = "it may have been charged"]
#[inline]
pub fn try_decide(check: &Check<'_>) -> Poll<Result<Decision, Rejection>> {
    check.try_decide()
}

/// A check for which [`try_decide`] has returned `Pending`: it queries the store at once.
pub fn after_try(check: Check<'_>) -> Check<'_> {
    check.after_try()
}

/// Acquires concurrency permits without waiting. `Pending` has acquired nothing.
#[must_use = "a permit is released when it is dropped"]
pub fn try_acquire_concurrency(enter: &AcquireConcurrency<'_>) -> Poll<Result<ConcurrencyPermit, Rejection>> {
    enter.try_acquire().map_or(Poll::Pending, Poll::Ready)
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

/// Returns whether calls under a policy never wait: a denial rejects them, and they are not paced.
#[must_use]
#[inline]
pub fn never_waits(policy: &Policy) -> bool {
    policy.on_denial() == OnDenial::Reject && !policy.is_paced()
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

/// How the calls of a layer wait.
#[derive(Clone, Copy, Debug)]
pub struct LayerWait<'a> {
    /// The time that a call waits if its policies reject denied calls. `None`: calls wait only if
    /// their policies set it.
    pub timeout: Option<Duration>,
    /// Bounds the number of waiting calls.
    pub room: &'a WaitLimit,
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
    let room = waits.map(|waits| waits.room);
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
            let admitted = check.admitted_in_turn_within(bound, room).await;
            return admitted.map(Allowed::into_decision);
        }
    };
    let mut acquire = Acquire::new(check).timeout(timeout).bounded_by(bound);
    if let Some(waits) = waits {
        acquire = acquire.within(waits.room).rejecting_early(!waits.expects_refunds);
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

/// A rejected call, and the index of the attribute whose fallback returns the result.
#[derive(Debug)]
pub struct RejectedEntry {
    /// The index of the attribute, counted from 0.
    pub index: usize,
    /// The reason.
    pub rejection: Rejection,
}

/// Decides a call of an annotated function. `None` is a call to which its limits do not apply
/// (`when`). A misconfiguration is logged, since a fallback may hide it.
///
/// # Errors
///
/// [`RejectedEntry`] if the call is rejected.
pub async fn enter<const N: usize>(guard: Option<AnnotationGuard<N>>) -> Result<(), RejectedEntry> {
    let Some(mut guard) = guard else {
        return Ok(());
    };
    let answer = match guard.limiter() {
        Ok(limiter) => decide(&limiter, &mut guard.entries, guard.wait).await,
        Err(refused) => Err(refused),
    };
    match answer {
        Ok(_) => Ok(()),
        Err(refused) => {
            guard.reporter.report(&refused.rejection);
            Err(refused)
        }
    }
}

impl<const N: usize> AnnotationGuard<N> {
    /// Returns the named limiter, else the task's limiter, else the installed one.
    fn limiter(&mut self) -> Result<CurrentLimiter, RejectedEntry> {
        match self.limiter.take() {
            Some(limiter) => Ok(CurrentLimiter::OfTask(limiter)),
            None => context::current().map_err(|error| by_first(error.into())),
        }
    }
}

fn by_first(rejection: Rejection) -> RejectedEntry {
    RejectedEntry { index: 0, rejection }
}

/// Looks up named policies and decides the call.
async fn decide(
    limiter: &Limiter,
    entries: &mut [AnnotationEntry],
    wait: Option<Result<Duration, ConfigError>>,
) -> Result<Option<Allowed>, RejectedEntry> {
    let wait = wait.transpose().map_err(|error| by_first(error.into()))?;
    resolve(limiter, entries)?;
    decide_resolved(limiter, entries, wait).await
}

/// Replaces policy names by policies.
fn resolve(limiter: &Limiter, entries: &mut [AnnotationEntry]) -> Result<(), RejectedEntry> {
    for (index, entry) in entries.iter_mut().enumerate() {
        let resolved = entry.resolve(limiter);
        resolved.map_err(|rejection| RejectedEntry { index, rejection })?;
    }
    Ok(())
}

/// Decides all entries with a request; `None` if there is none.
async fn decide_resolved(
    limiter: &Limiter,
    entries: &[AnnotationEntry],
    wait: Option<Duration>,
) -> Result<Option<Allowed>, RejectedEntry> {
    let asked = || (entries.iter().enumerate()).filter(|(_, entry)| entry.has_request());
    let ask = |(index, entry): (usize, _)| {
        AnnotationEntry::limit_request(entry).map_err(|rejection| RejectedEntry { index, rejection })
    };
    let requests = match entries {
        [entry] if entry.has_request() => OneOrMany::One(ask((0, entry))?),
        _ => OneOrMany::Several(asked().map(ask).collect::<Result<_, _>>()?),
    };
    if requests.is_empty() {
        return Ok(None);
    }
    let answer = match wait {
        // Boxed, so that the future of calls that do not wait stays small.
        Some(timeout) => Box::pin(limiter.acquire_all(requests).timeout(timeout).into_future()).await,
        None => {
            let check = limiter.check_one_or_many(requests);
            match check.on_denial() {
                // `Degrade` needs a fallback, since the function itself cannot see the degraded
                // decision.
                OnDenial::Reject | OnDenial::Degrade if !check.is_paced() => {
                    check.await.and_then(Decision::require)
                }
                _ => Box::pin(check.admitted_in_turn())
                    .await
                    .and_then(Allowed::or_denied),
            }
        }
    };
    answer.map(Some).map_err(|rejection| RejectedEntry {
        index: rejecting_entry(&rejection, asked()),
        rejection,
    })
}

/// Returns the index of the limit that caused a rejection, among those that were requested; the
/// first one if none did.
fn rejecting_entry<'a>(
    rejection: &Rejection,
    mut asked: impl Iterator<Item = (usize, &'a AnnotationEntry)> + Clone,
) -> usize {
    let first = asked.clone().next();
    let found = match rejection {
        Rejection::NeverFits { policy, cost, .. } => asked.find(|(_, entry)| {
            entry.policy().is_ok_and(|own| own == policy) && entry.cost.as_ref() == Ok(cost)
        }),
        Rejection::Forbidden { policy, .. } => {
            asked.find(|(_, entry)| entry.policy().is_ok_and(|own| own.name() == policy))
        }
        _ => rejection.decision().and_then(|denied| {
            let limits = denied.limits();
            if limits.len() == asked.clone().count() {
                return asked.nth(limits.iter().position(|limit| !limit.is_allowed())?);
            }
            // Limits in shadow mode, off, or with the key on an allow list are not part of the
            // decision.
            let by = denied.denied_by()?.policy();
            asked.find(|(_, entry)| entry.policy().is_ok_and(|own| own == by))
        }),
    };
    found.or(first).map_or(0, |(index, _)| index)
}
