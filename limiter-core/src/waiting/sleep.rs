//! Sleeping until a time that another component determined.

use crate::decision::Rejection;
use crate::limiter::{Limiter, shut_down};
use crate::observe;
use crate::units::Timestamp;

impl Limiter {
    /// Sleeps until a time of the limiter's clock. The call counts as a waiter, is bounded by
    /// `max_waiting`, and ends when the limiter is shut down.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] if too many calls are waiting, and if the limiter is shut down.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn sleep_as_waiter(&self, moment: Timestamp) -> Result<(), Rejection> {
        self.open()?;
        let _slot = self.inner.queues.count_sleeper()?;
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

    fn kind(result: Result<(), Rejection>) -> StoreErrorKind {
        match result {
            Err(Rejection::Unavailable { error, .. }) => error.kind(),
            result => unreachable!("{result:?}"),
        }
    }

    #[tokio::test]
    async fn sleeping_call_counts_as_waiter_and_ends_at_shutdown() {
        let clock = ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).max_waiting(1).build();
        let moment = clock.now().after(Duration::from_secs(5));
        {
            let mut sleeping = pin!(limits.sleep_as_waiter(moment));
            assert!(tokio::time::timeout(Duration::ZERO, &mut sleeping).await.is_err());
            assert_eq!(
                kind(limits.sleep_as_waiter(moment).await),
                StoreErrorKind::Overloaded
            );
            clock.advance(Duration::from_secs(5));
            assert!(sleeping.await.is_ok());
        }
        {
            // The place is free again, also after the future was dropped.
            let later = moment.after(Duration::from_secs(5));
            let sleeping = tokio::time::timeout(Duration::ZERO, limits.sleep_as_waiter(later)).await;
            assert!(sleeping.is_err());
            let sleeping = limits.sleep_as_waiter(later);
            let (result, ()) = tokio::join!(sleeping, limits.shutdown(Duration::from_secs(5)));
            assert_eq!(kind(result), StoreErrorKind::ShutDown);
        }
        assert_eq!(
            kind(limits.sleep_as_waiter(moment).await),
            StoreErrorKind::ShutDown
        );
    }
}
