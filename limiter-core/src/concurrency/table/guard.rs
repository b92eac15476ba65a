//! Permits that are counted, for as long as they are.

use std::sync::Arc;

use crate::concurrency::table::{PermitPayload, PermitTable, PermitTerms};
use crate::identity::Identity;

/// Permits that are counted. Dropping it counts them down, or hands them on.
#[derive(Debug)]
pub(crate) struct PermitGuard<C: PermitPayload> {
    holders: Arc<PermitTable<C>>,
    identity: Identity,
    terms: PermitTerms,
    /// `None` only in `drop`.
    carried: Option<C>,
}

impl<C: PermitPayload> PermitGuard<C> {
    pub(crate) fn new(
        holders: &Arc<PermitTable<C>>,
        identity: Identity,
        terms: PermitTerms,
        carried: C,
    ) -> Self {
        Self {
            holders: Arc::clone(holders),
            identity,
            terms,
            carried: Some(carried),
        }
    }

    /// Counts it down, or hands it on; what travels along comes back if nobody takes it.
    #[cfg(feature = "redis")]
    pub(crate) fn release(mut self) -> Option<C> {
        let carried = self.carried.take()?;
        self.holders.release(self.identity, &self.terms, carried)
    }

    /// What travels along.
    #[cfg(feature = "redis")]
    pub(crate) fn carried(&self) -> Option<&C> {
        self.carried.as_ref()
    }

    /// Under which it is held.
    #[cfg(feature = "redis")]
    pub(crate) fn terms(&self) -> &PermitTerms {
        &self.terms
    }
}

impl<C: PermitPayload> Drop for PermitGuard<C> {
    fn drop(&mut self) {
        if let Some(carried) = self.carried.take() {
            drop(self.holders.release(self.identity, &self.terms, carried));
        }
    }
}
