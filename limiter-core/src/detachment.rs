//! Ids of permits and reservations that a client holds instead of a guard of this process.
//!
//! An id contains 128 random bits. The store contains a digest of these bits, the other fields and
//! the scope. An id is therefore useless in another scope or with changed fields, and the store
//! does not reveal ids. Ids without a store refer to a bounded table of this process.

pub(crate) mod id;
pub(crate) mod record;
pub(crate) mod table;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokio::task::AbortHandle;

use crate::detachment::id::{DetachedId, IdBacking};
use crate::detachment::record::ReservationRecord;
use crate::detachment::table::ExpiringTable;
use crate::error::{ConfigError, StoreError};
use crate::identity::Identity;

/// The detached permits and reservations of one limiter whose state is in this process.
#[derive(Debug)]
pub(crate) struct DetachedTables {
    /// Distinguishes this limiter from others; set when the first id is created.
    node: std::sync::OnceLock<u64>,
    pub(crate) permits: Arc<ExpiringTable<DetachedHold>>,
    /// `None` after the settlement, until the reservation expires.
    pub(crate) reservations: ExpiringTable<Option<ReservationRecord>>,
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
