//! The metrics by name, with what recorders are told of them.

use metrics::{Recorder, Unit};

/// Counter: answers, by policy, outcome and origin.
pub(super) const DECISIONS: &str = "limiter_decisions_total";
/// Histogram: how long decisions took that asked Redis, by origin.
#[cfg(feature = "redis")]
pub(super) const SECONDS: &str = "limiter_decision_seconds";
/// Counter: questions that the store did not answer, by kind.
pub(super) const STORE_ERRORS: &str = "limiter_store_errors_total";
/// Counter: calls that asked for a policy that is not configured.
pub(super) const NOT_CONFIGURED: &str = "limiter_not_configured_total";
/// Counter: requests whose forwarding headers the key does not read.
pub(super) const FORWARDED_UNREAD: &str = "limiter_forwarded_unread_total";
/// Counter: requests that were shed, by how much they matter.
pub(super) const SHED: &str = "limiter_shed_total";
/// Gauge: calls that wait for a permit.
pub(super) const WAITING: &str = "limiter_waiting_calls";
/// Counter: looks at a text of the policy book that is refused, by source.
#[cfg(feature = "registry")]
pub(super) const REGISTRY_REFUSED: &str = "limiter_registry_refused_total";
/// Gauge: the revision of the policy book in Redis.
#[cfg(all(feature = "registry", feature = "redis"))]
pub(super) const REGISTRY_REVISION: &str = "limiter_registry_revision";
/// Gauge, by node: 0 closed, 1 half-open, 2 open.
#[cfg(feature = "redis")]
pub(super) const BREAKER_STATE: &str = "limiter_breaker_state";
/// Histogram: how many questions went in one command.
#[cfg(feature = "redis")]
pub(super) const BATCH_REQUESTS: &str = "limiter_batch_requests";
/// Gauge: how many replicas share the limits.
#[cfg(feature = "redis")]
pub(super) const REPLICAS: &str = "limiter_replicas";

/// Tells a recorder what a counter counts. Done again it changes nothing.
pub(super) fn describe_counter(recorder: &dyn Recorder, name: &'static str) {
    recorder.describe_counter(name.into(), Some(Unit::Count), help(name).into());
}

/// The same of a gauge.
pub(super) fn describe_gauge(recorder: &dyn Recorder, name: &'static str) {
    recorder.describe_gauge(name.into(), Some(Unit::Count), help(name).into());
}

/// The same of a histogram.
#[cfg(feature = "redis")]
pub(super) fn describe_histogram(recorder: &dyn Recorder, name: &'static str) {
    let unit = if name == SECONDS {
        Unit::Seconds
    } else {
        Unit::Count
    };
    recorder.describe_histogram(name.into(), Some(unit), help(name).into());
}

fn help(name: &str) -> &'static str {
    match name {
        DECISIONS => "Answers to calls, by policy, outcome and who decided",
        #[cfg(feature = "redis")]
        SECONDS => "Time of decisions that asked Redis, by who decided in the end",
        STORE_ERRORS => "Questions to the store without an answer, by kind",
        WAITING => "Calls that wait for a permit",
        NOT_CONFIGURED => "Calls that asked for a policy that is not configured, or not for their app",
        FORWARDED_UNREAD => "Requests limited by the peer's address though they say that they were forwarded",
        SHED => "Requests shed since too many were in flight, by priority",
        #[cfg(feature = "registry")]
        REGISTRY_REFUSED => {
            "Looks at a policy book that is refused, so that its last policies stay, by source"
        }
        #[cfg(all(feature = "registry", feature = "redis"))]
        REGISTRY_REVISION => "Revision of the policy book of Redis in use",
        #[cfg(feature = "redis")]
        BREAKER_STATE => "Breaker of a Redis node: 0 closed, 1 half-open, 2 open",
        #[cfg(feature = "redis")]
        BATCH_REQUESTS => "Requests sent to Redis in one command",
        #[cfg(feature = "redis")]
        REPLICAS => "Replicas that share the limits, as this one counts them",
        _ => "",
    }
}
