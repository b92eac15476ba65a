//! A grant whose caller may be cancelled before using it.

use smallvec::smallvec;
use tokio::runtime::Handle;

use crate::decision::{Allowed, Decision};
use crate::settlement::Reservation;

/// A grant that is refunded unless it is taken: at once in process, in the background with Redis.
#[derive(Debug)]
pub(crate) struct PendingGrant {
    /// `None` after the grant was taken.
    grant: Option<Reservation>,
    /// The runtime of the grant, which executes the refund; the drop may happen outside of it.
    runtime: Option<Handle>,
}

impl PendingGrant {
    pub(crate) fn new(grant: Reservation) -> Self {
        Self {
            grant: Some(grant),
            runtime: Handle::try_current().ok(),
        }
    }

    /// Returns the decision of the grant. `None` if it was taken.
    pub(crate) fn decision(&self) -> Option<Decision> {
        self.grant.as_ref().map(|grant| grant.decision().clone())
    }

    /// Takes the grant. `None` if it was taken before.
    pub(crate) fn take(&mut self) -> Option<Allowed> {
        self.grant.take().map(Reservation::into_allowed)
    }
}

impl Drop for PendingGrant {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            let nothing = smallvec![crate::units::Amount::ZERO; grant.len()];
            // The caller is gone, so no code needs the result.
            let _ = grant.settle_in_background(self.runtime.as_ref(), nothing, |_, _| ());
        }
    }
}
