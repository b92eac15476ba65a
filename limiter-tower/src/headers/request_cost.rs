//! The cost of a request, which the headers need to decide if another request of this cost fits.

use limiter_core::{Amount, LimitOutcome};
use smallvec::SmallVec;

/// The cost of a request for each of its limits.
#[derive(Clone, Debug)]
pub(crate) enum Costs {
    /// One cost for all limits.
    Same(Amount),
    /// Costs by policy name. Boxed to keep the common variant small.
    ByName(Box<SmallVec<[(String, Amount); 2]>>),
}

impl Costs {
    /// One permit of each limit.
    pub(crate) const ONE: Self = Self::Same(Amount::ONE);

    /// Returns the cost for a limit. Of policies with one name, the largest cost counts.
    fn cost_for(&self, limit: &LimitOutcome) -> Amount {
        match self {
            Self::Same(cost) => *cost,
            Self::ByName(costs) => {
                let name = limit.policy().name();
                let same = costs.iter().filter(|(policy, _)| policy == name);
                same.map(|(_, cost)| *cost).max().unwrap_or(Amount::ONE)
            }
        }
    }

    /// Returns the cost if the limit allows the request but another one of this cost does not fit.
    pub(super) fn missing_cost(&self, limit: &LimitOutcome) -> Option<Amount> {
        let cost = self.cost_for(limit);
        (limit.is_allowed() && cost > Amount::ONE && limit.remaining() < cost).then_some(cost)
    }
}
