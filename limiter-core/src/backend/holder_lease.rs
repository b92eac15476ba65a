//! The leases of named holders.

use std::time::Duration;

use crate::backend::Backend;
use crate::error::StoreError;
#[cfg(feature = "redis")]
use crate::observe;
#[cfg(feature = "redis")]
use crate::redis::RedisBackend;
use crate::request::{HolderRenewal, HolderReply, ValidatedLimit};
#[cfg(feature = "redis")]
use crate::support::real_time::with_deadline;

impl Backend {
    /// Reads the lease of a holder, or renews it, within a deadline.
    pub(crate) async fn holder_lease(
        &self,
        limit: &ValidatedLimit<'_>,
        holder: &str,
        renewal: Option<&HolderRenewal<'_>>,
        deadline: Duration,
    ) -> Result<HolderReply, StoreError> {
        match self {
            Self::Memory(memory) => memory.holder_lease(limit, holder, renewal),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => {
                let reply = redis.holder_lease(limit, holder, renewal, deadline).await;
                reply.inspect_err(|error| observe::store_failed(error.kind()))
            }
        }
    }
}

#[cfg(feature = "redis")]
impl RedisBackend {
    async fn holder_lease(
        &self,
        limit: &ValidatedLimit<'_>,
        holder: &str,
        renewal: Option<&HolderRenewal<'_>>,
        deadline: Duration,
    ) -> Result<HolderReply, StoreError> {
        let request = limit.clone().alone();
        // A renewal returns permits, which end known denials.
        let _invalidation = renewal.map(|_| self.denials.forget(&request));
        let mut in_force = None;
        if limit.policy.is_scaled() {
            in_force = with_deadline(deadline, self.inherit(&request)).await?;
        }
        let limit = in_force
            .as_ref()
            .and_then(|request| request.limits.first())
            .unwrap_or(limit);
        self.store().holder_lease(limit, holder, renewal, deadline).await
    }
}
