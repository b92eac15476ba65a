//! What a request came to, once it is answered: costs that are known then, and outcomes that do not count.

mod meter;
mod owed;
mod spent;

use std::fmt;
use std::sync::Arc;

use http::Response;
use limiter_core::__private::{Reporter, Settlement};
use limiter_core::{Amount, Check, ConfigError, Decision};

use crate::body::ResponseBody;
use crate::headers::{Costs, Dialect, Told};
pub(crate) use meter::Meter;
use owed::{Owed, Stands};
pub use spent::Spent;

type Counts = dyn Fn(&Response<()>) -> bool + Send + Sync;
type Cost = dyn Fn(&Response<()>) -> Option<Result<Amount, ConfigError>> + Send + Sync;

/// What a layer has said of settling.
#[derive(Clone, Default)]
pub(crate) struct Settle {
    counts: Option<Arc<Counts>>,
    by: By,
}

/// Where the true cost is found.
#[derive(Clone, Default)]
enum By {
    /// Nowhere: it is what was charged.
    #[default]
    Estimate,
    Head(Arc<Cost>),
    Bytes,
    Spent,
}

impl Settle {
    pub(crate) fn count_if(&mut self, counts: Arc<Counts>) {
        self.counts = Some(counts);
    }

    pub(crate) fn by_head(&mut self, cost: Arc<Cost>) {
        self.by = By::Head(cost);
    }

    pub(crate) fn by_bytes(&mut self) {
        self.by = By::Bytes;
    }

    pub(crate) fn by_spent(&mut self) {
        self.by = By::Spent;
    }
}

/// What one request was charged, until it is known what it came to. Dropped, it stays charged so.
#[derive(Debug)]
pub(crate) struct Settling {
    settle: Arc<Settle>,
    owed: Owed,
    telling: Telling,
}

/// How a response tells of its limits.
#[derive(Debug)]
struct Telling {
    dialect: Dialect,
    costs: Costs,
}

impl Settling {
    pub(crate) fn of(
        settle: &Arc<Settle>,
        check: &Check<'_>,
        decision: &Decision,
        costs: impl Iterator<Item = (Amount, bool)>,
        reporter: &Arc<Reporter>,
    ) -> Option<Self> {
        let settlement = Settlement::of(check, decision, reporter)?;
        Some(Self {
            settle: Arc::clone(settle),
            owed: Owed::new(settlement, costs.collect(), Arc::clone(reporter)),
            telling: Telling {
                dialect: Dialect::None,
                costs: Costs::ONE,
            },
        })
    }

    /// Has the response tell of its limits. Until then it does not.
    pub(crate) fn tell(&mut self, dialect: Dialect, costs: Costs) {
        self.owed.is_told = dialect != Dialect::None;
        self.telling = Telling { dialect, costs };
    }

    /// Settles by the response's head, or has its body do so; and writes what remains, where that is known.
    pub(crate) fn respond<B>(self, response: Response<B>) -> Response<ResponseBody<B>> {
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
                By::Estimate => (owed.stays(), None),
                By::Head(cost) => match cost(&head) {
                    Some(cost) => (owed.settle(cost), None),
                    None => (owed.stays(), None),
                },
                By::Bytes => (owed.stays_for_now(), Some(Meter::of_bytes(owed))),
                By::Spent => match head.extensions().get::<Spent>().cloned() {
                    Some(spent) => (owed.stays_for_now(), Some(Meter::of_spent(owed, spent))),
                    None => (owed.stays(), None),
                },
            }
        };
        let (mut head, ()) = head.into_parts();
        if let Some(told) = stands.and_then(|stands| telling.told(&stands)) {
            told.write(&mut head.headers);
        }
        let body = match meter {
            Some(meter) => ResponseBody::metered(body, meter),
            None => ResponseBody::inner(body),
        };
        Response::from_parts(head, body)
    }
}

impl Telling {
    fn told(&self, stands: &Stands) -> Option<Told> {
        Told::but_of(&stands.open, &stands.decision, self.dialect, &self.costs)
    }
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            By::Estimate => "estimate",
            By::Head(_) => "head",
            By::Bytes => "bytes",
            By::Spent => "spent",
        };
        f.debug_struct("Settle")
            .field("counts_some", &self.counts.is_some())
            .field("by", &by)
            .finish()
    }
}
