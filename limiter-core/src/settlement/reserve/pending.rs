//! Announcement of a refund by settlement before its task runs.

use smallvec::SmallVec;

use crate::algorithm::Change;
use crate::identity::Identity;
use crate::limiter::{Backend, Limiter};
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
        let Backend::Redis(redis) = &self.limiter.inner.backend else {
            return None;
        };
        let each = self.limits.iter().zip(actuals);
        let refunded = each.filter_map(|(reserved, actual)| {
            let (limit, change) = reserved.as_ref()?.settlement_change(*actual)?;
            matches!(change, Change::Refund { .. }).then_some(limit.identity)
        });
        let limits: SmallVec<[Identity; 1]> = refunded.collect();
        (!limits.is_empty()).then(|| PendingRefund {
            ticket: redis.start_refund(&limits),
            limiter: self.limiter.clone(),
            limits,
        })
    }
}

impl Drop for PendingRefund {
    fn drop(&mut self) {
        if let Backend::Redis(redis) = &self.limiter.inner.backend {
            redis.finish_refund(&self.limits, self.ticket);
        }
    }
}
