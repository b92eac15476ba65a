//! Detached permits in Redis: acquisition, renewal and release by an id that a client holds.
//!
//! The digest of the id takes the place of process and number in `lua/concurrency.lua`, so each
//! node can renew or release the permit. No task renews it: it expires with its lease. If Redis
//! makes no decision, the failure mode of the policy applies, as for other permits.
//!
//! Invariant: a permit that Redis may have admitted for a cancelled or unanswered call is released
//! in the background, or expires. Tests: `tests/detached.rs`, `tests/contract/detached.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::backend::redis_permits::decision_from_occupancy;
use crate::decision::Rejection;
use crate::detachment::id::{DetachedId, StoredId};
use crate::error::StoreError;
use crate::memory::permit_table::PermitTerms;
use crate::observe;
use crate::permits::permit::{ConcurrencyPermit, PermitBacking, into_permit};
use crate::permits::request::ConcurrencyRequest;
use crate::redis::RedisBackend;
use crate::redis::permit_leases::PermitLeases;
use crate::redis::permit_leases::store::{ACQUIRE, EXTEND, PermitId, RETURN};
use crate::support::real_time::with_deadline;
use crate::units::Timestamp;

/// A detached permit that Redis may have admitted. Dropping it releases the permit in the
/// background.
struct UncertainPermit {
    leases: Arc<PermitLeases>,
    key: Arc<str>,
    /// `None` once the answer of Redis is known.
    permit: Option<([u8; 8], PermitId)>,
    deadline: Duration,
    /// The runtime of the call. The drop may happen outside of it.
    runtime: Handle,
}

impl Drop for UncertainPermit {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        let (leases, key, deadline) = (Arc::clone(&self.leases), Arc::clone(&self.key), self.deadline);
        self.runtime.spawn(async move {
            let store = leases.register();
            // A failure leaves the permit until its lease ends.
            let _ = with_deadline(deadline, store.query_detached(RETURN, &key, permit, deadline)).await;
        });
    }
}

/// Returns the id of a permit in the layout of `lua/concurrency.lua`.
fn members(stored: StoredId, terms: PermitTerms) -> ([u8; 8], PermitId) {
    let number = u128::from_le_bytes(stored);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the digest")]
    let (process, number) = ((number as u64).to_le_bytes(), (number >> 64) as u64);
    (process, PermitId { number, terms })
}

fn terms_of(id: &DetachedId) -> PermitTerms {
    PermitTerms {
        cost: id.cost.into(),
        // Neither a renewal nor a release depends on the maximum.
        max: u64::MAX,
        lease_ms: id.lease_ms,
    }
}

impl RedisBackend {
    /// Requests a permit that is held under a detached id.
    pub(crate) async fn acquire_detached(
        &self,
        concurrency: &ConcurrencyRequest<'_>,
        id: StoredId,
        deadline: Duration,
    ) -> Result<ConcurrencyPermit, Rejection> {
        let (request, terms) = (concurrency.decision_request(), concurrency.terms());
        let started = Instant::now();
        let store = self.permit_leases.register();
        let key: Arc<str> = store.key(concurrency.limit()).into();
        let permit = members(id, terms);
        let mut uncertain = UncertainPermit {
            leases: Arc::clone(&self.permit_leases),
            key: Arc::clone(&key),
            permit: Some(permit),
            deadline,
            runtime: Handle::current(),
        };
        let entered = with_deadline(deadline, store.query_detached(ACQUIRE, &key, permit, deadline)).await;
        match entered {
            Ok((occupancy, flag)) => {
                uncertain.permit = None;
                self.record_entry(request, started);
                let occupancy = if flag == 1 { Ok(occupancy) } else { Err(occupancy) };
                let decision = decision_from_occupancy(request, terms, occupancy);
                into_permit(decision, PermitBacking::Detached)
            }
            Err(error) => {
                if !error.may_have_been_charged() {
                    uncertain.permit = None;
                }
                drop(uncertain);
                let (decision, held) = self.enter_without_redis(concurrency, error, started)?;
                into_permit(
                    decision,
                    held.map_or(PermitBacking::Nothing, PermitBacking::Leased),
                )
            }
        }
    }

    /// Renews a detached permit: when it expires, or `None` if it is not held.
    pub(crate) async fn renew_detached(
        &self,
        concurrency: &ConcurrencyRequest<'_>,
        id: &DetachedId,
        stored: StoredId,
    ) -> Result<Option<Timestamp>, StoreError> {
        let (decided_at, renewed) = self.change_detached(EXTEND, concurrency, id, stored).await?;
        let lease = Duration::from_millis(id.lease_ms.into());
        Ok(renewed.then(|| decided_at.after(lease)))
    }

    /// Releases a detached permit: whether it was held.
    pub(crate) async fn release_detached(
        &self,
        concurrency: &ConcurrencyRequest<'_>,
        id: &DetachedId,
        stored: StoredId,
    ) -> Result<bool, StoreError> {
        let (_, released) = self.change_detached(RETURN, concurrency, id, stored).await?;
        // The first waiter of this process repeats its call to Redis.
        self.permit_table().notify_first(concurrency.limit().identity);
        Ok(released)
    }

    async fn change_detached(
        &self,
        operation: u8,
        concurrency: &ConcurrencyRequest<'_>,
        id: &DetachedId,
        stored: StoredId,
    ) -> Result<(Timestamp, bool), StoreError> {
        let deadline = concurrency.decision_request().deadline();
        let store = self.permit_leases.register();
        let key = store.key(concurrency.limit());
        let permit = members(stored, terms_of(id));
        let answer = with_deadline(deadline, store.query_detached(operation, &key, permit, deadline)).await;
        let (occupancy, flag) = answer.inspect_err(|error| observe::store_failed(error.kind()))?;
        Ok((occupancy.decided_at, flag == 1))
    }
}
