//! Parameters of a funnel (a leaky bucket used as a meter).

use crate::policy::Rate;

/// Admits while the cost fits into the funnel; its level drains at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Funnel {
    /// Capacity in thousandths.
    pub(crate) capacity: u64,
    pub(crate) rate: Rate,
    /// Assigns a delay to each call, so that calls leave evenly.
    pub(crate) paced: bool,
}
