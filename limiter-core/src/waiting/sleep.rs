//! Waits for a moment that somebody else has named.

use crate::decision::Rejection;
use crate::limiter::{Limiter, shut_down};
use crate::observe;
use crate::units::Timestamp;

impl Limiter {
    /// Waits for a moment of the limiter's clock. Who does is one of its waiters: it is counted
    /// with those who wait for permits, of whom only so many may, and leaves when the limiter is
    /// shut down.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when too many calls wait already, and when the limiter is shut
    /// down.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn rest_until(&self, moment: Timestamp) -> Result<(), Rejection> {
        self.open()?;
        let _place = self.inner.queues.rest()?;
        let _waiting = observe::WaitingGauge::begin();
        let mut closing = self.inner.closing.subscribe();
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
            () = self.inner.clock.sleep_until(moment) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use crate::waiting::sleep::*;
    use crate::{ManualClock, StoreErrorKind};

    fn kind(answer: Result<(), Rejection>) -> StoreErrorKind {
        match answer {
            Err(Rejection::Unavailable(error)) => error.kind(),
            answer => unreachable!("{answer:?}"),
        }
    }

    #[tokio::test]
    async fn who_rests_counts_as_waiting_and_leaves_with_the_limiter() {
        let clock = ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).max_waiting(1).build();
        let moment = clock.now().after(Duration::from_secs(5));
        {
            let mut resting = pin!(limits.rest_until(moment));
            assert!(tokio::time::timeout(Duration::ZERO, &mut resting).await.is_err());
            assert_eq!(kind(limits.rest_until(moment).await), StoreErrorKind::Overloaded);
            clock.advance(Duration::from_secs(5));
            assert!(resting.await.is_ok());
        }
        {
            // The place is free again, also after one that was dropped.
            let later = moment.after(Duration::from_secs(5));
            let resting = tokio::time::timeout(Duration::ZERO, limits.rest_until(later)).await;
            assert!(resting.is_err());
            let resting = limits.rest_until(later);
            let (answer, ()) = tokio::join!(resting, limits.shutdown(Duration::from_secs(5)));
            assert_eq!(kind(answer), StoreErrorKind::ShutDown);
        }
        assert_eq!(kind(limits.rest_until(moment).await), StoreErrorKind::ShutDown);
    }
}
