//! What was granted to somebody who may go away before using it.

use smallvec::smallvec;
use tokio::runtime::Handle;

use crate::decision::Allowed;
use crate::settlement::Reservation;

/// A grant that is given back when nobody takes it: in process at once, with Redis in the
/// background.
#[derive(Debug)]
pub(crate) struct PendingGrant {
    /// `None` once it is taken.
    grant: Option<Reservation>,
    /// In which it was granted, if that is one that can give it back: it may be dropped elsewhere.
    runtime: Option<Handle>,
}

impl PendingGrant {
    pub(crate) fn new(grant: Reservation) -> Self {
        Self {
            grant: Some(grant),
            runtime: Handle::try_current().ok(),
        }
    }

    /// The grant, for good. There is one unless it was taken before.
    pub(crate) fn take(&mut self) -> Option<Allowed> {
        self.grant.take().map(Reservation::into_allowed)
    }
}

impl Drop for PendingGrant {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            let nothing = smallvec![crate::units::Amount::ZERO; grant.len()];
            // Whether or not it was heard, nobody is there to be told.
            let _ = grant.settle_in(self.runtime.as_ref(), nothing, |_, _| ());
        }
    }
}
