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
    by: CostSource,
}

/// Where the true cost is found.
#[derive(Clone, Default)]
enum CostSource {
    /// Nowhere: it is what was charged.
    #[default]
    Estimate,
    Head(Arc<Cost>),
    Bytes,
    ReportedCost,
}

impl Settle {
    pub(crate) fn count_if(&mut self, counts: Arc<Counts>) {
        self.counts = Some(counts);
    }

    pub(crate) fn by_head(&mut self, cost: Arc<Cost>) {
        self.by = CostSource::Head(cost);
    }

    pub(crate) fn by_bytes(&mut self) {
        self.by = CostSource::Bytes;
    }

    pub(crate) fn by_spent(&mut self) {
        self.by = CostSource::ReportedCost;
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
            match &settle.by {
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
        let by = match self.by {
            CostSource::Estimate => "estimate",
            CostSource::Head(_) => "head",
            CostSource::Bytes => "bytes",
            CostSource::ReportedCost => "spent",
        };
        f.debug_struct("Settle")
            .field("counts_some", &self.counts.is_some())
            .field("by", &by)
            .finish()
    }
}
