//! From whom permits are borrowed: Redis, or the pure store of a test.

use std::fmt;

use crate::algorithm::LeaseRequest;
use crate::error::StoreError;
use crate::redis::{LeaseReply, LeasedLimit, RedisTokenLender};
use crate::request::RequestedLimit;

/// Lends permits of limits.
pub(crate) trait TokenLender: fmt::Debug + Send + Sync + 'static {
    /// What has to be known of a limit to borrow of it.
    fn account(&self, limit: &RequestedLimit<'_>) -> LeasedLimit;

    /// Asks for a loan.
    ///
    /// # Cancel safety
    ///
    /// As [`Lender::lend`].
    fn grant_lease(
        &self,
        account: &LeasedLimit,
        ask: &LeaseRequest,
    ) -> impl Future<Output = Result<LeaseReply, StoreError>> + Send;
}

impl TokenLender for RedisTokenLender {
    fn account(&self, limit: &RequestedLimit<'_>) -> LeasedLimit {
        self.account(limit)
    }

    async fn grant_lease(&self, account: &LeasedLimit, ask: &LeaseRequest) -> Result<LeaseReply, StoreError> {
        self.grant_lease(account, ask).await
    }
}
