//! Permits that are charged before a call and refunded after it if its result does not count
//! (`count_if`).
//!
//! The expansion charges all limits of the function by `enter_counted`, runs the body, and passes
//! one flag per attribute to `ChargeGuard::settle`. The guard holds a reservation, and `settle`
//! settles each limit at its cost or at zero.
//!
//! Invariant: a call that panics or is cancelled stays charged, because only `settle` refunds.
//! Tests: `tests/contract/annotations.rs`, `limiter-macros/tests/behaviour/counting.rs`.

use crate::__private::held_permits::{HeldPermits, hold_and_decide};
use crate::__private::{AnnotationEntry, PendingCall, RejectedEntry, Reporter};
use crate::settlement::Reservation;
use crate::units::Amount;

/// Returns whether a result counts. The signature makes the compiler infer that the predicate takes
/// a reference.
pub fn counts<T: ?Sized>(output: &T, predicate: impl FnOnce(&T) -> bool) -> bool {
    predicate(output)
}

/// The charge of an annotated function. A dropped guard keeps the charge: a call that panics or is
/// cancelled counts.
#[must_use = "permits that do not count are refunded by `settle`"]
#[derive(Debug)]
pub struct ChargeGuard<const N: usize> {
    /// Held until the result is known.
    _held: HeldPermits,
    /// `None` if nothing can be refunded. Boxed, so that the future of the annotated function stays
    /// small.
    paid: Option<Box<ChargeResult<N>>>,
}

#[derive(Debug)]
struct ChargeResult<const N: usize> {
    reporter: &'static Reporter,
    reservation: Reservation,
    /// The cost of each entry with a request.
    costs: [Option<Amount>; N],
}

/// Decides as [`enter`](crate::__private::enter), for a function whose result determines the final
/// charge.
///
/// # Errors
///
/// [`RejectedEntry`] if the call is rejected.
pub async fn enter_counted<const N: usize>(
    call: Option<PendingCall<N>>,
) -> Result<ChargeGuard<N>, RejectedEntry> {
    let Some(mut call) = call else {
        return Ok(ChargeGuard {
            _held: HeldPermits::default(),
            paid: None,
        });
    };
    let (held, allowed) = hold_and_decide(&mut call).await?;
    let limiter = call.limiter()?;
    let (reporter, entries) = (call.reporter, &call.entries);
    let paid = allowed.map(|allowed| {
        // The requests of an allowed call are valid.
        let requested = entries.iter().filter(|entry| entry.has_request());
        let requests = requested.filter_map(|entry| entry.limit_request().ok());
        Box::new(ChargeResult {
            reporter,
            reservation: Reservation::from_requests(limiter, requests, allowed),
            costs: entries.each_ref().map(AnnotationEntry::requested_cost),
        })
    });
    Ok(ChargeGuard { _held: held, paid })
}

impl<const N: usize> ChargeGuard<N> {
    /// Refunds the limits that do not count, each within its policy's deadline; with Redis, also if
    /// the future is dropped. A concurrency permit that was already released is not released twice.
    /// Failures are logged and not returned to the caller.
    ///
    /// # Cancel safety
    ///
    /// As [`Reservation::settle`].
    pub async fn settle(self, counts: [bool; N]) {
        let Some(paid) = self.paid.filter(|_| counts.contains(&false)) else {
            return;
        };
        // Boxed, because the future is large.
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
