//! Who holds permits: what the script of concurrency is asked, and what it answers; the layout is
//! told in `lua/concurrency.lua`.

use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bb8_redis::redis::Value;

use crate::concurrency::table::PermitTerms;
use crate::error::StoreError;
use crate::key::Namespace;
use crate::redis::Route;
use crate::redis::script::reply::{Reader, malformed};
use crate::redis::script::{CONCURRENCY, Call, reply, wire};
use crate::redis::token_lease::leased_limit;
use crate::request::RequestedLimit;
use crate::support::clock::Clock;
pub(crate) use crate::units::Timestamp;

const ENTER: u8 = 0;
const LEAVE: u8 = 1;
const RENEW: u8 = 2;
const PEEK: u8 = 3;
const RESET: u8 = 4;

/// Where a reset begins, and what it has come to when it is done.
const ALL: [u8; 12] = [0; 12];

/// Asks Redis for permits to be held, on behalf of this process.
#[derive(Debug)]
pub(crate) struct ConcurrencyStore {
    route: Route,
    clock: Clock,
    namespace: Namespace,
    /// Tells what this process holds from what others do.
    process: [u8; 8],
    count: AtomicU64,
}

/// A permit, by which Redis knows it. It is chosen before Redis is asked, so that one of which
/// nobody heard can be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitId {
    pub(crate) number: u64,
    pub(crate) terms: PermitTerms,
}

/// How a key stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupancy {
    pub(crate) decided_at: Timestamp,
    /// How much is held.
    pub(crate) held: u64,
    /// Microseconds until the first lease ends, and the last.
    pub(crate) first_ends: u64,
    pub(crate) last_ends: u64,
}

/// What became of a permit that was to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalResult {
    /// Its lease had ended, and others have taken its place.
    Gone,
    /// Its lease goes on.
    GoesOn,
    /// Its lease had ended, and a new one began.
    Anew,
}

impl ConcurrencyStore {
    pub(crate) fn new(route: Route, clock: Clock, namespace: Namespace) -> Self {
        // Its seeds are random, and differ for each.
        let process = RandomState::new().hash_one((std::process::id(), SystemTime::now()));
        Self {
            route,
            clock,
            namespace,
            process: process.to_le_bytes(),
            count: AtomicU64::new(0),
        }
    }

    /// The name under which Redis knows a limit.
    pub(crate) fn key(&self, limit: &RequestedLimit<'_>) -> String {
        leased_limit::key(limit, &self.namespace)
    }

    /// A permit that nobody holds yet.
    pub(crate) fn permit(&self, terms: PermitTerms) -> PermitId {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        PermitId { number, terms }
    }

    /// Asks for a permit: whether it was admitted.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether it was; to be sure, it has to be
    /// [left](Self::leave).
    pub(crate) async fn enter(
        &self,
        key: &str,
        permit: PermitId,
        within: Duration,
    ) -> Result<(bool, Occupancy), StoreError> {
        let (standing, flags) = self.query(ENTER, key, &[permit], within).await?;
        Ok((flags.first() == Some(&1), standing))
    }

    /// Gives permits back.
    pub(crate) async fn release(
        &self,
        key: &str,
        permits: &[PermitId],
        within: Duration,
    ) -> Result<(), StoreError> {
        self.query(LEAVE, key, permits, within).await.map(|_| ())
    }

    /// Has leases begin anew, each for its whole length from now on: what became of each.
    pub(crate) async fn renew(
        &self,
        key: &str,
        permits: &[PermitId],
        within: Duration,
    ) -> Result<Vec<RenewalResult>, StoreError> {
        let (_, flags) = self.query(RENEW, key, permits, within).await?;
        let renewed = flags.iter().map(|flag| match flag {
            0 => Ok(RenewalResult::Gone),
            1 => Ok(RenewalResult::GoesOn),
            2 => Ok(RenewalResult::Anew),
            _ => Err(malformed()),
        });
        renewed.collect()
    }

    /// How a key stands.
    pub(crate) async fn peek(&self, key: &str, within: Duration) -> Result<Occupancy, StoreError> {
        Ok(self.query(PEEK, key, &[], within).await?.0)
    }

    /// Forgets what other processes hold of a key, in as many calls as it takes, each of which may
    /// take so long.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open how much was forgotten.
    pub(crate) async fn reset(&self, key: &str, within: Duration) -> Result<(), StoreError> {
        let mut step = ALL.to_vec();
        loop {
            let mut plan = self.plan(RESET, &[]);
            plan.extend_from_slice(&step);
            (_, step) = self.execute(key, plan, ALL.len(), within).await?;
            if step == ALL {
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

    fn plan(&self, operation: u8, permits: &[PermitId]) -> Vec<u8> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(operation);
        plan.extend_from_slice(&self.process);
        plan.extend_from_slice(&saturated(permits.len()).to_le_bytes());
        for PermitId { number, terms } in permits {
            plan.extend_from_slice(&number.to_le_bytes());
            plan.extend_from_slice(&saturated(terms.cost).to_le_bytes());
            plan.extend_from_slice(&u32::try_from(terms.max).unwrap_or(u32::MAX).to_le_bytes());
            plan.extend_from_slice(&terms.lease_ms.to_le_bytes());
        }
        plan
    }

    /// How the key stands, and what else the reply tells, in so many bytes.
    async fn execute(
        &self,
        key: &str,
        plan: Vec<u8>,
        more: usize,
        within: Duration,
    ) -> Result<(Occupancy, Vec<u8>), StoreError> {
        let call = Call::new(&CONCURRENCY, [key], plan, within);
        let Value::BulkString(bytes) = self.route.run(&call).await? else {
            return Err(malformed());
        };
        read(&bytes, more)
    }
}

/// The call that asks for nothing, after which a server knows the script.
pub(crate) fn nothing(deadline: Duration) -> Call<'static> {
    Call::new(&CONCURRENCY, iter::empty::<String>(), wire::head(None), deadline)
}

/// Counts are bounded by [`MOST_HELD_AT_ONCE`](crate::concurrency::table::MOST_HELD_AT_ONCE).
fn saturated(count: impl TryInto<u16>) -> u16 {
    count.try_into().unwrap_or(u16::MAX)
}

fn read(bytes: &[u8], more: usize) -> Result<(Occupancy, Vec<u8>), StoreError> {
    let mut reader = Reader(bytes);
    let decided_at = Timestamp::from_micros(reader.moment()?);
    let [found] = reader.array()?;
    if found != reply::READABLE {
        return Err(reply::unreadable_as(found)?);
    }
    let held = u32::from_le_bytes(reader.array()?).into();
    let (first_ends, last_ends) = (reader.number()?, reader.number()?);
    if reader.0.len() != more {
        return Err(malformed());
    }
    let standing = Occupancy {
        decided_at,
        held,
        first_ends,
        last_ends,
    };
    Ok((standing, reader.0.to_vec()))
}
