//! Metrics through the facade `metrics`.
//!
//! Each policy stores the handles of its own counters, and the other metrics store theirs, so that
//! a decision costs one increment without a lookup or an allocation. The handles belong to the
//! first recorder.
//!
//! Tests: `tests/metrics.rs` (`counted_call_allocates_nothing`), `tests/metrics_late.rs`,
//! `tests/frozen/metrics.rs`.

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};

use crate::decision::Origin;
use crate::error::StoreErrorKind;
use crate::metrics_handles::{LazyHandle, OUTCOMES};
use crate::observe::limit_event::LimitEvent;
use crate::observe::names;
use crate::observe::names::{describe_counter, describe_gauge};
use crate::policy::Policy;

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// True if decisions are counted in metrics.
pub(crate) const HAS_METRICS: bool = true;

// `PolicyCounters` has one counter per outcome.
const _: () = assert!(LimitEvent::Error as usize + 1 == OUTCOMES);

impl LimitEvent {
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
pub(crate) fn count(policy: &Policy, outcome: LimitEvent, origin: Option<Origin>) {
    count_calls(policy, outcome, origin, 1);
}

/// Counts decisions of one limit with one outcome.
#[inline]
pub(crate) fn count_calls(policy: &Policy, outcome: LimitEvent, origin: Option<Origin>, calls: u64) {
    let (index, _) = origin_label(origin);
    let counter = policy.counters().get(index, outcome as usize);
    let counter = counter.and_then(|handle| {
        handle.get(|recorder| register_counter_of(policy.name(), outcome, origin, recorder))
    });
    if let Some(counter) = counter {
        counter.increment(calls);
    }
}

#[cold]
fn register_counter_of(
    policy: &str,
    outcome: LimitEvent,
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

/// Counts the decision of a trial.
#[cold]
pub(crate) fn count_trial(policy: &Policy, outcome: LimitEvent) {
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
pub(crate) fn unconfigured(outcome: LimitEvent) {
    static COUNTERS: [LazyHandle<Counter>; OUTCOMES] = [const { LazyHandle::new() }; OUTCOMES];
    let origin = Some(Origin::NotConfigured);
    let handle = COUNTERS.get(outcome as usize);
    if let Some(counter) =
        handle.and_then(|handle| handle.get(|recorder| register_counter_of("", outcome, origin, recorder)))
    {
        counter.increment(1);
    }
}

/// Counts decisions that are missing in the usage in Redis.
#[cfg(feature = "redis")]
pub(crate) fn usage_dropped(decisions: u64) {
    static COUNTER: LazyHandle<Counter> = LazyHandle::new();
    let counter = COUNTER.get(|recorder| {
        describe_counter(recorder, names::USAGE_DROPPED);
        recorder.register_counter(&Key::from_static_name(names::USAGE_DROPPED), &METADATA)
    });
    if let Some(counter) = counter {
        counter.increment(decisions);
    }
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
