//! Metrics (feature `metrics`), the usage of the fleet, and spans.
//!
//! Each decision is reported by one call of a function of this module; without the feature these
//! functions are empty. Labels are names of policies, nodes and outcomes, never keys: the number of
//! series is bounded by the number of policies. Tests: `tests/metrics.rs`, `tests/spans.rs`,
//! `tests/operations.rs`.

mod limit_event;
#[cfg(feature = "metrics")]
mod names;
#[cfg(not(feature = "metrics"))]
pub(crate) mod noop;
mod outcome;
#[cfg(feature = "metrics")]
pub(crate) mod recorded;
mod span;

pub(crate) use crate::observe::limit_event::LimitEvent;
#[cfg(not(feature = "metrics"))]
pub(crate) use crate::observe::noop::*;
pub(crate) use crate::observe::outcome::{
    ReportedLimit, UsageRecorder, count_exempt, record_acquire, record_call, record_decision,
    record_holder_decisions, record_rejection, record_request, record_usage, record_wait, trial,
};
#[cfg(feature = "metrics")]
pub(crate) use crate::observe::recorded::*;
pub(crate) use crate::observe::span::{AsDecision, acquiring, deciding, entering, reserving};
