//! What is counted, through the facade `metrics`.
//!
//! A policy keeps the handles of its own counters, and the other metrics theirs, so that a decision
//! costs an increment: no look-up, and no text is made. The handles belong to the recorder that was
//! there first.

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

/// What a policy answered to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricOutcome {
    /// It had room, and was charged unless nobody decided.
    Allowed,
    /// It had no room.
    Denied,
    /// A penalty blocks the key.
    Blocked,
    /// It would have been denied, or rejected, and is in shadow.
    ShadowDenied,
    /// It had room, and was not charged, since another limit of the same decision had none.
    Spared,
    /// No permit came in the time that the caller would wait.
    TimedOut,
    /// The question cannot be asked: a cost above the quota, a cost or key that is none.
    Invalid,
    /// There was no decision.
    Error,
}

// Each outcome has a counter of its own in `PolicyCounters`.
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

/// The place and the name of an origin; of none where nobody decided.
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
    }
}

/// Counts what one limit of a decision answered.
#[inline]
fn count(policy: &Policy, outcome: MetricOutcome, origin: Option<Origin>) {
    let (place, _) = origin_label(origin);
    let counter = policy.counters().get(place, outcome as usize);
    let counter =
        counter.and_then(|late| late.get(|recorder| counter_of(policy.name(), outcome, origin, recorder)));
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

#[cold]
fn counter_of(
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

/// Counts a call about one limit that was decided. Peeks are not counted.
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

/// Counts a call about one limit that was not decided.
#[cold]
pub(crate) fn rejected(policy: &Policy, mode: Mode, rejection: &Rejection) {
    not_decided(iter::once(policy), mode, rejection);
}

/// Counts what was answered to a call about these policies.
pub(crate) fn answered<'a>(
    policies: impl Iterator<Item = &'a Policy>,
    mode: Mode,
    answer: &Result<Decision, Rejection>,
) {
    match answer {
        Ok(decision) => decision_of(policies, mode, decision),
        Err(rejection) => not_decided(policies, mode, rejection),
    }
}

/// Counts what a wait came to: once, however often the store was asked for it.
pub(crate) fn waited<'a>(
    policies: impl Iterator<Item = &'a Policy>,
    mode: Mode,
    answer: &Result<Allowed, Rejection>,
) {
    match answer {
        Ok(decision) => decision_of(policies, mode, decision),
        Err(Rejection::Limited(decision)) => decision_of(policies, mode, decision),
        Err(rejection) => not_decided(policies, mode, rejection),
    }
}

/// Counts what an enter came to.
pub(crate) fn entered(policy: &Policy, answer: &Result<impl AsDecision, Rejection>) {
    match answer {
        Ok(permit) => decision_of(iter::once(policy), Mode::Charge, permit.as_decision()),
        Err(Rejection::Limited(decision)) => decision_of(iter::once(policy), Mode::Charge, decision),
        Err(rejection) => not_decided(iter::once(policy), Mode::Charge, rejection),
    }
}

/// Counts, of a call that was allowed, a policy that had no part in its decision: one that is off,
/// or whose list names the key.
pub(crate) fn excused(policy: &Policy, origin: Origin, would_deny: bool) {
    let outcome = if would_deny {
        MetricOutcome::ShadowDenied
    } else {
        MetricOutcome::Allowed
    };
    count(policy, outcome, Some(origin));
}

/// Counts a call for which nothing is configured, under no policy's name: whoever computes one from
/// its input would make a series of each.
pub(crate) fn unconfigured(is_allowed: bool) {
    static COUNTERS: [LazyHandle<Counter>; 2] = [const { LazyHandle::new() }; 2];
    let outcome = if is_allowed {
        MetricOutcome::Allowed
    } else {
        MetricOutcome::Error
    };
    let origin = Some(Origin::NotConfigured);
    let late = COUNTERS.get(usize::from(is_allowed));
    if let Some(counter) =
        late.and_then(|late| late.get(|recorder| counter_of("", outcome, origin, recorder)))
    {
        counter.increment(1);
    }
}

fn decision_of<'a>(policies: impl Iterator<Item = &'a Policy>, mode: Mode, decision: &Decision) {
    if mode != Mode::Charge {
        return;
    }
    let origin = Some(decision.origin());
    let outcome = |has_room| match (has_room, decision.is_allowed()) {
        (true, true) => MetricOutcome::Allowed,
        (true, false) => MetricOutcome::Spared,
        (false, true) => MetricOutcome::ShadowDenied,
        (false, false) if decision.is_blocked() => MetricOutcome::Blocked,
        (false, false) => MetricOutcome::Denied,
    };
    for limit in decision.limits() {
        count(limit.policy(), outcome(limit.is_allowed()), origin);
    }
    // Nobody decided, and the answer holds for all.
    if decision.limits().is_empty() {
        let has_room = decision.is_allowed() && !decision.would_deny();
        policies.for_each(|policy| count(policy, outcome(has_room), origin));
    }
}

fn not_decided<'a>(policies: impl Iterator<Item = &'a Policy>, mode: Mode, rejection: &Rejection) {
    if mode != Mode::Charge {
        return;
    }
    let outcome = match rejection {
        Rejection::Limited(_) | Rejection::Paused { .. } | Rejection::Forbidden { .. } => {
            MetricOutcome::Denied
        }
        Rejection::TimedOut { .. } => MetricOutcome::TimedOut,
        Rejection::NeverFits { .. } | Rejection::Config(_) => MetricOutcome::Invalid,
        // As where nobody waits for what the policy answers.
        Rejection::Unavailable(_) if rejection.decision().is_some() => MetricOutcome::Denied,
        Rejection::NotConfigured { .. } | Rejection::Unavailable(_) => MetricOutcome::Error,
    };
    let origin = rejection.decision().map(Decision::origin);
    // Of several policies one forbids, and the others were not asked.
    let has_part = |policy: &&Policy| match rejection {
        Rejection::Forbidden { policy: by, .. } => policy.name() == by,
        _ => true,
    };
    policies
        .filter(has_part)
        .for_each(|policy| count(policy, outcome, origin));
}

/// Counts a question to which the store did not reply.
#[cold]
pub(crate) fn store_failed(kind: StoreErrorKind) {
    static COUNTERS: [LazyHandle<Counter>; 12] = [const { LazyHandle::new() }; 12];
    let (place, label) = match kind {
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
    let counter = COUNTERS.get(place).and_then(|late| {
        late.get(|recorder| {
            describe_counter(recorder, names::STORE_ERRORS);
            let labels = vec![Label::from_static_parts("kind", label)];
            recorder.register_counter(&Key::from_parts(names::STORE_ERRORS, labels), &METADATA)
        })
    });
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

/// Counts a call that asked for a policy that is not there, or is not for its app. Without the
/// name: whoever computes one from its input would make a series of each.
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

/// Counts a request that says it was forwarded, and is limited by the peer's address.
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

/// Counts a request that was shed, by the number of its class, the lowest first.
pub(crate) fn shed(class: usize) {
    const CLASSES: [&str; 4] = ["sheddable", "normal", "high", "critical"];
    static COUNTERS: [LazyHandle<Counter>; CLASSES.len()] = [const { LazyHandle::new() }; CLASSES.len()];
    let (Some(late), Some(label)) = (COUNTERS.get(class), CLASSES.get(class)) else {
        return;
    };
    let counter = late.get(|recorder| {
        describe_counter(recorder, names::SHED);
        let labels = vec![Label::from_static_parts("priority", label)];
        recorder.register_counter(&Key::from_parts(names::SHED, labels), &METADATA)
    });
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

/// A call that waits, for as long as this is held.
#[derive(Debug)]
#[must_use = "the call waits for as long as this is held"]
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

/// By the handle with which it began, lest more end than have begun.
impl Drop for WaitingGauge {
    fn drop(&mut self) {
        if let Some(gauge) = &self.0 {
            gauge.decrement(1.0);
        }
    }
}

/// Counts a look at a book that is refused. As long as it is, so that its rate tells.
#[cfg(feature = "registry")]
pub(crate) fn book_refused(source: &'static str) {
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

/// Says which revision of the policy book is in use. To be said again now and then: there may not
/// have been a recorder.
#[cfg(all(feature = "registry", feature = "redis"))]
pub(crate) fn book_revision(revision: u64) {
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
