//! The source of token leases: Redis, or the model store of a test.

use std::fmt;

use crate::algorithm::LeaseRequest;
use crate::error::StoreError;
use crate::redis::token_lease::leased_limit::{LeaseReply, LeasedLimit, RedisTokenLender};
use crate::request::ValidatedLimit;

/// Grants leases of limits.
pub(crate) trait TokenLender: fmt::Debug + Send + Sync + 'static {
    /// Returns the data of a limit that a lease needs.
    fn leased_limit(&self, limit: &ValidatedLimit<'_>) -> LeasedLimit;

    /// Requests a lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether something was leased or charged.
    fn grant_lease(
        &self,
        leased_limit: &LeasedLimit,
        lease_request: &LeaseRequest,
    ) -> impl Future<Output = Result<LeaseReply, StoreError>> + Send;
}

impl TokenLender for RedisTokenLender {
    fn leased_limit(&self, limit: &ValidatedLimit<'_>) -> LeasedLimit {
        self.leased_limit(limit)
    }

    async fn grant_lease(
        &self,
        leased_limit: &LeasedLimit,
        lease_request: &LeaseRequest,
    ) -> Result<LeaseReply, StoreError> {
        self.grant_lease(leased_limit, lease_request).await
    }
}
