//! Settles the charge of a request after its response: actual costs, and outcomes that do not
//! count.
//!
//! A request is charged its estimate before the inner service is called. An [`ActualCost`] selects
//! the source of the actual cost: the head of the response, the bytes of its body, or a
//! [`ReportedCost`] of the handler. The difference is refunded, or charged also above the quota.
//! The layer settles when the source is complete: with the head of the response, or when the body
//! has ended or is dropped.

// The body is counted in `meter`. Tests: `tests/decisions/settlement.rs`.

mod meter;
mod pending_charge;
mod reported_cost;

use std::fmt;
use std::sync::Arc;

use http::Response;
use limiter_core::__private::{Reporter, Settlement};
use limiter_core::future::Check;
use limiter_core::{Amount, ConfigError, Decision};

use crate::headers::{Costs, RateLimitFields, RateLimitHeaders};
pub(crate) use meter::Meter;
use pending_charge::{Balances, PendingCharge};
pub use reported_cost::ReportedCost;

type Counts = dyn Fn(&Response<()>) -> bool + Send + Sync;
type Cost = dyn Fn(&Response<()>) -> Option<Result<Amount, ConfigError>> + Send + Sync;

/// The settlement configuration of a layer.
#[derive(Clone, Default)]
pub(crate) struct Settle {
    counts: Option<Arc<Counts>>,
    cost: CostSource,
}

/// The source of a request's actual cost, for
/// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle).
///
/// | constructor | actual cost | settled |
/// |---|---|---|
/// | [`from_response`](Self::from_response) | a closure reads it from the response's head | when the response's head is available |
/// | [`body_bytes`](Self::body_bytes) | the bytes of the response's body that were sent | when the body has ended or is dropped |
/// | [`reported`](Self::reported) | the handler's [`ReportedCost`] | when the body has ended or is dropped |
#[derive(Clone)]
#[must_use = "a source of costs has no effect until it is passed to `RateLimitLayer::settle`"]
pub struct ActualCost(CostSource);

/// The implementation of [`ActualCost`].
#[derive(Clone, Default)]
enum CostSource {
    /// The estimate is the actual cost.
    #[default]
    Estimate,
    Head(Arc<Cost>),
    Bytes,
    ReportedCost,
}

impl ActualCost {
    /// Reads the cost from the response's head. `None` keeps the estimate.
    pub fn from_response<F, C>(cost: F) -> Self
    where
        F: Fn(&Response<()>) -> Option<C> + Send + Sync + 'static,
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let cost = move |head: &Response<()>| Some(cost(head)?.try_into().map_err(Into::into));
        Self(CostSource::Head(Arc::new(cost)))
    }

    /// Counts the bytes of the response's body that were sent. Headers and trailers are not
    /// counted. If the client disconnects, the bytes sent until then are charged.
    pub fn body_bytes() -> Self {
        Self(CostSource::Bytes)
    }

    /// Reads the total of the [`ReportedCost`] in the response's extensions. A response without one
    /// keeps the estimate.
    pub fn reported() -> Self {
        Self(CostSource::ReportedCost)
    }
}

impl fmt::Debug for ActualCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ActualCost").field(&self.0.name()).finish()
    }
}

impl CostSource {
    const fn name(&self) -> &'static str {
        match self {
            Self::Estimate => "estimate",
            Self::Head(_) => "response",
            Self::Bytes => "body_bytes",
            Self::ReportedCost => "reported",
        }
    }
}

impl Settle {
    pub(crate) fn count_if(&mut self, counts: Arc<Counts>) {
        self.counts = Some(counts);
    }

    pub(crate) fn set_actual_cost(&mut self, cost: ActualCost) {
        self.cost = cost.0;
    }
}

/// The charge of one request until its actual cost is known. If dropped, the estimate stays
/// charged.
#[derive(Debug)]
pub(crate) struct Settling {
    settle: Arc<Settle>,
    charge: PendingCharge,
    header_context: HeaderContext,
}

/// The headers by which a response reports its limits.
#[derive(Debug)]
struct HeaderContext {
    dialect: RateLimitHeaders,
    costs: Costs,
}

impl Settling {
    pub(crate) fn new(
        settle: &Arc<Settle>,
        check: &Check<'_>,
        decision: &Decision,
        costs: impl Iterator<Item = (Amount, bool)>,
        reporter: &Arc<Reporter>,
    ) -> Option<Self> {
        let settlement = Settlement::of(check, decision, reporter)?;
        Some(Self {
            settle: Arc::clone(settle),
            charge: PendingCharge::new(settlement, costs.collect(), Arc::clone(reporter)),
            header_context: HeaderContext {
                dialect: RateLimitHeaders::None,
                costs: Costs::ONE,
            },
        })
    }

    /// Enables the rate limit headers of the response. They are disabled by default.
    pub(crate) fn set_headers(&mut self, dialect: RateLimitHeaders, costs: Costs) {
        self.charge.is_reported = dialect != RateLimitHeaders::None;
        self.header_context = HeaderContext { dialect, costs };
    }

    /// Settles by the response's head and writes the remaining permits if they are known, or
    /// returns a meter that settles when the response's body has ended.
    pub(crate) fn respond<B>(self, response: Response<B>) -> (Response<B>, Option<Meter>) {
        let Self {
            settle,
            charge,
            header_context,
        } = self;
        let (head, body) = response.into_parts();
        let head = Response::from_parts(head, ());
        let (balances, meter) = if settle.counts.as_ref().is_some_and(|counts| !counts(&head)) {
            (charge.cancel(), None)
        } else {
            match &settle.cost {
                CostSource::Estimate => (charge.balances(), None),
                CostSource::Head(cost) => match cost(&head) {
                    Some(cost) => (charge.settle(cost), None),
                    None => (charge.balances(), None),
                },
                CostSource::Bytes => (charge.unsettled_balances(), Some(Meter::of_bytes(charge))),
                CostSource::ReportedCost => match head.extensions().get::<ReportedCost>().cloned() {
                    Some(spent) => (charge.unsettled_balances(), Some(Meter::of_spent(charge, spent))),
                    None => (charge.balances(), None),
                },
            }
        };
        let (mut head, ()) = head.into_parts();
        if let Some(fields) = balances.and_then(|balances| header_context.fields(&balances)) {
            fields.write(&mut head.headers);
        }
        (Response::from_parts(head, body), meter)
    }
}

impl HeaderContext {
    fn fields(&self, balances: &Balances) -> Option<RateLimitFields> {
        RateLimitFields::except(&balances.open, &balances.decision, self.dialect, &self.costs)
    }
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settle")
            .field("count_if", &self.counts.is_some())
            .field("cost", &self.cost.name())
            .finish()
    }
}
