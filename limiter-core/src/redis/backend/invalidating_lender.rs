//! The lender of the token leases, which invalidates known denials of a limit whose tokens return.
//!
//! Tokens of a key without calls return under the policy of their lease. After a proportional
//! change, such a report would store the level with a time after the change, and the usage would
//! not be converted. The lender therefore converts the limit first.
//!
//! Tests: `tests/leases.rs` (`returned_tokens_admit_call_that_redis_denied`,
//! `idle_lease_returns_into_converted_level`).

use std::sync::Arc;

use crate::algorithm::LeaseRequest;
use crate::error::StoreError;
use crate::identity::Identity;
use crate::redis::compare_and_set::StateStore;
use crate::redis::converted_limits::ConvertedLimits;
use crate::redis::deny_cache::DenyCache;
use crate::redis::token_lease::leased_limit::{LeaseReply, LeasedLimit, RedisTokenLender};
use crate::redis::token_lease::lender::TokenLender;
use crate::request::ValidatedLimit;

/// Leases tokens from Redis. Invalidates a limit in the deny cache while its tokens return.
#[derive(Debug)]
pub(crate) struct InvalidatingLender {
    pub(super) lender: RedisTokenLender,
    pub(super) denials: Arc<DenyCache>,
    pub(super) converted: Arc<ConvertedLimits>,
}

impl InvalidatingLender {
    /// Converts the limit of a report after a proportional change. Returns the limit under the
    /// changed policy; `None` if the policy of the lease is in force.
    async fn changed_limit(&self, leased_limit: &LeasedLimit) -> Result<Option<LeasedLimit>, StoreError> {
        let RedisTokenLender {
            route,
            clock,
            namespace,
        } = &self.lender;
        let Some(policy) = self.converted.successor_of(&leased_limit.policy, clock.now()) else {
            return Ok(None);
        };
        let changed = LeasedLimit {
            policy,
            ..leased_limit.clone()
        };
        let Some(scaled) = changed.policy.scaled() else {
            return Ok(None);
        };
        let states = StateStore::new(route, clock, namespace);
        let is_converted = states.convert_stored(&changed, scaled).await?;
        Ok(is_converted.then_some(changed))
    }
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
        let is_report = lease_request.cost == 0 && lease_request.want == 0;
        let changed = match is_report {
            // Boxed, so that the future of other requests stays small.
            true => Box::pin(self.changed_limit(leased_limit)).await?,
            false => None,
        };
        let leased_limit = changed.as_ref().unwrap_or(leased_limit);
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
