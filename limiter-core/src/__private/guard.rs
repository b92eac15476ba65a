//! The decision of an annotated function.
//!
//! The expansion builds an [`AnnotationGuard`], which borrows the arguments of the call, and
//! decides it in the same statement ([`AnnotationGuard::try_enter`]). In process, and with Redis if
//! the deny cache or leased tokens suffice, this is the whole decision: no future is created, and
//! nothing is copied. A call that needs I/O or has to wait becomes a [`PendingCall`], which owns
//! its keys, and is awaited. Tests: `tests/entry_points.rs`, `tests/allocations.rs`, and those of
//! limiter-macros.

use std::task::Poll;
use std::time::Duration;

use crate::__private::{AnnotationEntry, Reporter};
use crate::annotations::context;
use crate::annotations::context::CurrentLimiter;
use crate::check::without_waiting::Passage;
use crate::check::{Acquire, Check};
use crate::decision::{Allowed, Decision, Rejection};
use crate::error::{ConfigError, StoreError};
use crate::limiter::Limiter;
use crate::policy::{Enforcement, OnDenial};
use crate::request::LimitRequest;
use crate::support::one_or_many::OneOrMany;

/// The limits of one call of an annotated function, built from its arguments.
#[derive(Debug)]
pub struct AnnotationGuard<'a, const N: usize> {
    reporter: &'static Reporter,
    limiter: Option<&'a Limiter>,
    entries: [AnnotationEntry<'a>; N],
    wait: Option<Result<Duration, ConfigError>>,
}

/// A call of an annotated function that was not decided yet.
#[derive(Debug)]
pub struct PendingCall<const N: usize> {
    pub(super) reporter: &'static Reporter,
    pub(super) limiter: Result<CurrentLimiter<'static>, StoreError>,
    pub(super) entries: [AnnotationEntry<'static>; N],
    pub(super) wait: Option<Result<Duration, ConfigError>>,
}

/// A call that [`AnnotationGuard::try_enter`] did not allow.
#[derive(Debug)]
pub enum UndecidedCall<const N: usize> {
    /// The call is rejected.
    Rejected(RejectedEntry),
    /// The call needs I/O, or has to wait. Boxed, so that the future of the annotated function
    /// stays small.
    Pending(Box<PendingCall<N>>),
}

/// A rejected call, and the index of the attribute whose fallback returns the result.
#[derive(Debug)]
pub struct RejectedEntry {
    /// The index of the attribute, counted from 0.
    pub index: usize,
    /// The reason.
    pub rejection: Rejection,
}

impl<'a, const N: usize> AnnotationGuard<'a, N> {
    /// Creates the guard with the limits of all attributes, in their order in the source.
    #[must_use]
    #[inline]
    pub fn new(
        reporter: &'static Reporter,
        limiter: Option<&'a Limiter>,
        entries: [AnnotationEntry<'a>; N],
        wait: Option<Result<Duration, ConfigError>>,
    ) -> Self {
        Self {
            reporter,
            limiter,
            entries,
            wait,
        }
    }

    /// Decides the call without waiting. `None` allows it. A misconfiguration is logged, since a
    /// fallback may hide it.
    #[must_use = "the call may be rejected"]
    #[inline]
    pub fn try_enter(mut self) -> Option<UndecidedCall<N>> {
        let limiter = self.limiter;
        // By reference, so that the guard is not copied.
        let decided = match self.wait {
            None => try_decide_with(limiter, &mut self.entries, self.reporter),
            // A wait needs a timer.
            Some(_) => Poll::Pending,
        };
        match decided {
            Poll::Ready(Ok(())) => None,
            Poll::Ready(Err(refused)) => Some(UndecidedCall::Rejected(refused)),
            Poll::Pending => Some(self.boxed()),
        }
    }

    #[cold]
    fn boxed(self) -> UndecidedCall<N> {
        UndecidedCall::Pending(Box::new(self.pending()))
    }

    /// Returns the call with its own keys, never `None`.
    #[must_use]
    pub fn into_pending(self) -> Option<PendingCall<N>> {
        Some(self.pending())
    }

    fn pending(self) -> PendingCall<N> {
        PendingCall {
            reporter: self.reporter,
            limiter: limiter_of(self.limiter).map(CurrentLimiter::into_owned),
            entries: self.entries.map(AnnotationEntry::into_owned),
            wait: self.wait,
        }
    }
}

/// Returns the named limiter, else the task's limiter, else the installed one.
#[inline]
fn limiter_of(named: Option<&Limiter>) -> Result<CurrentLimiter<'_>, StoreError> {
    match named {
        Some(limiter) => Ok(CurrentLimiter::Named(limiter)),
        None => context::current(),
    }
}

impl<const N: usize> PendingCall<N> {
    /// Returns the limiter of the call.
    pub(super) fn limiter(&self) -> Result<&Limiter, RejectedEntry> {
        match &self.limiter {
            Ok(limiter) => Ok(limiter),
            Err(error) => Err(by_first(error.clone())),
        }
    }
}

/// Decides a call that [`AnnotationGuard::try_enter`] did not allow. A misconfiguration is logged.
///
/// # Errors
///
/// [`RejectedEntry`] if the call is rejected.
pub async fn enter<const N: usize>(undecided: UndecidedCall<N>) -> Result<(), RejectedEntry> {
    let mut call = match undecided {
        UndecidedCall::Rejected(refused) => return Err(refused),
        UndecidedCall::Pending(call) => call,
    };
    let PendingCall {
        reporter,
        limiter,
        entries,
        wait,
    } = &mut *call;
    let answer = match limiter {
        Ok(limiter) => decide(limiter, entries, wait.take()).await,
        Err(error) => Err(by_first(error.clone())),
    };
    answer.inspect_err(|refused| reporter.report(&refused.rejection))
}

pub(super) fn by_first(rejection: impl Into<Rejection>) -> RejectedEntry {
    let rejection = rejection.into();
    RejectedEntry { index: 0, rejection }
}

/// Decides a call without waiting. `Pending` has charged nothing, and has looked up named policies.
fn try_decide_with(
    limiter: Option<&Limiter>,
    entries: &mut [AnnotationEntry<'_>],
    reporter: &Reporter,
) -> Poll<Result<(), RejectedEntry>> {
    let decided = match limiter_of(limiter) {
        Ok(limiter) => try_decide(&limiter, entries),
        Err(error) => Poll::Ready(Err(by_first(error))),
    };
    if let Poll::Ready(Err(refused)) = &decided {
        reporter.report(&refused.rejection);
    }
    decided
}

#[inline]
fn try_decide(limiter: &Limiter, entries: &mut [AnnotationEntry<'_>]) -> Poll<Result<(), RejectedEntry>> {
    resolve(limiter, entries)?;
    if let [entry] = entries {
        // A decision is written only for a denied call.
        if let Some((policy, cost)) = entry.immediate() {
            match limiter.try_pass(policy, &entry.key, cost) {
                Passage::Allowed => return Poll::Ready(Ok(())),
                Passage::Decided(answer) => {
                    let required = answer.and_then(Decision::require);
                    return Poll::Ready(required.map(drop).map_err(by_first));
                }
                Passage::Undecided => {}
            }
        }
    }
    try_decide_check(limiter, entries)
}

#[inline(never)]
fn try_decide_check(limiter: &Limiter, entries: &[AnnotationEntry<'_>]) -> Poll<Result<(), RejectedEntry>> {
    let requests = requests(limiter, entries)?;
    if requests.is_empty() {
        return Poll::Ready(Ok(()));
    }
    let check = limiter.check_one_or_many(requests);
    if !is_decided_at_once(&check) {
        return Poll::Pending;
    }
    check.try_decide().map(|answer| {
        let required = answer.and_then(Decision::require);
        required
            .map(drop)
            .map_err(|rejection| rejected(rejection, entries))
    })
}

/// Looks up named policies and decides a call for which [`try_decide_with`] has returned `Pending`,
/// or which may wait.
async fn decide(
    limiter: &Limiter,
    entries: &mut [AnnotationEntry<'_>],
    wait: Option<Result<Duration, ConfigError>>,
) -> Result<(), RejectedEntry> {
    let wait = valid_wait(limiter, wait)?;
    resolve(limiter, entries)?;
    let allowed = decide_resolved(limiter, entries, wait, after_try).await?;
    drop(allowed);
    Ok(())
}

/// Marks a check that [`try_decide_with`] has attempted.
fn after_try(check: Check<'_>) -> Check<'_> {
    match is_decided_at_once(&check) {
        true => check.after_try(),
        false => check,
    }
}

/// Returns whether the policies of a check neither wait nor delay calls. `Degrade` does neither; it
/// needs a fallback, since the function itself cannot see the degraded decision.
fn is_decided_at_once(check: &Check<'_>) -> bool {
    matches!(check.on_denial(), OnDenial::Reject | OnDenial::Degrade) && !check.is_paced()
}

/// Replaces policy names by policies.
#[inline]
pub(super) fn resolve(limiter: &Limiter, entries: &mut [AnnotationEntry<'_>]) -> Result<(), RejectedEntry> {
    for (index, entry) in entries.iter_mut().enumerate() {
        let resolved = entry.resolve(limiter);
        resolved.map_err(|rejection| RejectedEntry { index, rejection })?;
    }
    Ok(())
}

/// Returns whether a misconfiguration rejects a call. In shadow mode and with limits that are off,
/// every call is allowed.
pub(super) fn is_enforced(limiter: &Limiter) -> bool {
    limiter.enforcement() == Enforcement::Enforce
}

/// Returns the `wait` of a call. An invalid one is ignored if limits are not enforced.
pub(super) fn valid_wait(
    limiter: &Limiter,
    wait: Option<Result<Duration, ConfigError>>,
) -> Result<Option<Duration>, RejectedEntry> {
    match wait.transpose() {
        Err(_) if !is_enforced(limiter) => Ok(None),
        wait => wait.map_err(by_first),
    }
}

/// Returns the requests of the entries that have one. None is returned if a policy is invalid and
/// limits are not enforced.
fn requests<'b>(
    limiter: &Limiter,
    entries: &'b [AnnotationEntry<'_>],
) -> Result<OneOrMany<LimitRequest<'b>>, RejectedEntry> {
    let request_of = |(index, entry): (usize, &'b AnnotationEntry<'_>)| {
        let request = entry.limit_request();
        request.map_err(|rejection| RejectedEntry { index, rejection })
    };
    let requests = match entries {
        [entry] if entry.has_request() => request_of((0, entry)).map(OneOrMany::One),
        _ => requested(entries)
            .map(request_of)
            .collect::<Result<_, _>>()
            .map(OneOrMany::Several),
    };
    match requests {
        Err(_) if !is_enforced(limiter) => Ok(OneOrMany::default()),
        requests => requests,
    }
}

/// Returns the entries that have a request, with their indices.
fn requested<'b, 'a>(
    entries: &'b [AnnotationEntry<'a>],
) -> impl Iterator<Item = (usize, &'b AnnotationEntry<'a>)> + Clone {
    entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.has_request())
}

/// Decides all entries with a request; `None` if there is none. `prepare` adjusts the check of a
/// call without `wait`.
pub(super) async fn decide_resolved(
    limiter: &Limiter,
    entries: &[AnnotationEntry<'_>],
    wait: Option<Duration>,
    prepare: fn(Check<'_>) -> Check<'_>,
) -> Result<Option<Allowed>, RejectedEntry> {
    let requests = requests(limiter, entries)?;
    if requests.is_empty() {
        return Ok(None);
    }
    let registered = requested(entries).map(|(_, entry)| entry.is_registered());
    let check = limiter.check_one_or_many(requests).registered(registered);
    let answer = match wait {
        Some(timeout) => Acquire::new(check).timeout(timeout).await,
        None => {
            let check = prepare(check);
            if is_decided_at_once(&check) {
                check.await.and_then(Decision::require)
            } else {
                Box::pin(check.admitted_in_turn())
                    .await
                    .and_then(Allowed::or_denied)
            }
        }
    };
    answer.map(Some).map_err(|rejection| rejected(rejection, entries))
}

#[cold]
fn rejected(rejection: Rejection, entries: &[AnnotationEntry<'_>]) -> RejectedEntry {
    RejectedEntry {
        index: rejecting_entry(&rejection, requested(entries)),
        rejection,
    }
}

/// Returns the index of the limit that caused a rejection, among those that were requested; the
/// first one if none did. The limits of a function have different names, and the policy that
/// rejected a waiting call can be newer than its own.
fn rejecting_entry<'b, 'a: 'b>(
    rejection: &Rejection,
    mut requested: impl Iterator<Item = (usize, &'b AnnotationEntry<'a>)> + Clone,
) -> usize {
    let first = requested.clone().next();
    if let (Rejection::Config(_), Some((index, _))) = (
        rejection,
        requested.clone().find(|(_, entry)| entry.cost.is_err()),
    ) {
        return index;
    }
    let by = match rejection {
        Rejection::NeverFits { policy, .. } => Some(policy.name()),
        Rejection::Forbidden { policy, .. } => Some(policy.as_str()),
        _ => rejection
            .decision()
            .and_then(Decision::denied_by)
            .map(|limit| limit.policy().name()),
    };
    let found =
        by.and_then(|by| requested.find(|(_, entry)| entry.policy().is_ok_and(|own| own.name() == by)));
    found.or(first).map_or(0, |(index, _)| index)
}
