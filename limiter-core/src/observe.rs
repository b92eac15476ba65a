//! What operators see: counters, gauges and histograms (feature `metrics`), and spans.
//!
//! Whoever decides says so by one call of a function of this module; without the feature these
//! functions are empty. Labels are names of policies, of nodes and of cases, never a key: there are
//! as many series as the program makes policies.

#[cfg(feature = "metrics")]
mod names;
#[cfg(not(feature = "metrics"))]
pub(crate) mod noop;
#[cfg(feature = "metrics")]
pub(crate) mod recorded;
mod span;

#[cfg(not(feature = "metrics"))]
pub(crate) use crate::observe::noop::*;
#[cfg(feature = "metrics")]
pub(crate) use crate::observe::recorded::*;
pub(crate) use crate::observe::span::{AsDecision, acquiring, deciding, entering, reserving};
