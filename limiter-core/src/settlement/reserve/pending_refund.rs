//! Announcement of a refund by settlement before its task runs.

use smallvec::SmallVec;

use crate::algorithm::UsageCorrection;
use crate::identity::Identity;
use crate::limiter::Limiter;
use crate::settlement::reserve::Reservation;

/// Limits with a pending refund in Redis; ends on drop.
pub(crate) struct PendingRefund {
    limiter: Limiter,
    limits: SmallVec<[Identity; 1]>,
    ticket: u64,
}

impl Reservation {
    /// Announces the limits whose actual cost is below the charge in Redis.
    pub(crate) fn announce_refund(&self, actuals: &[u64]) -> Option<PendingRefund> {
        if self.limiter.is_in_process() {
            return None;
        }
        let each = self.limits.iter().zip(actuals);
        let refunded = each.filter_map(|(reserved, actual)| {
            let (limit, change) = reserved.as_ref()?.settlement_change(*actual)?;
            matches!(change, UsageCorrection::Refund { .. }).then_some(limit.identity)
        });
        let limits: SmallVec<[Identity; 1]> = refunded.collect();
        if limits.is_empty() {
            return None;
        }
        Some(PendingRefund {
            ticket: self.limiter.inner.backend.start_refund(&limits)?,
            limiter: self.limiter.clone(),
            limits,
        })
    }
}

impl Drop for PendingRefund {
    fn drop(&mut self) {
        let backend = &self.limiter.inner.backend;
        backend.finish_refund(&self.limits, self.ticket);
    }
}
