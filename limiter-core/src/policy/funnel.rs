//! The parameters of a funnel (a leaky bucket used as a meter).

use crate::policy::Rate;

/// Admits while the funnel has room; what was admitted drains at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Funnel {
    /// What the funnel holds when full, in thousandths.
    pub(crate) capacity: u64,
    pub(crate) rate: Rate,
    /// Whether each call is told how long to wait, so that calls leave evenly.
    pub(crate) paced: bool,
}
