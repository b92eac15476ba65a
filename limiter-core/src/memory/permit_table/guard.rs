//! Guard of counted permits.

use std::sync::Arc;

use crate::identity::Identity;
use crate::memory::permit_table::{PermitPayload, PermitTable, PermitTerms};

/// Counted permits. Dropping the guard counts them down or transfers them to a waiter.
#[derive(Debug)]
pub(crate) struct PermitGuard<C: PermitPayload> {
    holders: Arc<PermitTable<C>>,
    identity: Identity,
    terms: PermitTerms,
    /// `None` only in `drop`.
    payload: Option<C>,
}

impl<C: PermitPayload> PermitGuard<C> {
    pub(crate) fn new(
        holders: &Arc<PermitTable<C>>,
        identity: Identity,
        terms: PermitTerms,
        payload: C,
    ) -> Self {
        Self {
            holders: Arc::clone(holders),
            identity,
            terms,
            payload: Some(payload),
        }
    }

    /// Counts the permits down or transfers them; returns the payload if no waiter takes it.
    #[cfg(feature = "redis")]
    pub(crate) fn release(mut self) -> Option<C> {
        let payload = self.payload.take()?;
        self.holders.release(self.identity, &self.terms, payload)
    }

    /// Returns the payload.
    #[cfg(feature = "redis")]
    pub(crate) fn payload(&self) -> Option<&C> {
        self.payload.as_ref()
    }

    /// Returns the terms under which the permits are held.
    #[cfg(feature = "redis")]
    pub(crate) fn terms(&self) -> &PermitTerms {
        &self.terms
    }
}

impl<C: PermitPayload> Drop for PermitGuard<C> {
    fn drop(&mut self) {
        if let Some(payload) = self.payload.take() {
            drop(self.holders.release(self.identity, &self.terms, payload));
        }
    }
}
