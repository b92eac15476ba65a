//! What is granted now and used later: a paced funnel tells each call how long it waits, so that
//! calls leave evenly.

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

/// How long somebody waits for a turn at most.
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
    /// Waits until a grant of what was wanted may be used, its delay after it was decided. One that
    /// may be used too late is given back, so that others leave earlier.
    ///
    /// # Errors
    ///
    /// At once [`Rejection::TimedOut`], or [`Rejection::Limited`] for a timeout of zero, where that
    /// is too late; and [`Rejection::Limited`], where there is no seat to wait in;
    /// [`Rejection::Unavailable`] when the limiter is shut down meanwhile. Either way it is given
    /// back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a grant that nobody waits for any more is given back.
    pub(crate) async fn wait_for_turn(
        &self,
        grant: Reservation,
        patience: Option<PacingBudget>,
        mut seat: WaitSlot<'_>,
    ) -> Result<Allowed, Rejection> {
        // Left after what gives the grant back has begun, so that whoever shuts the limiter down
        // waits for that.
        let mut closing = self.inner.closing.subscribe();
        let clock = &self.inner.clock;
        let delay = grant.decision().delay();
        let due = clock.due(grant.decision().decided_at(), delay);
        let denied_within = |grant: &Reservation, patience| Box::new(grant.denied_within(patience));
        if let Some(PacingBudget { ends, timeout }) = patience {
            if due > ends {
                let denied = denied_within(&grant, delay.saturating_sub(due.since(ends)));
                drop(PendingGrant::new(grant));
                return Err(no_permit_within(timeout, Some(denied)));
            }
        }
        if !seat.take_and_keep() {
            let denied = denied_within(&grant, Duration::ZERO);
            drop(PendingGrant::new(grant));
            return Err(Rejection::Limited(denied));
        }
        let mut early = PendingGrant::new(grant);
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
            // It is taken here alone.
            () = clock.sleep_until(due) => early.take().ok_or_else(|| shut_down().into()),
        }
    }
}

impl Check<'_> {
    /// Whether one of its limits may have the call wait for its turn.
    pub(crate) fn is_paced(&self) -> bool {
        self.asks().iter().any(|ask| ask.policy().is_paced())
    }

    /// The answer when the call may go on: after what its policies say of a denial, and when its
    /// turn has come. Nothing is boxed where none of its limits is paced.
    ///
    /// # Cancel safety
    ///
    /// As awaiting the check until that is answered; then what was charged is given back.
    pub(crate) async fn admitted_in_turn(self) -> Result<Allowed, Rejection> {
        self.admitted_in_turn_within(None, None).await
    }

    /// The same where nobody waits for its turn for longer than the bound, or without a seat.
    pub(crate) async fn admitted_in_turn_within(
        self,
        bound: Option<Duration>,
        room: Option<&WaitLimit>,
    ) -> Result<Allowed, Rejection> {
        if self.is_paced() {
            Box::pin(self.wait_until_admitted(bound, room)).await
        } else {
            self.admitted().await
        }
    }

    async fn wait_until_admitted(
        self,
        bound: Option<Duration>,
        room: Option<&WaitLimit>,
    ) -> Result<Allowed, Rejection> {
        if let OnDenial::Wait(_) = self.on_denial() {
            // Which waits for the turn, too.
            return self.admitted().await;
        }
        let asked = self.clone();
        let patience = bound.map(|bound| PacingBudget::from(&asked.limiter().inner.clock, bound));
        let allowed = self.admitted().await?;
        if allowed.delay().is_zero() {
            return Ok(allowed);
        }
        let grant = Reservation::from_allowed(&asked, allowed);
        // The request is valid, since it was granted.
        let limiter = asked.limiter();
        let queue = || {
            asked
                .request()
                .map_or_else(|_| QueueId::new(), |request| request.queue())
        };
        let seat = WaitSlot::new(room, queue);
        limiter.wait_for_turn(grant, patience, seat).await
    }
}

#[cfg(test)]
mod tests {
    use crate::waiting::pacing::*;
    use crate::{ManualClock, Policy, PolicyBuilder};

    const SECOND: Duration = Duration::from_secs(1);

    fn paced() -> PolicyBuilder<crate::LevelParams> {
        Policy::funnel("p").capacity(3).rate("1/s").paced()
    }

    #[tokio::test]
    async fn a_call_that_is_cancelled_before_its_turn_gives_its_place_back() {
        let policy = paced().build().unwrap();
        let limits = Limiter::in_process().clock(&ManualClock::new()).build();
        for cancelled in [false, true, true] {
            let call = limits.check(&policy, "a").admitted_in_turn();
            let answer = tokio::time::timeout(Duration::ZERO, call).await;
            assert_eq!(answer.is_err(), cancelled);
            let given_back = async {
                while limits.peek(&policy, "a").await.unwrap().remaining() != 2 {
                    tokio::task::yield_now().await;
                }
            };
            assert!(tokio::time::timeout(SECOND * 10, given_back).await.is_ok());
        }
    }

    #[tokio::test]
    async fn whoever_waits_as_the_policy_says_waits_for_a_turn_once() {
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
