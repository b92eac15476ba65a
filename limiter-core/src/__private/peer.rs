//! What a client's layer needs of a limiter, to keep to what the peer says.

use crate::decision::{Decision, Origin, Rejection};
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::LimitRequest;
use crate::settlement::Reservation;
use crate::units::{Amount, Timestamp};

/// The moment by the limiter's clock.
#[must_use]
pub fn now(limiter: &Limiter) -> Timestamp {
    limiter.now()
}

/// The answer to a call that is limited by nothing: allowed, and nobody was asked.
pub fn unlimited(limiter: &Limiter) -> Decision {
    Decision::unasked(Origin::Off, limiter.now())
}

/// The key with hashes in place of what is too long to be kept.
#[must_use]
pub fn bounded(key: Key<'_>) -> Key<'_> {
    key.bounded()
}

/// Waits for a moment of the limiter's clock, as one of its waiters.
///
/// # Errors
///
/// Too many calls wait already, or the limiter was shut down.
pub async fn sleep_as_waiter(limiter: &Limiter, moment: Timestamp) -> Result<(), Rejection> {
    limiter.sleep_as_waiter(moment).await
}

/// Gives back what a call that came to nothing was charged by this decision; nothing, where it was
/// charged nothing.
///
/// # Errors
///
/// It could not be given back.
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
    let ask = LimitRequest::new(policy, key).cost(cost);
    Reservation::from_requests(limiter, [ask], charged).cancel().await
}
