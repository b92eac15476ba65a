//! Register of the processes that follow a registry: encoding of its script. The layout is
//! described in `lua/subscribers.lua`.
//!
//! Each process registers its revision, the format that it reads and a description for a limited
//! time, so that a process that ends without notice disappears from the list. The script computes
//! the difference of the clocks. Tests: `tests/registry_redis/subscribers.rs`.

use std::time::Duration;

use bb8_redis::redis;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::Route;
use crate::redis::script::{Call, SUBSCRIBERS, wire};
use crate::support::clock::Clock;
use crate::support::real_time::within;
use crate::units::micros_ceil;

const LIST: u8 = 0;
const REGISTER: u8 = 1;
/// Fixed part of a stored entry: id, end, difference of the clocks, revision, format, length.
const HEAD_BYTES: usize = 38;
/// Maximum length of a description in bytes.
const MAX_DESCRIPTION: usize = 1_024;

/// The register of a namespace. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SubscriberStore {
    route: Route,
    clock: Clock,
    key: String,
}

/// A registration, or the stored form of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubscriberRecord {
    pub(crate) id: [u8; 8],
    pub(crate) revision: u64,
    /// The format of the registry text that the process reads.
    pub(crate) format: u32,
    pub(crate) description: String,
    /// The time of the process minus that of the server, in microseconds. The script computes it.
    pub(crate) skew: i64,
}

impl SubscriberStore {
    pub(in crate::redis) fn new(route: Route, clock: Clock, key: String) -> Self {
        Self { route, clock, key }
    }

    /// Registers a process for `life`, or removes it for a zero duration.
    pub(crate) async fn register(
        &self,
        record: &SubscriberRecord,
        life: Duration,
        timeout: Duration,
    ) -> Result<(), StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(REGISTER);
        plan.extend_from_slice(&record.id);
        for number in [
            micros_ceil(life),
            self.clock.calendar().as_micros(),
            record.revision,
        ] {
            plan.extend_from_slice(&number.to_le_bytes());
        }
        plan.extend_from_slice(&record.format.to_le_bytes());
        plan.extend_from_slice(shortened(&record.description).as_bytes());
        self.execute(plan, timeout).await.map(drop)
    }

    /// Returns the registered processes.
    pub(crate) async fn list(&self, timeout: Duration) -> Result<Vec<SubscriberRecord>, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(LIST);
        let entries = self.execute(plan, timeout).await?;
        decode(&entries).ok_or_else(malformed)
    }

    async fn execute(&self, plan: Vec<u8>, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let call = Call::new(&SUBSCRIBERS, [&self.key], plan, timeout);
        let reply = within(timeout, self.route.run(&call)).await?;
        redis::from_redis_value::<Vec<u8>>(reply).map_err(|_| malformed())
    }
}

/// Returns the longest start of a description that fits and ends at a character.
fn shortened(description: &str) -> &str {
    let starts = (0..=MAX_DESCRIPTION).rev();
    let mut starts = starts.filter_map(|end| description.get(..end));
    starts.next().unwrap_or_default()
}

fn decode(mut entries: &[u8]) -> Option<Vec<SubscriberRecord>> {
    let mut records = Vec::new();
    while !entries.is_empty() {
        let (head, rest) = entries.split_at_checked(HEAD_BYTES)?;
        let (id, head) = head.split_first_chunk::<8>()?;
        let (_until, head) = head.split_first_chunk::<8>()?;
        let (skew, head) = head.split_first_chunk::<8>()?;
        let (revision, head) = head.split_first_chunk::<8>()?;
        let (format, length) = head.split_first_chunk::<4>()?;
        let length = u16::from_le_bytes(length.try_into().ok()?);
        let (description, rest) = rest.split_at_checked(length.into())?;
        records.push(SubscriberRecord {
            id: *id,
            revision: u64::from_le_bytes(*revision),
            format: u32::from_le_bytes(*format),
            description: String::from_utf8_lossy(description).into_owned(),
            skew: i64::from_le_bytes(*skew),
        });
        entries = rest;
    }
    Some(records)
}

fn malformed() -> StoreError {
    StoreError::new(
        StoreErrorKind::Protocol,
        "malformed reply of the script of subscribers",
    )
}
