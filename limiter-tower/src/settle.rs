//! What a request came to, once it is answered: costs that are known then, and outcomes that do not count.

mod meter;
mod spent;

use std::fmt;
use std::sync::Arc;

use http::Response;
use limiter_core::__private::{Reporter, Settlement};
use limiter_core::{Amount, Check, ConfigError, Decision};
use smallvec::SmallVec;

use crate::body::ResponseBody;
pub(crate) use meter::Meter;
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
}

/// The same, once it is known how that is found out.
#[derive(Debug)]
pub(crate) struct Owed {
    settlement: Settlement,
    /// Of each limit, and whether it keeps it.
    costs: SmallVec<[(Amount, bool); 1]>,
    reporter: Arc<Reporter>,
}

impl Settling {
    pub(crate) fn of(
        settle: &Arc<Settle>,
        check: &Check<'_>,
        decision: &Decision,
        costs: impl Iterator<Item = (Amount, bool)>,
        reporter: &Arc<Reporter>,
    ) -> Option<Self> {
        Some(Self {
            settle: Arc::clone(settle),
            owed: Owed {
                settlement: Settlement::of(check, decision, reporter)?,
                costs: costs.collect(),
                reporter: Arc::clone(reporter),
            },
        })
    }

    /// Settles by the response's head, or has its body do so.
    pub(crate) fn respond<B>(self, response: Response<B>) -> Response<ResponseBody<B>> {
        let Self { settle, owed } = self;
        let (head, body) = response.into_parts();
        let head = Response::from_parts(head, ());
        let meter = if settle.counts.as_ref().is_some_and(|counts| !counts(&head)) {
            owed.cancel();
            None
        } else {
            match &settle.by {
                By::Estimate => None,
                By::Head(cost) => {
                    if let Some(cost) = cost(&head) {
                        owed.settle(cost);
                    }
                    None
                }
                By::Bytes => Some(Meter::of_bytes(owed)),
                By::Spent => {
                    let spent = head.extensions().get::<Spent>().cloned();
                    spent.map(|spent| Meter::of_spent(owed, spent))
                }
            }
        };
        let (head, ()) = head.into_parts();
        let body = match meter {
            Some(meter) => ResponseBody::metered(body, meter),
            None => ResponseBody::inner(body),
        };
        Response::from_parts(head, body)
    }
}

impl Owed {
    /// Has this be charged in place of what was.
    fn settle(self, cost: Result<Amount, ConfigError>) {
        match cost {
            Ok(cost) => {
                let actual = |(kept, keeps): (Amount, bool)| if keeps { kept } else { cost };
                self.settlement.settle(self.costs.into_iter().map(actual));
            }
            Err(error) => self.reporter.report(&error.into()),
        }
    }

    /// Gives back all of it.
    fn cancel(self) {
        self.settlement.settle(self.costs.iter().map(|_| Amount::ZERO));
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
