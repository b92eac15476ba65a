//! Client side of the concurrency script: requests and replies. `lua/concurrency.lua` documents the
//! layout.
//!
//! A permit is identified by a random id of the process and a number that is chosen before the
//! call, so that a permit can be released although the reply to its acquisition was lost. A call
//! names the permits of one key. A reset runs in several calls, each of which examines a bounded
//! number of permits.
//!
//! Tests: `tests/concurrency.rs`, `tests/concurrency/stored_leases.rs`; `tests/frozen/redis.rs`
//! (layout).

use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bb8_redis::redis::Value;

use crate::error::StoreError;
use crate::key::Namespace;
use crate::memory::permit_table::PermitTerms;
use crate::redis::script::reply::{Reader, malformed};
use crate::redis::script::{CONCURRENCY, Call, reply, wire};
use crate::redis::token_lease::leased_limit;
use crate::redis::{RedisStore, Route};
use crate::request::ValidatedLimit;
use crate::support::clock::Clock;
pub(crate) use crate::units::Timestamp;

pub(crate) const ACQUIRE: u8 = 0;
const RELEASE: u8 = 1;
const RENEW: u8 = 2;
const PEEK: u8 = 3;
const RESET: u8 = 4;
pub(crate) const EXTEND: u8 = 5;
pub(crate) const RETURN: u8 = 6;

/// First cursor of a reset, and the cursor that ends it.
const RESET_CURSOR: [u8; 12] = [0; 12];

/// Sends permit operations to Redis on behalf of this process.
#[derive(Debug)]
pub(crate) struct ConcurrencyStore {
    route: Route,
    clock: Clock,
    namespace: Namespace,
    /// Distinguishes the permits of this process from those of others.
    process: [u8; 8],
    count: AtomicU64,
}

/// Identity and terms of a permit. The number is chosen before the call to Redis, so that a permit
/// whose reply was lost can be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitId {
    pub(crate) number: u64,
    pub(crate) terms: PermitTerms,
}

/// Occupancy of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupancy {
    pub(crate) decided_at: Timestamp,
    /// Number of held permits.
    pub(crate) held: u64,
    /// Microseconds until the first and the last lease end.
    pub(crate) first_ends: u64,
    pub(crate) last_ends: u64,
}

/// Result of the renewal of one permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalResult {
    /// The lease had expired, and other holders have taken its place.
    Lost,
    /// The lease was extended.
    Extended,
    /// The lease had expired, and a new one started.
    Restarted,
}

impl ConcurrencyStore {
    /// Returns the permits in the namespace of a store.
    pub(crate) fn of(store: &RedisStore) -> Self {
        Self::new(store.route.clone(), store.clock.clone(), store.namespace.clone())
    }

    fn new(route: Route, clock: Clock, namespace: Namespace) -> Self {
        // The seeds of `RandomState` are random for each instance.
        let process = RandomState::new().hash_one((std::process::id(), SystemTime::now()));
        Self {
            route,
            clock,
            namespace,
            process: process.to_le_bytes(),
            count: AtomicU64::new(0),
        }
    }

    /// Returns the Redis key of a limit.
    pub(crate) fn key(&self, limit: &ValidatedLimit<'_>) -> String {
        leased_limit::key(limit, &self.namespace)
    }

    /// Returns a new permit id.
    pub(crate) fn permit(&self, terms: PermitTerms) -> PermitId {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        PermitId { number, terms }
    }

    /// Acquires a permit; returns true if Redis admitted it.
    ///
    /// # Cancel safety
    ///
    /// After a drop the result is unknown; the permit has to be [released](Self::release).
    pub(crate) async fn enter(
        &self,
        key: &str,
        permit: PermitId,
        within: Duration,
    ) -> Result<(bool, Occupancy), StoreError> {
        let (occupancy, flags) = self.query(ACQUIRE, key, &[permit], within).await?;
        Ok((flags.first() == Some(&1), occupancy))
    }

    /// Releases permits.
    pub(crate) async fn release(
        &self,
        key: &str,
        permits: &[PermitId],
        within: Duration,
    ) -> Result<(), StoreError> {
        self.query(RELEASE, key, permits, within).await.map(|_| ())
    }

    /// Extends each lease to its full length from now on and returns the result of each.
    pub(crate) async fn renew(
        &self,
        key: &str,
        permits: &[PermitId],
        within: Duration,
    ) -> Result<Vec<RenewalResult>, StoreError> {
        let (_, flags) = self.query(RENEW, key, permits, within).await?;
        let renewed = flags.iter().map(|flag| match flag {
            0 => Ok(RenewalResult::Lost),
            1 => Ok(RenewalResult::Extended),
            2 => Ok(RenewalResult::Restarted),
            _ => Err(malformed()),
        });
        renewed.collect()
    }

    /// Returns the occupancy of a key.
    pub(crate) async fn peek(&self, key: &str, within: Duration) -> Result<Occupancy, StoreError> {
        Ok(self.query(PEEK, key, &[], within).await?.0)
    }

    /// Removes the permits of other processes from a key, in as many calls as needed; `within` is
    /// the timeout of each call.
    ///
    /// # Cancel safety
    ///
    /// After a drop, an unknown part of the permits was removed.
    pub(crate) async fn reset(&self, key: &str, within: Duration) -> Result<(), StoreError> {
        let mut cursor = RESET_CURSOR.to_vec();
        loop {
            let mut plan = self.plan(RESET, &[]);
            plan.extend_from_slice(&cursor);
            (_, cursor) = self.execute(key, plan, RESET_CURSOR.len(), within).await?;
            if cursor == RESET_CURSOR {
                return Ok(());
            }
        }
    }

    async fn query(
        &self,
        operation: u8,
        key: &str,
        permits: &[PermitId],
        within: Duration,
    ) -> Result<(Occupancy, Vec<u8>), StoreError> {
        let plan = self.plan(operation, permits);
        self.execute(key, plan, permits.len(), within).await
    }

    /// Runs an operation on a detached permit and returns the flag of the script.
    pub(crate) async fn query_detached(
        &self,
        operation: u8,
        key: &str,
        (process, permit): ([u8; 8], PermitId),
        within: Duration,
    ) -> Result<(Occupancy, u8), StoreError> {
        let plan = self.plan_of(process, operation, &[permit]);
        let (occupancy, flags) = self.execute(key, plan, 1, within).await?;
        Ok((occupancy, flags.first().copied().unwrap_or(0)))
    }

    fn plan(&self, operation: u8, permits: &[PermitId]) -> Vec<u8> {
        self.plan_of(self.process, operation, permits)
    }

    fn plan_of(&self, process: [u8; 8], operation: u8, permits: &[PermitId]) -> Vec<u8> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(operation);
        plan.extend_from_slice(&process);
        plan.extend_from_slice(&saturating_u16(permits.len()).to_le_bytes());
        for PermitId { number, terms } in permits {
            plan.extend_from_slice(&number.to_le_bytes());
            plan.extend_from_slice(&saturating_u16(terms.cost).to_le_bytes());
            plan.extend_from_slice(&u32::try_from(terms.max).unwrap_or(u32::MAX).to_le_bytes());
            plan.extend_from_slice(&terms.lease_ms.to_le_bytes());
        }
        plan
    }

    /// Runs the script; returns the occupancy and the `more` remaining bytes of the reply.
    async fn execute(
        &self,
        key: &str,
        plan: Vec<u8>,
        payload_len: usize,
        within: Duration,
    ) -> Result<(Occupancy, Vec<u8>), StoreError> {
        let call = Call::new(&CONCURRENCY, [key], plan, within);
        let Value::BulkString(bytes) = self.route.run(&call).await? else {
            return Err(malformed());
        };
        read(&bytes, payload_len)
    }
}

/// Returns a call without an operation, which loads the script.
pub(crate) fn nothing(deadline: Duration) -> Call<'static> {
    Call::new(&CONCURRENCY, iter::empty::<String>(), wire::head(None), deadline)
}

/// A command names the permits of one batch, and a permit costs at most
/// [`MAX_PERMIT_COST`](crate::memory::permit_table::MAX_PERMIT_COST).
fn saturating_u16(count: impl TryInto<u16>) -> u16 {
    count.try_into().unwrap_or(u16::MAX)
}

fn read(bytes: &[u8], payload_len: usize) -> Result<(Occupancy, Vec<u8>), StoreError> {
    let mut reader = Reader(bytes);
    let decided_at = Timestamp::from_micros(reader.timestamp()?);
    let [status] = reader.array()?;
    if status != reply::READABLE {
        return Err(reply::unreadable_as(status)?);
    }
    let held = u32::from_le_bytes(reader.array()?).into();
    let (first_ends, last_ends) = (reader.number()?, reader.number()?);
    if reader.0.len() != payload_len {
        return Err(malformed());
    }
    let occupancy = Occupancy {
        decided_at,
        held,
        first_ends,
        last_ends,
    };
    Ok((occupancy, reader.0.to_vec()))
}
