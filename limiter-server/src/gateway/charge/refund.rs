//! Refunds the charges of a request that does not take effect.

use futures_util::future::join_all;
use limiter_core::{Decision, Limiter, Rejection, Reservation};

use crate::gateway::charge::RequestedLimit;

/// The charges of a request. They are refunded when this is dropped before
/// [`keep`](ChargedSets::keep), because a later decision failed or the request was abandoned.
///
/// Each set is a reservation, and its cancellation refunds the usage at the time of the charge: a
/// plain refund after the end of a fixed window would remove usage of the next window. A settlement
/// has no reservation, because it exceeds the capacity; its refund follows within the deadline of
/// the request.
#[derive(Debug, Default)]
pub(crate) struct ChargedSets {
    sets: Vec<Reservation>,
    settlements: Vec<(Limiter, RequestedLimit)>,
}

impl ChargedSets {
    /// Records an allowed set.
    pub(crate) fn add(&mut self, reservation: Reservation) {
        self.sets.push(reservation);
    }

    /// Records a cost that was charged without a condition.
    pub(crate) fn add_settlement(&mut self, limiter: &Limiter, limit: &RequestedLimit) {
        self.settlements.push((limiter.clone(), limit.clone()));
    }

    /// Refunds the charges and waits until that is done.
    pub(crate) async fn refund(&mut self) {
        if let Some(refunding) = self.start_refund() {
            // The task goes on if the request is abandoned.
            let _ = refunding.await;
        }
    }

    /// Leaves the limits charged, and returns the decisions in the order of the sets.
    pub(crate) fn keep(self) -> Vec<Decision> {
        let charged = self.into_reservations();
        charged
            .iter()
            .map(|reservation| reservation.decision().clone())
            .collect()
    }

    /// Leaves the limits charged, and returns the reservations in the order of the sets.
    pub(crate) fn into_reservations(mut self) -> Vec<Reservation> {
        self.settlements.clear();
        std::mem::take(&mut self.sets)
    }

    fn start_refund(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        let (sets, settlements) = (
            std::mem::take(&mut self.sets),
            std::mem::take(&mut self.settlements),
        );
        if sets.is_empty() && settlements.is_empty() {
            return None;
        }
        Some(tokio::spawn(async move {
            // Together, or the refunds of n sets would take n deadlines without the store.
            let sets = sets.into_iter().map(|reservation| async {
                report(reservation.cancel().await);
            });
            let settlements = settlements.iter().map(|(limiter, limit)| async move {
                report(limiter.refund(&limit.policy, &limit.key).cost(limit.cost).await);
            });
            tokio::join!(join_all(sets), join_all(settlements));
        }))
    }
}

impl FromIterator<Reservation> for ChargedSets {
    fn from_iter<I: IntoIterator<Item = Reservation>>(sets: I) -> Self {
        Self {
            sets: sets.into_iter().collect(),
            settlements: Vec::new(),
        }
    }
}

/// Counts and logs a refund that failed.
pub(crate) fn report<T>(refunded: Result<T, Rejection>) {
    if let Err(error) = refunded {
        metrics::counter!("limiter_server_failed_refunds_total").increment(1);
        tracing::warn!(error = %error.diagnostic(), "refund failed");
    }
}

impl Drop for ChargedSets {
    fn drop(&mut self) {
        self.start_refund();
    }
}
