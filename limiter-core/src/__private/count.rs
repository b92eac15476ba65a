//! Permits that are taken before a call and given back after it, where its result does not count (`count_if`).

use super::hold::{Permits, hold_and_decide};
use super::{Entry, Guard, Refused, Reporter};
use crate::context::Current;
use crate::decision::{Decision, Origin, Rejection};
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::units::Amount;

/// Whether a result counts. A function, so that the predicate is known to take a reference to it.
pub fn counts<T: ?Sized>(output: &T, predicate: impl FnOnce(&T) -> bool) -> bool {
    predicate(output)
}

/// What an annotated function was charged. Dropped, it stays charged: a call that panics or is cancelled counts.
#[must_use = "what does not count is given back by `settle`"]
#[derive(Debug)]
pub struct Charged<const N: usize> {
    /// Held until it is known which permits count.
    _held: Permits,
    /// `None` where nothing can be given back.
    paid: Option<Paid<N>>,
}

#[derive(Debug)]
struct Paid<const N: usize> {
    reporter: &'static Reporter,
    limiter: Current,
    entries: [Entry; N],
    from: Origin,
}

/// As [`enter`](super::enter), where results are looked at afterwards.
///
/// # Errors
///
/// [`Refused`] when the call must not go on.
pub async fn enter_counted<const N: usize>(guard: Option<Guard<N>>) -> Result<Charged<N>, Refused> {
    let Some(mut guard) = guard else {
        return Ok(Charged {
            _held: Permits::default(),
            paid: None,
        });
    };
    let limiter = guard.limiter();
    let Guard {
        reporter,
        mut entries,
        wait,
        ..
    } = guard;
    let answer = match limiter {
        // Boxed, since the futures of those who wait are large, and a function's own should not be.
        Ok(limiter) => Box::pin(hold_and_decide(&limiter, &mut entries, wait))
            .await
            .map(|entered| (limiter, entered)),
        Err(refused) => Err(refused),
    };
    match answer {
        Ok((limiter, (held, allowed))) => Ok(Charged {
            _held: held,
            paid: allowed
                .filter(|allowed| was_charged(allowed))
                .map(|allowed| Paid {
                    reporter,
                    from: allowed.origin(),
                    limiter,
                    entries,
                }),
        }),
        Err(refused) => {
            reporter.report(&refused.rejection);
            Err(refused)
        }
    }
}

/// Whether there is something to be given back. What nobody decided was not charged, nor what was let through in spite of a
/// limit that denied it.
pub(super) fn was_charged(decision: &Decision) -> bool {
    let charges = matches!(
        decision.origin(),
        Origin::Redis | Origin::Memory | Origin::Lease | Origin::Insurance
    );
    charges && decision.limits().iter().all(|limit| limit.is_allowed())
}

impl<const N: usize> Charged<N> {
    /// Gives back what does not count, one after the other, each within its policy's deadline. What fails is told in the
    /// log, not to the caller.
    pub async fn settle(self, counts: [bool; N]) {
        let Some(paid) = self.paid else { return };
        let each = paid.entries.iter().zip(counts);
        for (entry, _) in each.filter(|(entry, counts)| !counts && entry.is_asked()) {
            if let Err(rejection) = give_back(&paid.limiter, entry, paid.from).await {
                paid.reporter.not_given_back(&rejection);
            }
        }
    }
}

/// To whoever was charged: the replica's own share, where that decided, since Redis never heard of the call.
async fn give_back(limiter: &Limiter, entry: &Entry, from: Origin) -> Result<(), Rejection> {
    let (policy, cost) = (entry.policy()?, entry.cost.clone()?);
    if cost == Amount::ZERO {
        return Ok(());
    }
    refund(limiter, policy, &entry.key, cost, from).await
}

/// The same of what is no attribute's.
pub(super) async fn refund(
    limiter: &Limiter,
    policy: &Policy,
    key: &Key<'_>,
    cost: Amount,
    from: Origin,
) -> Result<(), Rejection> {
    let refund = limiter.refund(policy, key).cost(cost);
    match from {
        #[cfg(feature = "redis")]
        Origin::Insurance => refund.into_share(),
        _ => refund.await,
    }
}
