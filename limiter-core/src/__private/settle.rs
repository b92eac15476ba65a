//! The charge of a call until its usage is known. For layers, which cannot wait for a settlement.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::__private::Reporter;
use crate::check::Check;
use crate::decision::Decision;
use crate::settlement::{Reservation, Settled};
use crate::units::Amount;

/// The charge of a call. A dropped settlement keeps the charge.
#[derive(Debug)]
#[must_use = "it stays charged at its estimate unless it is settled"]
pub struct Settlement {
    reservation: Reservation,
    /// The runtime of the decision, since the settlement may run outside of one.
    runtime: Option<Handle>,
    reporter: Arc<Reporter>,
}

impl Settlement {
    /// Creates the settlement of a call that this decision allows. `None` for a degraded call,
    /// which was not charged.
    pub fn of(check: &Check<'_>, decision: &Decision, reporter: &Arc<Reporter>) -> Option<Self> {
        if decision.is_degraded() {
            return None;
        }
        Some(Self {
            reservation: check.reservation(decision.clone().require().ok()?),
            runtime: Handle::try_current().ok(),
            reporter: Arc::clone(reporter),
        })
    }

    /// Returns the decision that allows the call.
    pub fn decision(&self) -> &Decision {
        self.reservation.decision()
    }

    /// Returns the index of a limit in that decision, by its position in the request.
    #[must_use]
    pub fn place(&self, number: usize) -> Option<usize> {
        self.decision().index_of(number)
    }

    /// Replaces the charges by these amounts, one for each limit. In process this happens
    /// immediately and returns the new state; with Redis it happens in the background. Failures are
    /// logged.
    pub fn settle(self, actuals: impl IntoIterator<Item = Amount>) -> Option<Settled> {
        let Self {
            reservation,
            runtime,
            reporter,
        } = self;
        let runtime = Handle::try_current().ok().or(runtime);
        let actuals = actuals.into_iter().collect();
        reservation.settle_in_background(runtime.as_ref(), actuals, move |charged, rejection| {
            reporter.not_settled(charged, &rejection);
        })
    }
}
