//! Permits that are taken before a call and given back after it, where its result does not count
//! (`count_if`).

use crate::__private::hold::{HeldPermits, hold_and_decide};
use crate::__private::{AnnotationEntry, AnnotationGuard, RejectedEntry, Reporter};
use crate::settlement::Reservation;
use crate::units::Amount;

/// Whether a result counts. A function, so that the predicate is known to take a reference to it.
pub fn counts<T: ?Sized>(output: &T, predicate: impl FnOnce(&T) -> bool) -> bool {
    predicate(output)
}

/// What an annotated function was charged. Dropped, it stays charged: a call that panics or is
/// cancelled counts.
#[must_use = "what does not count is given back by `settle`"]
#[derive(Debug)]
pub struct ChargeGuard<const N: usize> {
    /// Held until it is known which permits count.
    _held: HeldPermits,
    /// `None` where nothing can be given back. Boxed, so that a function's own future need not make
    /// room for it.
    paid: Option<Box<ChargeResult<N>>>,
}

#[derive(Debug)]
struct ChargeResult<const N: usize> {
    reporter: &'static Reporter,
    reservation: Reservation,
    /// What each entry costs that was asked for.
    costs: [Option<Amount>; N],
}

/// As [`enter`](crate::__private::enter), where results are looked at afterwards.
///
/// # Errors
///
/// [`RejectedEntry`] when the call must not go on.
pub async fn enter_counted<const N: usize>(
    guard: Option<AnnotationGuard<N>>,
) -> Result<ChargeGuard<N>, RejectedEntry> {
    let Some(mut guard) = guard else {
        return Ok(ChargeGuard {
            _held: HeldPermits::default(),
            paid: None,
        });
    };
    let limiter = guard.limiter();
    let AnnotationGuard {
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
    let (limiter, (held, allowed)) = answer.inspect_err(|refused| reporter.report(&refused.rejection))?;
    let paid = allowed.map(|allowed| {
        // Whatever was allowed could be asked for.
        let asked = entries.iter().filter(|entry| entry.has_request());
        let asks = asked.filter_map(|entry| entry.limit_request().ok());
        Box::new(ChargeResult {
            reporter,
            reservation: Reservation::from_requests(&limiter, asks, allowed),
            costs: entries.each_ref().map(AnnotationEntry::asked_cost),
        })
    });
    Ok(ChargeGuard { _held: held, paid })
}

impl<const N: usize> ChargeGuard<N> {
    /// Gives back what does not count, limit by limit, each within its policy's deadline; where
    /// Redis is asked, also if the future is dropped. What a call that outlives its permit has had
    /// back by then is not given back once more. What fails is told in the log, not to the caller.
    ///
    /// # Cancel safety
    ///
    /// As [`Reservation::settle`].
    pub async fn settle(self, counts: [bool; N]) {
        let Some(paid) = self.paid.filter(|_| counts.contains(&false)) else {
            return;
        };
        // Boxed, as what it is made of.
        Box::pin(async move {
            let each = paid.costs.into_iter().zip(counts);
            let used =
                each.filter_map(|(cost, counts)| cost.map(|cost| if counts { cost } else { Amount::ZERO }));
            if let Err(rejection) = paid.reservation.settle_each(used).await {
                paid.reporter.not_given_back(&rejection);
            }
        })
        .await;
    }
}
