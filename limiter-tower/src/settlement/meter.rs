//! What a body comes to, settled when it has ended, or is dropped.

use limiter_core::Amount;

use super::{PendingCharge, ReportedCost};

/// Counts what passes, and settles when it is dropped.
#[derive(Debug)]
pub(crate) struct Meter {
    /// `None` once it is settled.
    owed: Option<Box<PendingCharge>>,
    count: Count,
}

#[derive(Debug)]
enum Count {
    Bytes(u64),
    ReportedCost(ReportedCost),
}

impl Meter {
    pub(super) fn of_bytes(owed: PendingCharge) -> Self {
        Self::new(owed, Count::Bytes(0))
    }

    pub(super) fn of_spent(owed: PendingCharge, spent: ReportedCost) -> Self {
        Self::new(owed, Count::ReportedCost(spent))
    }

    fn new(owed: PendingCharge, count: Count) -> Self {
        Self {
            owed: Some(Box::new(owed)),
            count,
        }
    }

    /// So many bytes were handed on.
    pub(crate) fn passed(&mut self, bytes: usize) {
        if let Count::Bytes(passed) = &mut self.count {
            *passed = passed.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// The body has ended.
    pub(crate) fn end(&mut self) {
        if let Some(owed) = self.owed.take() {
            let total = match &self.count {
                Count::Bytes(passed) => *passed,
                Count::ReportedCost(spent) => spent.total(),
            };
            // The head went out long ago.
            drop(owed.settle(Ok(Amount::from(total))));
        }
    }
}

/// Whoever does not read to the end pays for what was sent.
impl Drop for Meter {
    fn drop(&mut self) {
        self.end();
    }
}
