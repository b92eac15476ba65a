//! Detached reservations in Redis; the layout is documented in `lua/reservation.lua`.
//!
//! Any node may settle a reservation, so Redis keeps its charges under the digest of its id until
//! they expire. A settlement first claims the record: the script marks it as settled and returns
//! the charges, and the caller then changes the limits.
//!
//! Invariant: one caller at most claims a record. Tests: `tests/detached.rs`,
//! `tests/contract/detached.rs`; `tests/frozen/redis.rs` (layout).

use std::time::Duration;

use bb8_redis::redis::Value;

use crate::detachment::id::StoredId;
use crate::detachment::record::{ReservationClaim, ReservationRecord};
use crate::error::StoreError;
use crate::key::Namespace;
use crate::redis::Route;
use crate::redis::script::reply::{self, Reader, malformed};
use crate::redis::script::{Call, RESERVATION, wire};
use crate::support::clock::Clock;
use crate::support::real_time::with_deadline;
use crate::units::{Timestamp, micros_ceil};

const STORE: u8 = 0;
const CLAIM: u8 = 1;

const ABSENT: u8 = 0;
const UNSETTLED: u8 = 1;
const SETTLED: u8 = 2;

/// The detached reservations of a namespace.
#[derive(Debug)]
pub(crate) struct ReservationStore<'a> {
    route: &'a Route,
    clock: &'a Clock,
    namespace: &'a Namespace,
}

impl<'a> ReservationStore<'a> {
    pub(super) fn new(route: &'a Route, clock: &'a Clock, namespace: &'a Namespace) -> Self {
        Self {
            route,
            clock,
            namespace,
        }
    }

    /// Keeps a reservation: the time by the store's clock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the reservation is kept.
    pub(crate) async fn store(
        &self,
        id: StoredId,
        record: &ReservationRecord,
        lifetime: Duration,
        deadline: Duration,
    ) -> Result<Timestamp, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(STORE);
        plan.extend_from_slice(&micros_ceil(lifetime).to_le_bytes());
        plan.extend_from_slice(&record.to_bytes());
        let bytes = self.run(id, plan, deadline).await?;
        let mut reader = Reader(&bytes);
        let now = Timestamp::from_micros(reader.timestamp()?);
        match reader.array()? {
            [UNSETTLED] => Ok(now),
            _ => Err(malformed()),
        }
    }

    /// Marks a reservation as settled and returns its record.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the reservation is marked.
    pub(crate) async fn claim(
        &self,
        id: StoredId,
        deadline: Duration,
    ) -> Result<ReservationClaim, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(CLAIM);
        let bytes = self.run(id, plan, deadline).await?;
        let mut reader = Reader(&bytes);
        reader.timestamp()?;
        match reader.array()? {
            [ABSENT] => Ok(ReservationClaim::Absent),
            [SETTLED] => Ok(ReservationClaim::Settled),
            [UNSETTLED] => match ReservationRecord::from_bytes(reader.0) {
                Some(record) => Ok(ReservationClaim::Claimed(record)),
                None => Err(reply::unreadable_as(reply::UNKNOWN_LAYOUT)?),
            },
            _ => Err(reply::unreadable_as(reply::UNKNOWN_LAYOUT)?),
        }
    }

    async fn run(&self, id: StoredId, plan: Vec<u8>, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        let key = self.namespace.reservation_key(id);
        let call = Call::new(&RESERVATION, [key], plan, deadline);
        match with_deadline(deadline, self.route.run(&call)).await? {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(malformed()),
        }
    }
}
