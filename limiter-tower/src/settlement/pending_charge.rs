//! What a request is charged, and how its limits stand for that.

use std::sync::Arc;

use limiter_core::__private::{Reporter, Settlement};
use limiter_core::{Amount, ConfigError, Decision};
use smallvec::SmallVec;

use crate::headers::Unsettled;

/// What a request is charged, once it is known how its cost is found out.
#[derive(Debug)]
pub(crate) struct PendingCharge {
    settlement: Settlement,
    /// Of each limit, and whether it keeps it.
    costs: SmallVec<[(Amount, bool); 1]>,
    reporter: Arc<Reporter>,
    /// Whether anybody is told how its limits stand.
    pub(super) is_told: bool,
}

/// How the limits of a request stand when its response goes out.
#[derive(Debug)]
pub(super) struct Balances {
    pub(super) decision: Decision,
    /// Those of which that is not known yet.
    pub(super) open: Unsettled,
}

impl PendingCharge {
    pub(super) fn new(
        settlement: Settlement,
        costs: SmallVec<[(Amount, bool); 1]>,
        reporter: Arc<Reporter>,
    ) -> Self {
        Self {
            settlement,
            costs,
            reporter,
            is_told: false,
        }
    }

    /// It stays charged as it is.
    pub(super) fn balances(&self) -> Option<Balances> {
        self.stands_but(Unsettled::default())
    }

    /// The same until its body has ended.
    pub(super) fn stays_for_now(&self) -> Option<Balances> {
        self.stands_but(self.open(self.costs.iter().map(|(_, keeps)| !keeps)))
    }

    /// Has this be charged in place of what was.
    pub(super) fn settle(self, cost: Result<Amount, ConfigError>) -> Option<Balances> {
        match cost {
            Ok(cost) => self.settle_as(|kept, keeps| if keeps { kept } else { cost }),
            Err(error) => {
                self.reporter.report(&error.into());
                self.balances()
            }
        }
    }

    /// Gives back all of it.
    pub(super) fn cancel(self) -> Option<Balances> {
        self.settle_as(|_, _| Amount::ZERO)
    }

    fn settle_as(self, actual: impl Fn(Amount, bool) -> Amount) -> Option<Balances> {
        let actuals: SmallVec<[Amount; 1]> = (self.costs.iter())
            .map(|(kept, keeps)| actual(*kept, *keeps))
            .collect();
        let changed = self
            .costs
            .iter()
            .zip(&actuals)
            .map(|((kept, _), actual)| kept != actual);
        let (before, is_told) = (self.stands_but(self.open(changed)), self.is_told);
        match self.settlement.settle(actuals) {
            Some(settled) => is_told.then(|| Balances {
                decision: settled.balance(),
                open: Unsettled::default(),
            }),
            None => before,
        }
    }

    /// As they stood when it was charged, but for those that are open.
    fn stands_but(&self, open: Unsettled) -> Option<Balances> {
        self.is_told.then(|| Balances {
            decision: self.settlement.decision().clone(),
            open,
        })
    }

    /// The places of these of its limits in the decision.
    fn open(&self, limits: impl Iterator<Item = bool>) -> Unsettled {
        let numbers = limits
            .enumerate()
            .filter_map(|(number, open)| open.then_some(number));
        numbers
            .filter_map(|number| self.settlement.place(number))
            .collect()
    }
}
