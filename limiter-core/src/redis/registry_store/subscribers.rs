//! Register of the processes that follow a registry: encoding of its script. The layout is
//! described in `lua/subscribers.lua`.
//!
//! Each process registers its revision, the format that it reads and a description for a limited
//! time, so that a process that ends without notice disappears from the list. The script computes
//! the difference of the clocks. Tests: below, `tests/registry_redis/subscribers.rs`.

use std::time::Duration;

use bb8_redis::redis;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::Route;
use crate::redis::script::{Call, SUBSCRIBERS, wire};
use crate::support::clock::Clock;
use crate::support::real_time::with_deadline;
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
        let reply = with_deadline(timeout, self.route.run(&call)).await?;
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

#[cfg(test)]
mod tests {
    use limiter_testing::RedisServer;

    use super::*;
    use crate::key::Namespace;
    use crate::redis::RedisStore;
    use crate::redis::settings::{Certificates, Deployment, NodeSettings, Topology};

    const LIFE: Duration = Duration::from_secs(60);
    const TIMEOUT: Duration = Duration::from_secs(30);

    fn store(server: &RedisServer) -> SubscriberStore {
        let deployment = Deployment {
            topology: Topology::Standalone(server.url().into()),
            certificates: Certificates::default(),
            node: NodeSettings {
                connections: 1,
                max_in_flight: 16,
            },
        };
        let namespace = Namespace::new("", "subscribers");
        RedisStore::new(deployment, namespace, Clock::System)
            .unwrap()
            .subscriber_store()
    }

    /// The bytes of an id are also a part of other entries.
    fn record(number: u64, revision: u64) -> SubscriberRecord {
        SubscriberRecord {
            id: number.to_le_bytes(),
            revision,
            format: 3,
            description: format!("0.1.0\nhost-{number:04}\ncheckout"),
            skew: 0,
        }
    }

    /// The time of all scripts so far in microseconds, as the server measures it.
    fn script_micros(server: &RedisServer) -> u64 {
        let info = server.command(&["INFO", "commandstats"]).text();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let micros = line.and_then(|line| line.split("usec=").nth(1));
        let micros = micros.and_then(|rest| rest.split(',').next());
        micros.and_then(|micros| micros.parse().ok()).unwrap_or(0)
    }

    async fn micros_of(server: &RedisServer, store: &SubscriberStore, count: u64, revision: u64) -> u64 {
        let before = script_micros(server);
        for number in 0..200 {
            let record = record(number % count, revision);
            store.register(&record, LIFE, TIMEOUT).await.unwrap();
        }
        script_micros(server) - before
    }

    /// All processes of a fleet register after a publication.
    #[tokio::test]
    async fn registrations_of_large_fleet_replace_their_entries() {
        const COUNT: u64 = 1_000;
        let server = RedisServer::start();
        let store = store(&server);
        store.register(&record(0, 1), LIFE, TIMEOUT).await.unwrap();
        let one = micros_of(&server, &store, 1, 1).await;
        for number in 0..COUNT {
            store
                .register(&record(number, number), LIFE, TIMEOUT)
                .await
                .unwrap();
        }
        let many = micros_of(&server, &store, 200, 7).await;
        assert!(many < one * 30, "{many} and {one} µs");

        let mut listed = store.list(TIMEOUT).await.unwrap();
        listed.sort_by_key(|of| u64::from_le_bytes(of.id));
        let listed = listed
            .iter()
            .map(|of| (u64::from_le_bytes(of.id), of.revision, of.description.clone()));
        let expected = (0..COUNT).map(|number| {
            let record = record(number, if number < 200 { 7 } else { number });
            (number, record.revision, record.description)
        });
        assert!(listed.eq(expected));
    }
}
