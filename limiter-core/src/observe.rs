//! What operators see: counters, gauges and histograms (feature `metrics`), and spans.
//!
//! Whoever decides says so by one call of a function of this module; without the feature these functions are empty. Labels are
//! names of policies, of nodes and of cases, never a key: there are as many series as the program makes policies.

#[cfg(not(feature = "metrics"))]
mod absent;
#[cfg(feature = "metrics")]
mod facade;
#[cfg(feature = "metrics")]
mod late;
#[cfg(feature = "metrics")]
mod names;
mod span;

#[cfg(not(feature = "metrics"))]
pub(crate) use absent::*;
#[cfg(feature = "metrics")]
pub(crate) use facade::*;
pub(crate) use span::{acquiring, deciding, entering, reserving};
