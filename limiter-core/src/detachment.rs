//! Ids of permits and reservations that a client holds instead of a guard of this process.
//!
//! An id contains 128 random bits. The store contains a digest of these bits, the other fields and
//! the scope. An id is therefore useless in another scope or with changed fields, and the store
//! does not reveal ids. Ids without a store refer to a bounded table of this process.
//! Tests: `detachment/table.rs`, `tests/contract/detached.rs`.

pub(crate) mod generations;
pub(crate) mod id;
pub(crate) mod record;
pub(crate) mod table;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokio::task::AbortHandle;

use crate::detachment::id::{DetachedId, IdBacking, StoredId};
use crate::detachment::record::{ReservationClaim, ReservationRecord};
use crate::detachment::table::ExpiringTable;
use crate::error::{ConfigError, StoreError};
use crate::identity::Identity;
use crate::units::Timestamp;

/// The detached permits and reservations of one limiter whose state is in this process.
#[derive(Debug)]
pub(crate) struct DetachedTables {
    /// Distinguishes this limiter from others; set when the first id is created.
    node: std::sync::OnceLock<u64>,
    pub(crate) permits: Arc<ExpiringTable<DetachedHold>>,
    reservations: ExpiringTable<ReservationRecord>,
    /// The reservations that were settled and have not expired, the last ones if there are many.
    settled: ExpiringTable<()>,
}

/// A permit that is released when this value is dropped.
pub(crate) struct DetachedHold {
    pub(crate) identity: Identity,
    pub(crate) _permit: Box<dyn Any + Send + Sync>,
    /// The task that waits for the expiry. It ends with the permit.
    pub(crate) expiry: Option<AbortHandle>,
}

impl Drop for DetachedHold {
    fn drop(&mut self) {
        if let Some(expiry) = &self.expiry {
            expiry.abort();
        }
    }
}

impl fmt::Debug for DetachedHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DetachedHold").field(&self.identity).finish()
    }
}

impl DetachedTables {
    pub(crate) fn new(permits: Arc<ExpiringTable<DetachedHold>>) -> Self {
        Self {
            node: std::sync::OnceLock::new(),
            permits,
            reservations: ExpiringTable::new(),
            settled: ExpiringTable::new(),
        }
    }

    /// Keeps the record of a reservation until it is claimed or expires.
    ///
    /// # Errors
    ///
    /// Too many reservations are kept.
    pub(crate) fn keep(
        &self,
        id: StoredId,
        record: ReservationRecord,
        expires_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        drop(self.reservations.take_expired(|| now));
        drop(self.settled.take_expired(|| now));
        self.reservations.insert(id, record, expires_at)
    }

    /// Claims a reservation, so that this call alone settles it.
    pub(crate) fn claim(&self, id: &StoredId, now: Timestamp) -> ReservationClaim {
        let expires_at = self.reservations.expiry(id);
        if let Some(expires_at) = expires_at.filter(|expires_at| now < *expires_at) {
            // Before the removal: a concurrent claim finds the record or this mark.
            self.settled.insert_in_place_of_first(*id, (), expires_at);
        }
        match self.reservations.remove(id, now) {
            Some(record) => ReservationClaim::Claimed(record),
            None if self.settled.with(id, now, |()| ()).is_some() => ReservationClaim::Settled,
            None => ReservationClaim::Absent,
        }
    }

    /// Rejects an id whose state is in the tables of another limiter.
    pub(crate) fn require_own(&self, id: &DetachedId) -> Result<(), ConfigError> {
        if id.backing == IdBacking::Node && self.node().ok() != Some(id.node) {
            return Err(id.of_another_node());
        }
        Ok(())
    }

    /// Returns the number of this limiter, for ids that are valid in this limiter only.
    pub(crate) fn node(&self) -> Result<u64, StoreError> {
        if let Some(node) = self.node.get() {
            return Ok(*node);
        }
        let random = id::random()?;
        let (low, _) = random.split_at(8);
        let node = low.iter().fold(0, |node, byte| node << 8 | u64::from(*byte));
        Ok(*self.node.get_or_init(|| node))
    }
}

#[cfg(test)]
mod tests {
    use crate::detachment::table::MAX_ENTRIES;
    use crate::detachment::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn id(number: usize) -> StoredId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        id
    }

    #[test]
    fn settled_reservations_leave_room_for_others() {
        let tables = DetachedTables::new(Arc::new(ExpiringTable::new()));
        let record = || ReservationRecord {
            in_share: false,
            decided_at: at(1),
            charges: Vec::new(),
        };
        let keep = |number| tables.keep(id(number), record(), at(10), at(1));
        for number in 0..=MAX_ENTRIES {
            assert!(keep(number).is_ok(), "{number} were settled");
            let claim = tables.claim(&id(number), at(1));
            assert!(matches!(claim, ReservationClaim::Claimed(_)));
            let repeated = tables.claim(&id(number), at(1));
            assert!(matches!(repeated, ReservationClaim::Settled));
        }
        // The mark of the first settlement was replaced; nothing is settled twice.
        assert!(matches!(tables.claim(&id(0), at(1)), ReservationClaim::Absent));
        assert!(matches!(tables.claim(&id(1), at(1)), ReservationClaim::Settled));
        assert!(matches!(tables.claim(&id(1), at(10)), ReservationClaim::Absent));
        for number in 0..MAX_ENTRIES {
            assert!(keep(number).is_ok());
        }
        assert!(keep(MAX_ENTRIES).is_err(), "unsettled reservations are bounded");
    }
}
