//! The leases of named holders in this process.
//!
//! A table contains the record of each holder, with an epoch. A renewal under the recorded epoch
//! ends the recorded lease and starts the next one on the level of the limit
//! (`algorithm/leased_level/holder.rs`). A renewal under another epoch changes nothing and returns
//! the record, so a repeated report is counted once.
//!
//! Invariant: the number of records is bounded; a full table drops only leases that have ended.
//! Tests: `tests/holder_leases.rs`, which also compares the leases with those of Redis.

use std::collections::HashMap;

use crate::algorithm::{self, HolderGrant, HolderReport, StepState};
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::memory::{CapacityExceeded, MemoryStore};
use crate::request::{HolderLease, HolderRenewal, HolderReply, ValidatedLimit};
use crate::support::sync::Mutex;
use crate::units::Timestamp;

/// The maximum number of leases.
const MAX_LEASES: usize = 100_000;

/// The leases by limit and holder.
#[derive(Debug, Default)]
pub(crate) struct HolderTable {
    records: Mutex<HashMap<(Identity, Box<str>), HolderRecord>>,
}

#[derive(Debug)]
struct HolderRecord {
    lease: HolderLease,
    grant: HolderGrant,
}

impl MemoryStore {
    /// Reads the lease of a holder, or renews it.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Full`] if the table of states or of leases is full.
    pub(crate) fn holder_lease(
        &self,
        table: &HolderTable,
        limit: &ValidatedLimit<'_>,
        holder: &str,
        renewal: Option<&HolderRenewal<'_>>,
    ) -> Result<HolderReply, StoreError> {
        let mut records = table.records.lock();
        let now = self.clock.now();
        let place = (limit.identity, Box::from(holder));
        let recorded = records.get(&place).filter(|record| record.lease.ends_at > now);
        let (lease, recorded) =
            recorded.map_or_else(Default::default, |record| (record.lease.clone(), record.grant));
        let Some(renewal) = renewal.filter(|renewal| renewal.epoch == lease.epoch) else {
            return Ok(HolderReply {
                is_renewed: false,
                now,
                lease,
            });
        };
        if records.len() >= MAX_LEASES && !records.contains_key(&place) {
            records.retain(|_, record| record.lease.ends_at > now);
            if records.len() >= MAX_LEASES {
                let detail = format!("{MAX_LEASES} leases are held in this process");
                return Err(StoreError::new(StoreErrorKind::Full, detail));
            }
        }
        let report = HolderReport {
            recorded,
            spent: renewal.spent,
            steady: renewal.steady,
            held: renewal.held,
            wanted: renewal.wanted,
            lifetime: renewal.lifetime,
        };
        let (now, grant) = self.or_make_room(&[], || self.renew_holder(limit, &report))?;
        let lease = HolderLease {
            epoch: match lease.epoch {
                0 => now.as_micros().max(1),
                epoch => epoch + 1,
            },
            leased: grant.leased,
            ends_at: Timestamp::from_micros(now.as_micros().saturating_add(renewal.lifetime)),
            data: renewal.data.into(),
        };
        let record = HolderRecord {
            lease: lease.clone(),
            grant,
        };
        records.insert(place, record);
        Ok(HolderReply {
            is_renewed: true,
            now,
            lease,
        })
    }

    fn renew_holder(
        &self,
        limit: &ValidatedLimit<'_>,
        report: &HolderReport,
    ) -> Result<(Timestamp, HolderGrant), CapacityExceeded> {
        let algorithm = limit.policy.algorithm();
        let before = self.clock.reading();
        let mut table = self.lock(limit.identity);
        let decided_at = self.clock.in_order(before, table.decided_at);
        table.decided_at = decided_at;
        let now = decided_at.as_micros();
        let mut absent = StepState::Absent;
        let (state, is_new) = match table.find(limit.identity) {
            Some(state) => (state, false),
            None => (&mut absent, true),
        };
        let grant = algorithm::renew_holder(algorithm, state, report, now);
        if is_new && !matches!(absent, StepState::Absent) {
            self.reserve(1).ok_or(CapacityExceeded { now, needed: 1 })?;
            table.insert(limit.identity, absent);
        }
        Ok((decided_at, grant))
    }
}
