//! Names and help texts of the metrics.
//!
//! A name is described to the recorder together with its first registration, so that a recorder
//! which is installed late receives the help text too. Dashboards and alerts use the names, so they
//! are frozen. Tests: `tests/frozen/metrics.rs`, `tests/operations.rs`.

use metrics::{Recorder, Unit};

/// Counter: decisions, by policy, outcome and origin.
pub(super) const DECISIONS: &str = "limiter_decisions_total";
/// Histogram: duration of decisions that queried Redis, by origin.
pub(super) const SECONDS: &str = "limiter_decision_seconds";
/// Counter: decisions of trial values, by policy and outcome.
pub(super) const TRIALS: &str = "limiter_trial_decisions_total";
/// Counter: queries without a reply of the store, by kind.
pub(super) const STORE_ERRORS: &str = "limiter_store_errors_total";
/// Counter: decisions that are missing in the usage in Redis.
pub(super) const USAGE_DROPPED: &str = "limiter_usage_dropped_total";
/// Counter: calls with a policy name that is not configured.
pub(super) const NOT_CONFIGURED: &str = "limiter_not_configured_total";
/// Counter: requests whose forwarding headers the key does not read.
pub(super) const FORWARDED_UNREAD: &str = "limiter_forwarded_unread_total";
/// Counter: shed requests, by priority.
pub(super) const SHED: &str = "limiter_shed_total";
/// Gauge: calls that wait for a permit.
pub(super) const WAITING: &str = "limiter_waiting_calls";
/// Counter: reads of an invalid registry text, by source.
pub(super) const REGISTRY_REFUSED: &str = "limiter_registry_refused_total";
/// Gauge: the revision of the policy registry in Redis.
pub(super) const REGISTRY_REVISION: &str = "limiter_registry_revision";
/// Gauge, by node: 0 closed, 1 half-open, 2 open.
pub(super) const BREAKER_STATE: &str = "limiter_breaker_state";
/// Histogram: number of requests per command.
pub(super) const BATCH_REQUESTS: &str = "limiter_batch_requests";
/// Gauge: number of replicas that share the limits.
pub(super) const REPLICAS: &str = "limiter_replicas";

/// Describes a counter to a recorder. Idempotent.
pub(super) fn describe_counter(recorder: &dyn Recorder, name: &'static str) {
    recorder.describe_counter(name.into(), Some(Unit::Count), help(name).into());
}

/// Describes a gauge to a recorder.
pub(super) fn describe_gauge(recorder: &dyn Recorder, name: &'static str) {
    recorder.describe_gauge(name.into(), Some(Unit::Count), help(name).into());
}

/// Describes a histogram to a recorder.
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
        DECISIONS => "Decisions, by policy, outcome and origin",
        TRIALS => "Decisions of trial values, which do not affect calls, by policy and outcome",
        SECONDS => "Duration of decisions that queried Redis, by final origin",
        USAGE_DROPPED => "Decisions that are missing in the usage in Redis",
        STORE_ERRORS => "Store queries without a reply, by kind",
        WAITING => "Calls that wait for a permit",
        NOT_CONFIGURED => "Calls with a policy name that is not configured, or not for their app",
        FORWARDED_UNREAD => "Requests with forwarding headers that are limited by the peer's address",
        SHED => "Requests shed because too many were in flight, by priority",
        REGISTRY_REFUSED => {
            "Reads of an invalid policy registry text, which keep the previous policies, by source"
        }
        REGISTRY_REVISION => "Revision of the policy registry in Redis that is in use",
        BREAKER_STATE => "Breaker of a Redis node: 0 closed, 1 half-open, 2 open",
        BATCH_REQUESTS => "Requests sent to Redis in one command",
        REPLICAS => "Replicas that share the limits, as this one counts them",
        _ => "",
    }
}
