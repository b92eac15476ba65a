//! What a request was asked for, by which its client learns whether another such request has room.

use limiter_core::{Amount, LimitOutcome};
use smallvec::SmallVec;

/// The cost of a request by each of its limits.
#[derive(Clone, Debug)]
pub(crate) enum Costs {
    /// The same by all of them.
    Same(Amount),
    /// By the names of the policies. Boxed, so that what is rare makes nothing larger.
    ByName(Box<SmallVec<[(String, Amount); 2]>>),
}

impl Costs {
    /// A permit by each.
    pub(crate) const ONE: Self = Self::Same(Amount::ONE);

    /// By one of the limits. Of policies that share a name the largest counts.
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

    /// The cost, where a limit that allows the request has no room for another of it.
    pub(super) fn wanting(&self, limit: &LimitOutcome) -> Option<Amount> {
        let cost = self.cost_for(limit);
        (limit.is_allowed() && cost > Amount::ONE && limit.remaining() < cost).then_some(cost)
    }
}
