//! The outcome of each limit of a call, for the metrics and for the usage of the fleet.
//!
//! The functions of this module are called once per call. They count each limit in the metrics and
//! in the usage of the limiter, if it reports one.
//!
//! Invariant: each entry point counts a call once, and peeks are not counted. Tests:
//! `tests/metrics.rs`, `tests/usage.rs`, `tests/entry_points.rs`
//! (`entry_points_count_each_call_once`).

#[cfg(not(feature = "redis"))]
pub(crate) use std::convert::Infallible as UsageRecorder;
use std::iter;

use smallvec::SmallVec;

use crate::algorithm::Mode;
use crate::decision::{Allowed, Decision, Origin, Rejection, SingleOutcome};
use crate::key::Key;
use crate::observe::{AsDecision, HAS_METRICS, LimitEvent, count, count_calls, count_trial};
use crate::policy::Policy;
use crate::request::DecisionRequest;
#[cfg(feature = "redis")]
pub(crate) use crate::usage_recorder::UsageRecorder;
#[cfg(feature = "redis")]
use crate::usage_recorder::{CountedUsage, UsageOutcome};

/// A limit of a call: its policy, and its key as far as the call knows it.
#[derive(Clone, Debug)]
pub(crate) struct ReportedLimit<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) key: Option<Key<'a>>,
}

impl<'a> ReportedLimit<'a> {
    pub(crate) fn new(policy: &'a Policy, key: &'a Key<'_>) -> Self {
        Self {
            policy,
            key: Some(key.into()),
        }
    }

    pub(crate) fn without_key(policy: &'a Policy) -> Self {
        Self { policy, key: None }
    }
}

/// Counts the event of one limit.
fn report(
    usage: Option<&UsageRecorder>,
    limit: &ReportedLimit<'_>,
    event: LimitEvent,
    origin: Option<Origin>,
) {
    count(limit.policy, event, origin);
    count_usage(usage, limit, event, origin);
}

fn count_usage(
    usage: Option<&UsageRecorder>,
    limit: &ReportedLimit<'_>,
    event: LimitEvent,
    origin: Option<Origin>,
) {
    count_usage_of_calls(usage, limit, (event, 1), origin);
}

#[cfg(feature = "redis")]
fn count_usage_of_calls(
    usage: Option<&UsageRecorder>,
    limit: &ReportedLimit<'_>,
    (event, calls): (LimitEvent, u64),
    origin: Option<Origin>,
) {
    if let (Some(usage), Some(outcome)) = (usage, event.usage()) {
        let counted = CountedUsage {
            outcome,
            origin,
            calls,
        };
        usage.record(limit.policy, limit.key.as_ref().map(Key::as_str), counted);
    }
}

#[cfg(not(feature = "redis"))]
fn count_usage_of_calls(
    _: Option<&UsageRecorder>,
    _: &ReportedLimit<'_>,
    _: (LimitEvent, u64),
    _: Option<Origin>,
) {
}

/// Counts calls of one limit that were decided without the limiter.
pub(crate) fn record_holder_decisions(
    usage: Option<&UsageRecorder>,
    limit: &ReportedLimit<'_>,
    (event, calls): (LimitEvent, u64),
    origin: Origin,
) {
    if calls > 0 {
        count_calls(limit.policy, event, Some(origin), calls);
        count_usage_of_calls(usage, limit, (event, calls), Some(origin));
    }
}

/// Counts the result of a request.
pub(crate) fn record_request(
    usage: Option<&UsageRecorder>,
    request: &DecisionRequest<'_>,
    answer: &Result<Decision, Rejection>,
) {
    let limits = request.policies_and_keys();
    let limits = limits.map(|(policy, key)| ReportedLimit::new(policy, key));
    record_call(usage, limits, request.mode, answer);
}

/// Counts a decided call with one limit in the metrics. Peeks are not counted.
#[inline]
pub(crate) fn record_decision(policy: &Policy, mode: Mode, outcome: &SingleOutcome) {
    if mode == Mode::Charge {
        count(policy, event_of(outcome), Some(outcome.origin));
    }
}

/// Counts a denied or allowed call with one limit in the usage, after [`record_decision`].
#[cold]
pub(crate) fn record_usage(
    usage: &UsageRecorder,
    limit: &ReportedLimit<'_>,
    mode: Mode,
    outcome: &SingleOutcome,
) {
    if mode == Mode::Charge {
        count_usage(Some(usage), limit, event_of(outcome), Some(outcome.origin));
    }
}

/// Returns whether decisions are counted at all.
#[inline]
fn is_observed(usage: Option<&UsageRecorder>) -> bool {
    HAS_METRICS || usage.is_some()
}

#[inline]
fn event_of(outcome: &SingleOutcome) -> LimitEvent {
    if outcome.fits {
        LimitEvent::Allowed
    } else {
        LimitEvent::Denied
    }
}

/// Counts a call with one limit that was not decided.
#[cold]
pub(crate) fn record_rejection(
    usage: Option<&UsageRecorder>,
    policy: &Policy,
    mode: Mode,
    rejection: &Rejection,
) {
    let limit = iter::once(ReportedLimit::without_key(policy));
    count_rejection(usage, limit, mode, rejection);
}

/// Counts the result of a call with these limits.
#[inline]
pub(crate) fn record_call<'a>(
    usage: Option<&UsageRecorder>,
    limits: impl Iterator<Item = ReportedLimit<'a>>,
    mode: Mode,
    result: &Result<Decision, Rejection>,
) {
    match result {
        Ok(decision) => count_decision(usage, limits, mode, decision),
        Err(rejection) => count_rejection(usage, limits, mode, rejection),
    }
}

/// Counts the result of a wait: once, independent of the number of store queries.
pub(crate) fn record_wait<'a>(
    usage: Option<&UsageRecorder>,
    limits: impl Iterator<Item = ReportedLimit<'a>>,
    mode: Mode,
    result: &Result<Allowed, Rejection>,
) {
    match result {
        Ok(decision) => count_decision(usage, limits, mode, decision),
        Err(Rejection::Limited(decision)) => count_decision(usage, limits, mode, decision),
        Err(rejection) => count_rejection(usage, limits, mode, rejection),
    }
}

/// Counts the result of a concurrency acquisition.
pub(crate) fn record_acquire(
    usage: Option<&UsageRecorder>,
    limit: ReportedLimit<'_>,
    result: &Result<impl AsDecision, Rejection>,
) {
    let limit = iter::once(limit);
    match result {
        Ok(permit) => count_decision(usage, limit, Mode::Charge, permit.as_decision()),
        Err(Rejection::Limited(decision)) => count_decision(usage, limit, Mode::Charge, decision),
        Err(rejection) => count_rejection(usage, limit, Mode::Charge, rejection),
    }
}

/// Counts, for an allowed call, a policy that did not take part in its decision: switched off, or
/// exempt by a key list.
pub(crate) fn count_exempt(
    usage: Option<&UsageRecorder>,
    policy: &Policy,
    event: LimitEvent,
    origin: Origin,
) {
    report(usage, &ReportedLimit::without_key(policy), event, Some(origin));
}

/// Counts the decision of a trial.
#[cold]
pub(crate) fn trial(usage: Option<&UsageRecorder>, policy: &Policy, event: LimitEvent) {
    count_trial(policy, event);
    count_trial_usage(usage, policy, event);
}

#[cfg(feature = "redis")]
fn count_trial_usage(usage: Option<&UsageRecorder>, policy: &Policy, event: LimitEvent) {
    if let Some(usage) = usage {
        let outcome = match event {
            LimitEvent::Allowed => UsageOutcome::TrialAllowed,
            _ => UsageOutcome::TrialDenied,
        };
        let counted = CountedUsage {
            outcome,
            origin: None,
            calls: 1,
        };
        usage.record(policy, None, counted);
    }
}

#[cfg(not(feature = "redis"))]
fn count_trial_usage(_: Option<&UsageRecorder>, _: &Policy, _: LimitEvent) {}

fn count_decision<'a>(
    usage: Option<&UsageRecorder>,
    limits: impl Iterator<Item = ReportedLimit<'a>>,
    mode: Mode,
    decision: &Decision,
) {
    if mode != Mode::Charge || !is_observed(usage) {
        return;
    }
    let origin = Some(decision.origin());
    let event = |fits| match (fits, decision.is_allowed()) {
        (true, true) => LimitEvent::Allowed,
        (true, false) => LimitEvent::Spared,
        (false, true) => LimitEvent::ShadowDenied,
        (false, false) if decision.is_blocked() => LimitEvent::Blocked,
        (false, false) => LimitEvent::Denied,
    };
    // The call was decided without limits, and the result applies to all policies.
    if decision.limits().is_empty() {
        let fits = decision.is_allowed() && !decision.would_deny();
        limits.for_each(|limit| report(usage, &limit, event(fits), origin));
        return;
    }
    for limit in decision.limits() {
        count(limit.policy(), event(limit.is_allowed()), origin);
    }
    if usage.is_some() {
        // The decision has the limits of one policy in the order of the call.
        let mut limits: SmallVec<[ReportedLimit<'a>; 2]> = limits.collect();
        for limit in decision.limits() {
            let (policy, event) = (limit.policy(), event(limit.is_allowed()));
            let found = limits
                .iter()
                .position(|limit| limit.policy.name() == policy.name());
            let key = found.and_then(|position| limits.remove(position).key);
            count_usage(usage, &ReportedLimit { policy, key }, event, origin);
        }
    }
}

fn count_rejection<'a>(
    usage: Option<&UsageRecorder>,
    limits: impl Iterator<Item = ReportedLimit<'a>>,
    mode: Mode,
    rejection: &Rejection,
) {
    if mode != Mode::Charge || !is_observed(usage) {
        return;
    }
    let event = match rejection {
        Rejection::Limited(_) | Rejection::Paused { .. } | Rejection::Forbidden { .. } => LimitEvent::Denied,
        Rejection::TimedOut { .. } => LimitEvent::TimedOut,
        Rejection::NeverFits { .. } | Rejection::Config(_) => LimitEvent::Invalid,
        // A rejection that the failure mode of the policy determined.
        Rejection::Unavailable { .. } if rejection.decision().is_some() => LimitEvent::Denied,
        Rejection::NotConfigured { .. } | Rejection::Unavailable { .. } => LimitEvent::Error,
    };
    let origin = rejection.decision().map(Decision::origin);
    // One of several policies forbids the call, and the others were not evaluated.
    let takes_part = |limit: &ReportedLimit<'_>| match rejection {
        Rejection::Forbidden { policy: by, .. } => limit.policy.name() == by,
        _ => true,
    };
    limits
        .filter(takes_part)
        .for_each(|limit| report(usage, &limit, event, origin));
}
