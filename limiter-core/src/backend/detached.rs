//! Detached permits and reservations, which a client holds by an id.
//!
//! With Redis, the store keeps their state, so that each node can renew, release or settle them. In
//! process, the limiter keeps them in its own tables: the operations on the store reject an id of
//! another node, and the next acquisition releases expired permits. Permits of the local fallback
//! are in a table too, and a task releases them.
//!
//! Tests: `tests/contract/detached.rs`, `tests/detached.rs`.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::backend::Backend;
use crate::decision::Rejection;
use crate::detachment::DetachedHold;
use crate::detachment::id::{DetachedId, StoredId};
#[cfg(feature = "redis")]
use crate::detachment::record::ReservationClaim;
use crate::detachment::record::ReservationRecord;
use crate::detachment::table::ExpiringTable;
use crate::error::StoreError;
use crate::identity::Identity;
#[cfg(feature = "redis")]
use crate::observe;
use crate::permits::permit::ConcurrencyPermit;
use crate::permits::request::ConcurrencyRequest;
use crate::units::Timestamp;

impl Backend {
    /// Acquires concurrency permits that are held under a detached id, within a deadline. In
    /// process the id refers to a table of the limiter.
    pub(crate) async fn acquire_detached(
        &self,
        request: &ConcurrencyRequest<'_>,
        id: StoredId,
        deadline: Duration,
    ) -> Result<ConcurrencyPermit, Rejection> {
        match self {
            Self::Memory(memory) => memory.acquire(request),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => Box::pin(redis.acquire_detached(request, id, deadline)).await,
        }
    }

    /// Renews a detached permit that the store keeps. Returns when it expires, or `None` if it is
    /// not held.
    ///
    /// # Errors
    ///
    /// In process every id is rejected, since only Redis keeps detached permits.
    pub(crate) async fn renew_detached(
        &self,
        request: &ConcurrencyRequest<'_>,
        id: &DetachedId,
        stored: StoredId,
    ) -> Result<Option<Timestamp>, Rejection> {
        match self {
            Self::Memory(_) => Err(id.of_another_node().into()),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => Ok(Box::pin(redis.renew_detached(request, id, stored)).await?),
        }
    }

    /// Releases a detached permit that the store keeps. Returns whether it was held.
    ///
    /// # Errors
    ///
    /// In process every id is rejected, since only Redis keeps detached permits.
    pub(crate) async fn release_detached(
        &self,
        request: &ConcurrencyRequest<'_>,
        id: &DetachedId,
        stored: StoredId,
    ) -> Result<bool, Rejection> {
        match self {
            Self::Memory(_) => Err(id.of_another_node().into()),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => Ok(Box::pin(redis.release_detached(request, id, stored)).await?),
        }
    }

    /// Returns the table of detached permits that this process keeps.
    pub(crate) fn detached_permits(&self) -> Arc<ExpiringTable<DetachedHold>> {
        match self {
            Self::Memory(memory) => Arc::clone(memory.detached_permits()),
            #[cfg(feature = "redis")]
            Self::Redis(_) => Arc::new(ExpiringTable::new()),
        }
    }

    /// Releases a detached permit of this process when it expires: `expire` waits for that, in the
    /// returned task. In process the next acquisition releases it instead, so that no task is
    /// needed.
    pub(crate) fn schedule_expiry(
        &self,
        identity: Identity,
        expire: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        match self {
            Self::Memory(memory) => {
                drop(expire);
                // The first waiter may now wait for this permit to expire.
                memory.notify_first(identity);
                None
            }
            #[cfg(feature = "redis")]
            Self::Redis(_) => Some(tokio::spawn(expire).abort_handle()),
        }
    }

    /// Stores the record of a detached reservation. Returns the time of the store, or `None` in
    /// process.
    pub(crate) async fn store_reservation(
        &self,
        id: StoredId,
        record: &ReservationRecord,
        lifetime: Duration,
        deadline: Duration,
    ) -> Result<Option<Timestamp>, StoreError> {
        match self {
            Self::Memory(_) => Ok(None),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => {
                let kept = redis.store().reservations();
                let kept = kept.store(id, record, lifetime, deadline).await;
                kept.map(Some)
                    .inspect_err(|error| observe::store_failed(error.kind()))
            }
        }
    }

    /// Claims the record of a detached reservation for its settlement.
    #[cfg(feature = "redis")]
    pub(crate) async fn claim_reservation(
        &self,
        id: StoredId,
        deadline: Duration,
    ) -> Result<ReservationClaim, StoreError> {
        match self {
            Self::Memory(_) => Ok(ReservationClaim::Absent),
            Self::Redis(redis) => {
                let claim = redis.store().reservations().claim(id, deadline).await;
                claim.inspect_err(|error| observe::store_failed(error.kind()))
            }
        }
    }
}
