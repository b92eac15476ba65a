//! What a store is: the place where state lives and decisions are atomic.

use crate::algorithm::Change;
use crate::error::StoreError;
pub(crate) use crate::memory::MemoryStore;
use crate::request::{DecisionRequest, RequestedLimit, Verdict};

/// Where state lives. A request is decided at one moment of the store's clock, and charged whole or
/// not at all.
pub(crate) trait Store: Send + Sync {
    /// Decides a request.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the request was charged; it is never charged
    /// twice.
    fn decide(
        &self,
        request: &DecisionRequest<'_>,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Gives back what a limit costs, as far as it was used, or charges it whatever is left; and
    /// says how it stands then.
    ///
    /// # Cancel safety
    ///
    /// As [`decide`](Self::decide).
    fn change(
        &self,
        limit: &RequestedLimit<'_>,
        change: Change,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Forgets the state of every limit of the request.
    fn reset(&self, request: &DecisionRequest<'_>) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Prepares the store for traffic: dials every node, loads what is to be loaded.
    fn ready(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}
