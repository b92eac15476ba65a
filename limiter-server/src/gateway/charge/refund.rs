//! Refunds the sets that were charged before a later set denied.

use limiter_core::{Decision, Reservation};

/// The sets of a request that were charged. They are refunded when this is dropped before
/// [`keep`](ChargedSets::keep), because a later decision failed or the request was abandoned.
///
/// Each set is a reservation, and its cancellation refunds the usage at the time of the charge: a
/// plain refund after the end of a fixed window would remove usage of the next window.
#[derive(Debug, Default)]
pub(crate) struct ChargedSets(Vec<Reservation>);

impl ChargedSets {
    /// Records an allowed set.
    pub(crate) fn add(&mut self, reservation: Reservation) {
        self.0.push(reservation);
    }

    /// Refunds the charged limits and waits until that is done.
    pub(crate) async fn refund(&mut self) {
        if let Some(refunding) = self.start_refund() {
            // The task goes on if the request is abandoned.
            let _ = refunding.await;
        }
    }

    /// Leaves the limits charged, and returns the decisions in the order of the sets.
    pub(crate) fn keep(mut self) -> Vec<Decision> {
        let charged = std::mem::take(&mut self.0);
        charged
            .iter()
            .map(|reservation| reservation.decision().clone())
            .collect()
    }

    fn start_refund(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        let charged = std::mem::take(&mut self.0);
        if charged.is_empty() {
            return None;
        }
        Some(tokio::spawn(async move {
            for reservation in charged {
                if let Err(error) = reservation.cancel().await {
                    metrics::counter!("limiter_server_failed_refunds_total").increment(1);
                    tracing::warn!(error = %error.diagnostic(), "refund failed");
                }
            }
        }))
    }
}

impl Drop for ChargedSets {
    fn drop(&mut self) {
        self.start_refund();
    }
}
