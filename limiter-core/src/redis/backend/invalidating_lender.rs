//! The lender of the token leases, which invalidates known denials of a limit whose tokens return.
//!
//! Tests: `tests/leases.rs` (`returned_tokens_admit_call_that_redis_denied`).

use std::sync::Arc;

use crate::algorithm::LeaseRequest;
use crate::error::StoreError;
use crate::identity::Identity;
use crate::redis::deny_cache::DenyCache;
use crate::redis::token_lease::leased_limit::{LeaseReply, LeasedLimit, RedisTokenLender};
use crate::redis::token_lease::lender::TokenLender;
use crate::request::ValidatedLimit;

/// Leases tokens from Redis. Invalidates a limit in the deny cache while its tokens return.
#[derive(Debug)]
pub(crate) struct InvalidatingLender {
    pub(super) lender: RedisTokenLender,
    pub(super) denials: Arc<DenyCache>,
}

impl TokenLender for InvalidatingLender {
    fn leased_limit(&self, limit: &ValidatedLimit<'_>) -> LeasedLimit {
        self.lender.leased_limit(limit)
    }

    async fn grant_lease(
        &self,
        leased_limit: &LeasedLimit,
        lease_request: &LeaseRequest,
    ) -> Result<LeaseReply, StoreError> {
        let returns = lease_request.report.returned > 0;
        let _returning = returns.then(|| ReturningTokens::begin(&self.denials, leased_limit.identity));
        self.lender.grant_lease(leased_limit, lease_request).await
    }
}

/// Invalidates a limit in the deny cache until it is dropped.
struct ReturningTokens<'a> {
    denials: &'a DenyCache,
    limit: Identity,
}

impl<'a> ReturningTokens<'a> {
    fn begin(denials: &'a DenyCache, limit: Identity) -> Self {
        denials.begin_refund(&[limit]);
        Self { denials, limit }
    }
}

impl Drop for ReturningTokens<'_> {
    fn drop(&mut self) {
        self.denials.end_refund(&[self.limit]);
    }
}
