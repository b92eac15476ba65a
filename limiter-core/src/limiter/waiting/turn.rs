//! What is granted now and used later: a paced funnel tells each call how long it waits, so that calls leave evenly.

use std::time::Duration;

use tokio::runtime::Handle;

use super::wanted::Wanted;
use crate::algorithm::Mode;
use crate::decision::{Allowed, Decision, LimitOutcome, Rejection};
use crate::limiter::{Check, Limiter, shut_down};
use crate::policy::{Enforcement, OnDenial};
use crate::request::Request;
use crate::units::Timestamp;

/// A grant whose time has not come. One that is dropped is given back, in the background.
struct Early<'a> {
    limiter: &'a Limiter,
    wanted: Wanted,
    /// In which it waits, if it is one that can give it back.
    runtime: Option<Handle>,
    /// `None` once its time has come.
    grant: Option<Allowed>,
}

/// How long somebody waits for a turn at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) ends: Timestamp,
    pub(super) up_to: Duration,
}

impl Limiter {
    /// Waits until a grant of what was wanted may be used, `delay` after it was decided. One that may be used too late is given
    /// back, so that others leave earlier.
    ///
    /// # Errors
    ///
    /// [`Rejection::TimedOut`] at once, where that is too late; [`Rejection::Unavailable`] when the limiter is shut down meanwhile.
    /// Either way it is given back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a grant that nobody waits for any more is given back.
    pub(super) async fn wait_for_turn(
        &self,
        wanted: Wanted,
        grant: Allowed,
        delay: Duration,
        patience: Option<Patience>,
    ) -> Result<Allowed, Rejection> {
        // Left after what gives the grant back has begun, so that whoever shuts the limiter down waits for that.
        let mut closing = self.inner.closing.subscribe();
        let clock = &self.inner.clock;
        let due = clock.due(grant.decided_at(), delay);
        let mut early = Early {
            limiter: self,
            wanted,
            runtime: Handle::try_current().ok(),
            grant: Some(grant),
        };
        if let Some(Patience { ends, up_to }) = patience
            && due > ends
        {
            return Err(Rejection::TimedOut {
                decision: None,
                limit: up_to,
            });
        }
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
            // It is taken here alone.
            () = clock.sleep_until(due) => early.grant.take().ok_or_else(|| shut_down().into()),
        }
    }
}

impl Drop for Early<'_> {
    fn drop(&mut self) {
        if let (Some(grant), Some(runtime)) = (self.grant.take(), &self.runtime) {
            self.limiter.return_later(self.wanted.clone(), grant, runtime);
        }
    }
}

impl Check<'_> {
    /// Whether one of its limits may have the call wait for its turn.
    pub(crate) fn is_paced(&self) -> bool {
        self.asks().iter().any(|ask| ask.policy().is_paced())
    }

    /// The answer when the call may go on: after what its policies say of a denial, and when its turn has come. Nothing is boxed
    /// where none of its limits is paced.
    ///
    /// # Cancel safety
    ///
    /// As awaiting the check until that is answered; then what was charged is given back.
    pub(crate) async fn admitted_in_turn(self) -> Result<Allowed, Rejection> {
        if self.is_paced() {
            Box::pin(self.wait_until_admitted()).await
        } else {
            self.admitted().await
        }
    }

    async fn wait_until_admitted(self) -> Result<Allowed, Rejection> {
        if let OnDenial::Wait(_) = self.on_denial() {
            // Which waits for the turn, too.
            return self.admitted().await;
        }
        let asked = self.clone();
        let allowed = self.admitted().await?;
        let delay = asked.delay(&allowed);
        if delay.is_zero() {
            return Ok(allowed);
        }
        let wanted = asked.charged(&allowed);
        asked.limiter().wait_for_turn(wanted, allowed, delay, None).await
    }

    /// How long the call waits for its turn: in shadow nobody does, and neither does who goes on in spite of a denial.
    fn delay(&self, allowed: &Decision) -> Duration {
        if allowed.is_degraded() {
            return Duration::ZERO;
        }
        let limiter = self.limiter().enforcement();
        let is_obeyed =
            |limit: &&LimitOutcome| limit.policy().enforcement().max(limiter) == Enforcement::Enforce;
        let obeyed = allowed.limits().iter().filter(is_obeyed);
        obeyed.map(LimitOutcome::delay).max().unwrap_or_default()
    }

    /// What was charged for a decision that allows the call, as far as that is known for sure: where a limit in shadow would
    /// have denied it, nothing is.
    fn charged(&self, allowed: &Decision) -> Wanted {
        if !allowed.limits().iter().all(LimitOutcome::is_allowed) {
            return Wanted::default();
        }
        let limiter = self.limiter();
        let asks = self.asks().iter().filter(|ask| limiter.charges(ask)).cloned();
        // It was checked when it was asked.
        let request = Request::new(asks, Mode::Charge, limiter.is_standalone_only());
        request.as_ref().map(Wanted::of).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ManualClock, Policy, PolicyBuilder};

    const SECOND: Duration = Duration::from_secs(1);

    fn paced() -> PolicyBuilder<crate::LevelShape> {
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

    /// In the timer's own time, which passes at once: all that is waited for, and nothing else.
    #[tokio::test(start_paused = true)]
    async fn whoever_waits_as_the_policy_says_waits_for_a_turn_once() {
        let policy = paced().on_denial(OnDenial::Wait(SECOND * 5)).build().unwrap();
        let limits = Limiter::in_process().build();
        assert!(limits.check(&policy, "a").admitted_in_turn().await.is_ok());
        let began = tokio::time::Instant::now();
        let second = limits.check(&policy, "a").admitted_in_turn().await;
        assert!(second.is_ok_and(|second| second.delay() > SECOND / 2));
        assert!(began.elapsed() < SECOND * 3 / 2, "{:?}", began.elapsed());
    }
}
