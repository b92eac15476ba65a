//! From whom permits are borrowed: Redis, or the pure store of a test.

use std::fmt;

use crate::algorithm::Borrowing;
use crate::error::StoreError;
use crate::redis::{Account, Lender, Lending};
use crate::request::Limit;

/// Lends permits of limits.
pub(crate) trait Lends: fmt::Debug + Send + Sync + 'static {
    /// What has to be known of a limit to borrow of it.
    fn account(&self, limit: &Limit<'_>) -> Account;

    /// Asks for a loan.
    ///
    /// # Cancel safety
    ///
    /// As [`Lender::lend`].
    fn lend(
        &self,
        account: &Account,
        ask: &Borrowing,
    ) -> impl Future<Output = Result<Lending, StoreError>> + Send;
}

impl Lends for Lender {
    fn account(&self, limit: &Limit<'_>) -> Account {
        self.account(limit)
    }

    async fn lend(&self, account: &Account, ask: &Borrowing) -> Result<Lending, StoreError> {
        self.lend(account, ask).await
    }
}
