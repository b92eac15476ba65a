//! A cost that the handler reports while it processes a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The actual cost of a request in permits, for example tokens of a language model, rows or pages.
///
/// The handler inserts it into the response's extensions and keeps a clone, to which it adds while
/// it sends the body. A layer with
/// [`ActualCost::reported`](crate::settlement::ActualCost::reported) charges the sum when the body
/// has ended.
///
/// ```
/// use limiter_tower::settlement::ReportedCost;
///
/// let cost = ReportedCost::new(12);
/// let in_the_stream = cost.clone();
/// in_the_stream.add(30);
/// assert_eq!(cost.total(), 42);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReportedCost(Arc<AtomicU64>);

impl ReportedCost {
    /// Creates a cost of this number of permits.
    #[must_use]
    pub fn new(permits: u64) -> Self {
        Self(Arc::new(AtomicU64::new(permits)))
    }

    /// Adds permits; the total saturates at `u64::MAX`.
    pub fn add(&self, permits: u64) {
        let add = |total: u64| Some(total.saturating_add(permits));
        // The closure always returns `Some`, so the update cannot fail.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Returns the sum of the permits.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
