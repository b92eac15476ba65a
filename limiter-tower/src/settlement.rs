//! What a request came to, once it is answered: costs that are known then, and outcomes that do not
//! count.

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

/// What a layer has said of settling.
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
    /// counted. A client that disconnects pays for the bytes sent until then.
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

/// What one request was charged, until it is known what it came to. Dropped, it stays charged so.
#[derive(Debug)]
pub(crate) struct Settling {
    settle: Arc<Settle>,
    owed: PendingCharge,
    telling: Telling,
}

/// How a response tells of its limits.
#[derive(Debug)]
struct Telling {
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
            owed: PendingCharge::new(settlement, costs.collect(), Arc::clone(reporter)),
            telling: Telling {
                dialect: RateLimitHeaders::None,
                costs: Costs::ONE,
            },
        })
    }

    /// Has the response tell of its limits. Until then it does not.
    pub(crate) fn set_headers(&mut self, dialect: RateLimitHeaders, costs: Costs) {
        self.owed.is_told = dialect != RateLimitHeaders::None;
        self.telling = Telling { dialect, costs };
    }

    /// Settles by the response's head, and writes the remaining permits where they are known; or
    /// returns a meter, which settles when the response's body has ended.
    pub(crate) fn respond<B>(self, response: Response<B>) -> (Response<B>, Option<Meter>) {
        let Self {
            settle,
            owed,
            telling,
        } = self;
        let (head, body) = response.into_parts();
        let head = Response::from_parts(head, ());
        let (stands, meter) = if settle.counts.as_ref().is_some_and(|counts| !counts(&head)) {
            (owed.cancel(), None)
        } else {
            match &settle.cost {
                CostSource::Estimate => (owed.balances(), None),
                CostSource::Head(cost) => match cost(&head) {
                    Some(cost) => (owed.settle(cost), None),
                    None => (owed.balances(), None),
                },
                CostSource::Bytes => (owed.stays_for_now(), Some(Meter::of_bytes(owed))),
                CostSource::ReportedCost => match head.extensions().get::<ReportedCost>().cloned() {
                    Some(spent) => (owed.stays_for_now(), Some(Meter::of_spent(owed, spent))),
                    None => (owed.balances(), None),
                },
            }
        };
        let (mut head, ()) = head.into_parts();
        if let Some(told) = stands.and_then(|stands| telling.fields(&stands)) {
            told.write(&mut head.headers);
        }
        (Response::from_parts(head, body), meter)
    }
}

impl Telling {
    fn fields(&self, stands: &Balances) -> Option<RateLimitFields> {
        RateLimitFields::but_of(&stands.open, &stands.decision, self.dialect, &self.costs)
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
