//! The cost of a request, for the headers of its response.

use limiter_core::Amount;
use smallvec::SmallVec;

use super::{LayerConfig, RequestScope};
use crate::headers::Costs;
use crate::request_limits::{RequestLimit, RequestLimits, RequestedPolicy};

impl LayerConfig {
    /// Returns the cost of a request for each limit.
    #[inline]
    pub(crate) fn costs(&self, scope: &RequestScope<'_>) -> Costs {
        match scope {
            RequestScope::RequestLimits(request_limits) if !self.responder.is_silent() => {
                self.costs_of(request_limits)
            }
            _ => Costs::Same(self.layers_cost()),
        }
    }

    /// Returns the cost of a request that states no limits of its own.
    pub(crate) fn layer_costs(&self) -> Costs {
        Costs::Same(self.layers_cost())
    }

    #[inline(never)]
    fn costs_of(&self, request_limits: &RequestLimits<'_>) -> Costs {
        let cost_of = |limit: &RequestLimit<'_>| match &limit.cost {
            Some(Ok(cost)) => *cost,
            // An invalid cost rejects the request.
            Some(Err(_)) | None => self.layers_cost(),
        };
        let mut costs = request_limits.limits.iter().map(cost_of);
        let first = costs.next().unwrap_or(Amount::ONE);
        if costs.all(|cost| cost == first) {
            return Costs::Same(first);
        }
        let mut by_name = SmallVec::new();
        for limit in request_limits.limits.iter() {
            let which = match &limit.which {
                RequestedPolicy::Layers => &*self.policies,
                which => std::slice::from_ref(which),
            };
            let names = which.iter().filter_map(RequestedPolicy::name);
            by_name.extend(names.map(|name| (name.to_owned(), cost_of(limit))));
        }
        Costs::ByName(Box::new(by_name))
    }

    fn layers_cost(&self) -> Amount {
        self.cost.as_ref().map_or(Amount::ONE, |cost| *cost)
    }
}
