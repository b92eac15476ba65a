//! Metrics through the facade `metrics`.
//!
//! Each policy stores the handles of its own counters, and the other metrics store theirs, so that
//! a decision costs one increment without a lookup or an allocation. The handles belong to the
//! first recorder.

use std::iter;

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};

use crate::algorithm::Mode;
use crate::decision::{Allowed, Decision, Origin, Rejection};
use crate::error::StoreErrorKind;
use crate::metrics_handles::{LazyHandle, OUTCOMES};
use crate::observe::names;
use crate::observe::names::{describe_counter, describe_gauge};
use crate::observe::span::AsDecision;
use crate::policy::Policy;

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// The outcome of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricOutcome {
    /// The cost fitted; it was charged unless the store did not decide.
    Allowed,
    /// The cost did not fit.
    Denied,
    /// A penalty blocks the key.
    Blocked,
    /// The call would have been denied or rejected, but the policy is in shadow mode.
    ShadowDenied,
    /// The cost fitted and was not charged, because another limit of the decision denied.
    Spared,
    /// No permit became available within the timeout.
    TimedOut,
    /// The request is invalid: a cost above the quota, an invalid cost or key.
    Invalid,
    /// There was no decision.
    Error,
}

// `PolicyCounters` has one counter per outcome.
const _: () = assert!(MetricOutcome::Error as usize + 1 == OUTCOMES);

impl MetricOutcome {
    fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Blocked => "blocked",
            Self::ShadowDenied => "shadow_denied",
            Self::Spared => "spared",
            Self::TimedOut => "timed_out",
            Self::Invalid => "invalid",
            Self::Error => "error",
        }
    }
}

/// Returns the index and the label of an origin; `none` without a decision.
fn origin_label(origin: Option<Origin>) -> (usize, &'static str) {
    match origin {
        None => (0, "none"),
        Some(Origin::Redis) => (1, "redis"),
        Some(Origin::DenyCache) => (2, "deny_cache"),
        Some(Origin::Memory) => (3, "memory"),
        Some(Origin::Lease) => (4, "lease"),
        Some(Origin::LocalFallback) => (5, "local_fallback"),
        Some(Origin::FailedOpen) => (6, "failed_open"),
        Some(Origin::FailedClosed) => (7, "failed_closed"),
        Some(Origin::NotConfigured) => (8, "not_configured"),
        Some(Origin::KeyList) => (9, "key_list"),
        Some(Origin::Off) => (10, "off"),
        Some(Origin::Suspension) => (11, "suspension"),
        Some(Origin::Block) => (12, "block"),
    }
}

/// Counts the outcome of one limit of a decision.
#[inline]
fn count(policy: &Policy, outcome: MetricOutcome, origin: Option<Origin>) {
    let (index, _) = origin_label(origin);
    let counter = policy.counters().get(index, outcome as usize);
    let counter = counter.and_then(|handle| {
        handle.get(|recorder| register_counter_of(policy.name(), outcome, origin, recorder))
    });
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

#[cold]
fn register_counter_of(
    policy: &str,
    outcome: MetricOutcome,
    origin: Option<Origin>,
    recorder: &dyn Recorder,
) -> Counter {
    describe_counter(recorder, names::DECISIONS);
    let labels = vec![
        Label::new("policy", policy.to_owned()),
        Label::from_static_parts("outcome", outcome.label()),
        Label::from_static_parts("origin", origin_label(origin).1),
    ];
    recorder.register_counter(&Key::from_parts(names::DECISIONS, labels), &METADATA)
}

/// Counts a decided call with one limit. Peeks are not counted.
#[inline]
pub(crate) fn decided(policy: &Policy, mode: Mode, allowed: bool, origin: Origin) {
    if mode == Mode::Charge {
        let outcome = if allowed {
            MetricOutcome::Allowed
        } else {
            MetricOutcome::Denied
        };
        count(policy, outcome, Some(origin));
    }
}

/// Counts a call with one limit that was not decided.
#[cold]
pub(crate) fn rejected(policy: &Policy, mode: Mode, rejection: &Rejection) {
    count_rejection(iter::once(policy), mode, rejection);
}

/// Counts the result of a call with these policies.
pub(crate) fn answered<'a>(
    policies: impl Iterator<Item = &'a Policy>,
    mode: Mode,
    result: &Result<Decision, Rejection>,
) {
    match result {
        Ok(decision) => count_decision(policies, mode, decision),
        Err(rejection) => count_rejection(policies, mode, rejection),
    }
}

/// Counts the result of a wait: once, independent of the number of store queries.
pub(crate) fn waited<'a>(
    policies: impl Iterator<Item = &'a Policy>,
    mode: Mode,
    result: &Result<Allowed, Rejection>,
) {
    match result {
        Ok(decision) => count_decision(policies, mode, decision),
        Err(Rejection::Limited(decision)) => count_decision(policies, mode, decision),
        Err(rejection) => count_rejection(policies, mode, rejection),
    }
}

/// Counts the result of a concurrency acquisition.
pub(crate) fn record_acquire(policy: &Policy, result: &Result<impl AsDecision, Rejection>) {
    match result {
        Ok(permit) => count_decision(iter::once(policy), Mode::Charge, permit.as_decision()),
        Err(Rejection::Limited(decision)) => count_decision(iter::once(policy), Mode::Charge, decision),
        Err(rejection) => count_rejection(iter::once(policy), Mode::Charge, rejection),
    }
}

/// Counts, for an allowed call, a policy that did not take part in its decision: switched off, or
/// exempt by a key list.
pub(crate) fn count_exempt(policy: &Policy, origin: Origin, would_deny: bool) {
    let outcome = if would_deny {
        MetricOutcome::ShadowDenied
    } else {
        MetricOutcome::Allowed
    };
    count(policy, outcome, Some(origin));
}

/// Counts the decision of a trial.
#[cold]
pub(crate) fn trial(policy: &Policy, allowed: bool) {
    let outcome = if allowed {
        MetricOutcome::Allowed
    } else {
        MetricOutcome::Denied
    };
    metrics::with_recorder(|recorder| {
        describe_counter(recorder, names::TRIALS);
        let labels = vec![
            Label::new("policy", policy.name().to_owned()),
            Label::from_static_parts("outcome", outcome.label()),
        ];
        let key = Key::from_parts(names::TRIALS, labels);
        recorder.register_counter(&key, &METADATA).increment(1);
    });
}

/// Counts a call without a configured policy, without its name: a program that computes names from
/// input would create a series for each.
pub(crate) fn unconfigured(is_allowed: bool) {
    static COUNTERS: [LazyHandle<Counter>; 2] = [const { LazyHandle::new() }; 2];
    let outcome = if is_allowed {
        MetricOutcome::Allowed
    } else {
        MetricOutcome::Error
    };
    let origin = Some(Origin::NotConfigured);
    let handle = COUNTERS.get(usize::from(is_allowed));
    if let Some(counter) =
        handle.and_then(|handle| handle.get(|recorder| register_counter_of("", outcome, origin, recorder)))
    {
        counter.increment(1);
    }
}

fn count_decision<'a>(policies: impl Iterator<Item = &'a Policy>, mode: Mode, decision: &Decision) {
    if mode != Mode::Charge {
        return;
    }
    let origin = Some(decision.origin());
    let outcome = |fits| match (fits, decision.is_allowed()) {
        (true, true) => MetricOutcome::Allowed,
        (true, false) => MetricOutcome::Spared,
        (false, true) => MetricOutcome::ShadowDenied,
        (false, false) if decision.is_blocked() => MetricOutcome::Blocked,
        (false, false) => MetricOutcome::Denied,
    };
    for limit in decision.limits() {
        count(limit.policy(), outcome(limit.is_allowed()), origin);
    }
    // The call was decided without limits, and the result applies to all policies.
    if decision.limits().is_empty() {
        let fits = decision.is_allowed() && !decision.would_deny();
        policies.for_each(|policy| count(policy, outcome(fits), origin));
    }
}

fn count_rejection<'a>(policies: impl Iterator<Item = &'a Policy>, mode: Mode, rejection: &Rejection) {
    if mode != Mode::Charge {
        return;
    }
    let outcome = match rejection {
        Rejection::Limited(_) | Rejection::Paused { .. } | Rejection::Forbidden { .. } => {
            MetricOutcome::Denied
        }
        Rejection::TimedOut { .. } => MetricOutcome::TimedOut,
        Rejection::NeverFits { .. } | Rejection::Config(_) => MetricOutcome::Invalid,
        // A rejection that the failure mode of the policy determined.
        Rejection::Unavailable { .. } if rejection.decision().is_some() => MetricOutcome::Denied,
        Rejection::NotConfigured { .. } | Rejection::Unavailable { .. } => MetricOutcome::Error,
    };
    let origin = rejection.decision().map(Decision::origin);
    // One of several policies forbids the call, and the others were not evaluated.
    let takes_part = |policy: &&Policy| match rejection {
        Rejection::Forbidden { policy: by, .. } => policy.name() == by,
        _ => true,
    };
    policies
        .filter(takes_part)
        .for_each(|policy| count(policy, outcome, origin));
}

/// Counts a query without a reply of the store.
#[cold]
pub(crate) fn store_failed(kind: StoreErrorKind) {
    static COUNTERS: [LazyHandle<Counter>; 12] = [const { LazyHandle::new() }; 12];
    let (index, label) = match kind {
        StoreErrorKind::Timeout => (0, "timeout"),
        StoreErrorKind::Connection => (1, "connection"),
        StoreErrorKind::CircuitOpen => (2, "circuit_open"),
        StoreErrorKind::Overloaded => (3, "overloaded"),
        StoreErrorKind::Refused => (4, "refused"),
        StoreErrorKind::WrongType => (5, "wrong_type"),
        StoreErrorKind::UnknownLayout => (6, "unknown_layout"),
        StoreErrorKind::Protocol => (7, "protocol"),
        StoreErrorKind::Full => (8, "full"),
        StoreErrorKind::NotInstalled => (9, "not_installed"),
        StoreErrorKind::ShutDown => (10, "shut_down"),
        StoreErrorKind::Reconciling => (11, "reconciling"),
    };
    let counter = COUNTERS.get(index).and_then(|handle| {
        handle.get(|recorder| {
            describe_counter(recorder, names::STORE_ERRORS);
            let labels = vec![Label::from_static_parts("kind", label)];
            recorder.register_counter(&Key::from_parts(names::STORE_ERRORS, labels), &METADATA)
        })
    });
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

/// Counts a call with a policy name that is not configured, or not for its app. The name is no
/// label: a program that computes names from input would create a series for each.
pub(crate) fn not_configured() {
    static COUNTER: LazyHandle<Counter> = LazyHandle::new();
    let counter = COUNTER.get(|recorder| {
        describe_counter(recorder, names::NOT_CONFIGURED);
        recorder.register_counter(&Key::from_static_name(names::NOT_CONFIGURED), &METADATA)
    });
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

/// Counts a request with forwarding headers that is limited by the peer's address.
pub(crate) fn forwarded_unread() {
    static COUNTER: LazyHandle<Counter> = LazyHandle::new();
    let counter = COUNTER.get(|recorder| {
        describe_counter(recorder, names::FORWARDED_UNREAD);
        recorder.register_counter(&Key::from_static_name(names::FORWARDED_UNREAD), &METADATA)
    });
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

/// Counts a shed request by the index of its priority, lowest first.
pub(crate) fn shed(class: usize) {
    const CLASSES: [&str; 4] = ["sheddable", "normal", "high", "critical"];
    static COUNTERS: [LazyHandle<Counter>; CLASSES.len()] = [const { LazyHandle::new() }; CLASSES.len()];
    let (Some(handle), Some(label)) = (COUNTERS.get(class), CLASSES.get(class)) else {
        return;
    };
    let counter = handle.get(|recorder| {
        describe_counter(recorder, names::SHED);
        let labels = vec![Label::from_static_parts("priority", label)];
        recorder.register_counter(&Key::from_parts(names::SHED, labels), &METADATA)
    });
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

/// Counts a waiting call until it is dropped.
#[derive(Debug)]
#[must_use = "the call counts as waiting until this is dropped"]
pub(crate) struct WaitingGauge(Option<Gauge>);

impl WaitingGauge {
    pub(crate) fn begin() -> Self {
        static WAITING: LazyHandle<Gauge> = LazyHandle::new();
        let gauge = WAITING.get(|recorder| gauge(recorder, names::WAITING)).cloned();
        if let Some(gauge) = &gauge {
            gauge.increment(1.0);
        }
        Self(gauge)
    }
}

/// Uses the handle of the increment, so that the gauge never becomes negative.
impl Drop for WaitingGauge {
    fn drop(&mut self) {
        if let Some(gauge) = &self.0 {
            gauge.decrement(1.0);
        }
    }
}

/// Counts a read of an invalid registry text, on every read, so that the rate shows the duration.
#[cfg(feature = "registry")]
pub(crate) fn registry_rejected(source: &'static str) {
    static FILE: LazyHandle<Counter> = LazyHandle::new();
    static REDIS: LazyHandle<Counter> = LazyHandle::new();
    let counter = if source == "file" { &FILE } else { &REDIS };
    let counter = counter.get(|recorder| {
        describe_counter(recorder, names::REGISTRY_REFUSED);
        let labels = vec![Label::from_static_parts("source", source)];
        recorder.register_counter(&Key::from_parts(names::REGISTRY_REFUSED, labels), &METADATA)
    });
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

/// Sets the revision of the policy registry. Called repeatedly, because the recorder may be
/// installed later.
#[cfg(all(feature = "registry", feature = "redis"))]
pub(crate) fn registry_revision(revision: u64) {
    static REVISION: LazyHandle<Gauge> = LazyHandle::new();
    if let Some(gauge) = REVISION.get(|recorder| gauge(recorder, names::REGISTRY_REVISION)) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a double; exact below 2^53")]
        gauge.set(revision as f64);
    }
}

fn gauge(recorder: &dyn Recorder, name: &'static str) -> Gauge {
    describe_gauge(recorder, name);
    recorder.register_gauge(&Key::from_static_name(name), &METADATA)
}

#[cfg(feature = "redis")]
pub(crate) use crate::observe::recorded::remote::{
    BreakerGauge, BreakerState, batch, record_query, replicas,
};

#[cfg(feature = "redis")]
mod remote;
