//! Functions of a limiter that a client layer needs to follow its peer's responses.

use crate::decision::{Decision, Origin, Rejection};
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::LimitRequest;
use crate::settlement::Reservation;
use crate::units::{Amount, Timestamp};

/// Returns the time of the limiter's clock.
#[must_use]
pub fn now(limiter: &Limiter) -> Timestamp {
    limiter.now()
}

/// Returns the current time of the calendar, with which times of other machines are compared: the
/// clock of a limiter neither follows a step of the system clock nor a suspend.
#[must_use]
pub fn calendar(limiter: &Limiter) -> Timestamp {
    limiter.inner.clock.calendar()
}

/// Returns the decision for a call without limits.
pub fn unlimited(limiter: &Limiter) -> Decision {
    Decision::without_query(Origin::Off, limiter.now())
}

/// Returns the key with hashes in place of parts that exceed the maximum length.
#[must_use]
pub fn bounded(key: Key<'_>) -> Key<'_> {
    key.bounded()
}

/// Waits until a time of the limiter's clock, as one of the limiter's waiters.
///
/// # Errors
///
/// Too many calls are waiting, or the limiter was shut down.
pub async fn sleep_as_waiter(limiter: &Limiter, moment: Timestamp) -> Result<(), Rejection> {
    limiter.sleep_as_waiter(moment).await
}

/// Refunds the charge of this decision for a call that did not happen; does nothing if nothing was
/// charged.
///
/// # Errors
///
/// The refund failed.
pub async fn give_back(
    limiter: &Limiter,
    policy: &Policy,
    key: &Key<'_>,
    cost: Amount,
    charged: &Decision,
) -> Result<(), Rejection> {
    let Ok(charged) = charged.clone().require() else {
        return Ok(());
    };
    let request = LimitRequest::new(policy, key).cost(cost);
    Reservation::from_requests(limiter, [request], charged)
        .cancel()
        .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::__private::peer::*;
    use crate::support::clock::ManualClock;

    #[test]
    fn calendar_follows_steps_of_the_system_clock() {
        let clock = ManualClock::new();
        let limiter = Limiter::in_process().clock(&clock).build();
        clock.set_calendar_ahead(3_600_000_000);
        assert_eq!(
            calendar(&limiter),
            now(&limiter).after(Duration::from_secs(3_600))
        );
    }
}
