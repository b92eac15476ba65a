//! The charge of a request, and the resulting state of its limits.
//!
//! The response shows remaining permits, but a charge can still change after the headers are
//! written. [`PendingCharge`] holds the charged cost of each limit and settles, keeps or cancels it
//! once; each way returns the [`Balances`] at that time.
//!
//! Invariant: `Balances::open` contains every limit whose number is not final, so the headers omit
//! it. Tests: `tests/decisions/headers.rs`, `tests/decisions/settlement.rs`.

use std::sync::Arc;

use limiter_core::__private::{Reporter, Settlement};
use limiter_core::{Amount, ConfigError, Decision};
use smallvec::SmallVec;

use crate::headers::Unsettled;

/// The charge of a request, with the way to determine its cost.
#[derive(Debug)]
pub(crate) struct PendingCharge {
    settlement: Settlement,
    /// The cost of each limit, and whether the limit keeps it.
    costs: SmallVec<[(Amount, bool); 1]>,
    reporter: Arc<Reporter>,
    /// True if the response reports the state of the limits.
    pub(super) is_reported: bool,
}

/// The state of a request's limits at the time of its response.
#[derive(Debug)]
pub(super) struct Balances {
    pub(super) decision: Decision,
    /// The limits whose settlement is still pending.
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
            is_reported: false,
        }
    }

    /// Keeps the charge unchanged.
    pub(super) fn balances(&self) -> Option<Balances> {
        self.balances_except(Unsettled::default())
    }

    /// Keeps the charge unchanged until the body has ended.
    pub(super) fn unsettled_balances(&self) -> Option<Balances> {
        self.balances_except(self.open(self.costs.iter().map(|(_, keeps)| !keeps)))
    }

    /// Replaces the charge by `cost`.
    pub(super) fn settle(self, cost: Result<Amount, ConfigError>) -> Option<Balances> {
        match cost {
            Ok(cost) => self.settle_as(|charged, keeps| if keeps { charged } else { cost }),
            Err(error) => {
                self.reporter.report(&error.into());
                self.balances()
            }
        }
    }

    /// Refunds the whole charge.
    pub(super) fn cancel(self) -> Option<Balances> {
        self.settle_as(|_, _| Amount::ZERO)
    }

    fn settle_as(self, actual: impl Fn(Amount, bool) -> Amount) -> Option<Balances> {
        let actuals: SmallVec<[Amount; 1]> = (self.costs.iter())
            .map(|(charged, keeps)| actual(*charged, *keeps))
            .collect();
        let changed = self
            .costs
            .iter()
            .zip(&actuals)
            .map(|((charged, _), actual)| charged != actual);
        let (before, is_reported) = (self.balances_except(self.open(changed)), self.is_reported);
        match self.settlement.settle(actuals) {
            Some(settled) => is_reported.then(|| Balances {
                decision: settled.balance(),
                open: Unsettled::default(),
            }),
            None => before,
        }
    }

    /// Returns the state at the time of the charge, without the unsettled limits.
    fn balances_except(&self, open: Unsettled) -> Option<Balances> {
        self.is_reported.then(|| Balances {
            decision: self.settlement.decision().clone(),
            open,
        })
    }

    /// Returns the indexes of the selected limits in the decision.
    fn open(&self, limits: impl Iterator<Item = bool>) -> Unsettled {
        let numbers = limits
            .enumerate()
            .filter_map(|(number, open)| open.then_some(number));
        numbers
            .filter_map(|number| self.settlement.place(number))
            .collect()
    }
}
