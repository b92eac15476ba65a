//! Measures the cost of a body, and settles it when the body has ended or is dropped.

use limiter_core::Amount;

use super::{PendingCharge, ReportedCost};

/// Counts bytes or units, and settles the charge when it is dropped.
#[derive(Debug)]
pub(crate) struct Meter {
    /// `None` once it is settled.
    charge: Option<Box<PendingCharge>>,
    count: Count,
}

#[derive(Debug)]
enum Count {
    Bytes(u64),
    ReportedCost(ReportedCost),
}

impl Meter {
    pub(super) fn of_bytes(charge: PendingCharge) -> Self {
        Self::new(charge, Count::Bytes(0))
    }

    pub(super) fn of_spent(charge: PendingCharge, spent: ReportedCost) -> Self {
        Self::new(charge, Count::ReportedCost(spent))
    }

    fn new(charge: PendingCharge, count: Count) -> Self {
        Self {
            charge: Some(Box::new(charge)),
            count,
        }
    }

    /// Records bytes that were passed on.
    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        if let Count::Bytes(passed) = &mut self.count {
            *passed = passed.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// Charges the measured amount after the end of the body.
    pub(crate) fn end(&mut self) {
        if let Some(charge) = self.charge.take() {
            let total = match &self.count {
                Count::Bytes(passed) => *passed,
                Count::ReportedCost(spent) => spent.total(),
            };
            // The head was sent before.
            drop(charge.settle(Ok(Amount::from(total))));
        }
    }
}

/// A client that does not read to the end is charged for the bytes that were sent.
impl Drop for Meter {
    fn drop(&mut self) {
        self.end();
    }
}
