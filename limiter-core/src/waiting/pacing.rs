//! Delays of paced funnels: each grant carries a delay after which it may be used, so that calls
//! leave evenly.

use std::time::Duration;

use crate::check::Check;
use crate::decision::{Allowed, Rejection};
use crate::limiter::{Limiter, shut_down};
use crate::policy::OnDenial;
use crate::settlement::{PendingGrant, Reservation};
use crate::support::clock::Clock;
use crate::units::Timestamp;
use crate::waiting::acquire::no_permit_within;
use crate::waiting::queue::QueueId;
use crate::waiting::wait_limit::{WaitLimit, WaitSlot};

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

impl Check<'_> {
    /// True if a limit may delay the call.
    pub(crate) fn is_paced(&self) -> bool {
        self.asks().iter().any(|ask| ask.policy().is_paced())
    }

    /// Applies the policies' denial rules and waits for the delay. Allocates nothing if no limit is
    /// paced.
    ///
    /// # Cancel safety
    ///
    /// As for the check until it is decided; afterwards the charge is refunded.
    pub(crate) async fn admitted_in_turn(self) -> Result<Allowed, Rejection> {
        self.admitted_in_turn_within(None, None).await
    }

    /// Bounds the wait for the delay by `bound` and by the slots of `wait_limit`.
    pub(crate) async fn admitted_in_turn_within(
        self,
        bound: Option<Duration>,
        wait_limit: Option<&WaitLimit>,
    ) -> Result<Allowed, Rejection> {
        if self.is_paced() {
            Box::pin(self.wait_until_admitted(bound, wait_limit)).await
        } else {
            self.admitted().await
        }
    }

    async fn wait_until_admitted(
        self,
        bound: Option<Duration>,
        wait_limit: Option<&WaitLimit>,
    ) -> Result<Allowed, Rejection> {
        if let OnDenial::Wait(_) = self.on_denial() {
            // `admitted` also waits for the delay.
            return self.admitted().await;
        }
        let check = self.clone();
        let budget = bound.map(|bound| PacingBudget::from(&check.limiter().inner.clock, bound));
        let allowed = self.admitted().await?;
        if allowed.delay().is_zero() {
            return Ok(allowed);
        }
        let grant = Reservation::from_allowed(&check, allowed);
        // The request is valid because it was granted.
        let limiter = check.limiter();
        let queue = || {
            check
                .request()
                .map_or_else(|_| QueueId::new(), |request| request.queue())
        };
        let slot = WaitSlot::new(wait_limit, queue);
        limiter.wait_for_delay(grant, budget, slot).await
    }
}

#[cfg(test)]
mod tests {
    use crate::waiting::pacing::*;
    use crate::{ManualClock, Policy, PolicyBuilder};

    const SECOND: Duration = Duration::from_secs(1);

    fn paced() -> PolicyBuilder<crate::typestate::LevelParams> {
        Policy::funnel("p").capacity(3).rate("1/s").paced()
    }

    #[tokio::test]
    async fn cancelled_delayed_call_is_refunded() {
        let policy = paced().build().unwrap();
        let limits = Limiter::in_process().clock(&ManualClock::new()).build();
        for cancelled in [false, true, true] {
            let call = limits.check(&policy, "a").admitted_in_turn();
            let result = tokio::time::timeout(Duration::ZERO, call).await;
            assert_eq!(result.is_err(), cancelled);
            let refunded = async {
                while limits.peek(&policy, "a").await.unwrap().remaining() != 2 {
                    tokio::task::yield_now().await;
                }
            };
            assert!(tokio::time::timeout(SECOND * 10, refunded).await.is_ok());
        }
    }

    #[tokio::test]
    async fn call_with_wait_on_denial_waits_for_delay_once() {
        let policy = paced().on_denial(OnDenial::Wait(SECOND * 5)).build().unwrap();
        let clock = ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).build();
        assert!(limits.check(&policy, "a").admitted_in_turn().await.is_ok());
        let mut second = std::pin::pin!(limits.check(&policy, "a").admitted_in_turn());
        assert!(tokio::time::timeout(Duration::ZERO, &mut second).await.is_err());
        clock.advance(SECOND);
        let second = tokio::time::timeout(SECOND * 10, second).await;
        assert!(second.is_ok_and(|second| second.is_ok_and(|second| second.delay() == SECOND)));
    }
}
