//! What a handler says that a request came to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a request has spent, in permits: tokens of a model, rows, pages. The handler puts it into
/// the response's extensions and keeps a clone, to which it adds while it sends the body; a layer
/// that was told so ([`settle_by_reported_cost`](crate::RateLimitLayer::settle))
/// charges the sum when the body has ended.
///
/// ```
/// use limiter_tower::settlement::ReportedCost;
///
/// let spent = ReportedCost::new(12);
/// let in_the_stream = spent.clone();
/// in_the_stream.add(30);
/// assert_eq!(spent.total(), 42);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReportedCost(Arc<AtomicU64>);

impl ReportedCost {
    /// Begins with so many permits.
    #[must_use]
    pub fn new(permits: u64) -> Self {
        Self(Arc::new(AtomicU64::new(permits)))
    }

    /// Adds so many permits, up to `u64::MAX` in total.
    pub fn add(&self, permits: u64) {
        let add = |spent: u64| Some(spent.saturating_add(permits));
        // It always says `Some`.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The permits so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
