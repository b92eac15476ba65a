//! What a call was charged, until it is known what it came to. For edges, which cannot wait for a
//! settlement.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::__private::Reporter;
use crate::check::Check;
use crate::decision::Decision;
use crate::settlement::{Reservation, Settled};
use crate::units::Amount;

/// What a call was charged. Dropped, it stays charged so.
#[derive(Debug)]
#[must_use = "it stays charged at its estimate unless it is settled"]
pub struct Settlement {
    reservation: Reservation,
    /// In which it was decided: where it is settled, there may be none.
    runtime: Option<Handle>,
    reporter: Arc<Reporter>,
}

impl Settlement {
    /// Of a call that this decision allows. `None` where it goes on though it was denied, and was
    /// charged nothing.
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

    /// The decision that allows the call.
    pub fn decision(&self) -> &Decision {
        self.reservation.decision()
    }

    /// Where a limit of the call stands in that decision, by the number under which it was asked
    /// for.
    #[must_use]
    pub fn place(&self, number: usize) -> Option<usize> {
        self.decision().place_of(number)
    }

    /// Has these amounts be charged in place of what was, one for each limit: in process at once,
    /// which then can say how they stand; with Redis in the background. What fails stands in the
    /// log.
    pub fn settle(self, actuals: impl IntoIterator<Item = Amount>) -> Option<Settled> {
        let Self {
            reservation,
            runtime,
            reporter,
        } = self;
        let runtime = Handle::try_current().ok().or(runtime);
        let actuals = actuals.into_iter().collect();
        reservation.settle_in(runtime.as_ref(), actuals, move |charged, rejection| {
            reporter.not_settled(charged, &rejection);
        })
    }
}
