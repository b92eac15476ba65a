//! Delays of paced funnels: each grant carries a delay after which it may be used, so that calls
//! leave evenly.

use std::time::Duration;

use crate::decision::{Allowed, Rejection};
use crate::limiter::{Limiter, shut_down};
use crate::settlement::{PendingGrant, Reservation};
use crate::support::clock::Clock;
use crate::units::Timestamp;
use crate::waiting::wait_budget::no_permit_within;
use crate::waiting::wait_limit::WaitSlot;

/// Maximum wait for the delay of a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacingBudget {
    pub(crate) ends: Timestamp,
    pub(crate) timeout: Duration,
}

impl PacingBudget {
    pub(crate) fn from(clock: &Clock, timeout: Duration) -> Self {
        Self {
            ends: clock.now().after(timeout),
            timeout,
        }
    }
}

impl Limiter {
    /// Waits for the delay of a grant. If the delay ends after the budget, the grant is refunded,
    /// so that other calls can leave earlier.
    ///
    /// # Errors
    ///
    /// Immediately [`Rejection::TimedOut`], or [`Rejection::Limited`] for a timeout of zero, if the
    /// delay ends too late; [`Rejection::Limited`] if there is no free slot;
    /// [`Rejection::Unavailable`] if the limiter is shut down meanwhile. In each case the grant is
    /// refunded.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the grant of a cancelled call is refunded.
    pub(crate) async fn wait_for_delay(
        &self,
        grant: Reservation,
        budget: Option<PacingBudget>,
        mut slot: WaitSlot<'_>,
    ) -> Result<Allowed, Rejection> {
        // Dropped after the refund has started, because a shutdown waits for this receiver.
        let mut closing = self.inner.closing.subscribe();
        let clock = &self.inner.clock;
        let delay = grant.decision().delay();
        let due = clock.due(grant.decision().decided_at(), delay);
        let denied_within = |grant: &Reservation, budget| Box::new(grant.denied_within(budget));
        if let Some(PacingBudget { ends, timeout }) = budget {
            if due > ends {
                let denied = denied_within(&grant, delay.saturating_sub(due.since(ends)));
                drop(PendingGrant::new(grant));
                return Err(no_permit_within(timeout, Some(denied)));
            }
        }
        if !slot.take_and_keep() {
            let denied = denied_within(&grant, Duration::ZERO);
            drop(PendingGrant::new(grant));
            return Err(Rejection::Limited(denied));
        }
        let mut pending = PendingGrant::new(grant);
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
            // No other code takes the grant.
            () = clock.sleep_until(due) => pending.take().ok_or_else(|| shut_down().into()),
        }
    }
}
