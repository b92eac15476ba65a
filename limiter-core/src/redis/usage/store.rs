//! Usage of all processes of a namespace: encoding of its script. The layout is described in
//! `lua/usage.lua`.
//!
//! Each minute has a hash of counts and a hash of denied keys, to which each process adds numbered
//! reports. A reader names the versions that it knows, and receives only hashes that have changed,
//! a bounded number in each call.
//!
//! Invariant: a report that is sent again is counted once. Tests: below, `tests/usage.rs`;
//! `tests/frozen/usage.rs` (layout).

use std::time::Duration;

use bb8_redis::redis;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::Namespace;
use crate::redis::Route;
use crate::redis::script::reply::{UNKNOWN_LAYOUT, unreadable_as};
use crate::redis::script::{Call, USAGE, wire};
use crate::support::clock::Clock;
use crate::support::real_time::with_deadline;
use crate::units::Timestamp;
use crate::usage_counters::USAGE_OUTCOMES;
use crate::usage_counters::denied_keys::{DeniedKeyCount, DeniedKeys};
use crate::usage_recorder::UnreportedUsage;

const READ: u8 = 0;
const ADD_COUNTS: u8 = 1;
const ADD_DENIED: u8 = 2;
/// The largest number of hashes that one call reads.
pub(crate) const MAX_CHANGED: usize = 4;
/// The counts of two outcomes are one field.
pub(crate) const PAIRS_OF_OUTCOMES: usize = USAGE_OUTCOMES / 2;
/// The first character of a field of counts, by pair of outcomes.
const PAIR_DIGITS: [u8; PAIRS_OF_OUTCOMES] = *b"012";
/// The bytes of a count.
const COUNT_BYTES: usize = 6;
const MAX_COUNT: u64 = (1 << (8 * COUNT_BYTES)) - 1;
/// The fixed part of a stored key: denials, error, first, last, revision, origin, two lengths.
const ENTRY_BYTES: usize = 45;
/// The maximum length of an app and of a policy in a field.
const MAX_APP: usize = 255;
const MAX_POLICY: usize = 256;

/// The times for which a minute is stored, from its first report.
const COUNTS_STORED: Duration = Duration::from_secs(2 * 3_600);
const DENIED_STORED: Duration = Duration::from_secs(24 * 3_600);

/// The two kinds of hashes of a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UsageHash {
    Counts,
    DeniedKeys,
}

/// The usage of a namespace. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct UsageStore {
    route: Route,
    clock: Clock,
    namespace: Namespace,
}

/// A report of a process, which is counted once even if it is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NumberedReport {
    pub(crate) hash: UsageHash,
    pub(crate) minute: u64,
    /// Higher than that of the previous report of the process.
    pub(crate) number: u64,
    /// The encoded cells.
    pub(crate) cells: Vec<u8>,
    /// The number of cells, or of denied keys.
    pub(crate) size: usize,
    /// The number of decisions, or of denials.
    pub(crate) decisions: u64,
}

/// The fields and values of a hash.
pub(crate) type StoredFields = Vec<(Vec<u8>, Vec<u8>)>;

impl UsageStore {
    /// The timeout of a report or a read. No call waits for them.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

    pub(in crate::redis) fn new(route: Route, clock: Clock, namespace: Namespace) -> Self {
        Self {
            route,
            clock,
            namespace,
        }
    }

    /// Adds a report of the process `process`. Returns the number of processes that reported in the
    /// minute or in the minute before, the higher one.
    pub(crate) async fn add(&self, process: [u8; 8], report: &NumberedReport) -> Result<u64, StoreError> {
        let (operation, stored) = match report.hash {
            UsageHash::Counts => (ADD_COUNTS, COUNTS_STORED),
            UsageHash::DeniedKeys => (ADD_DENIED, DENIED_STORED),
        };
        let mut plan = wire::head(self.clock.injected());
        plan.push(operation);
        let ttl_ms = u32::try_from(stored.as_millis()).unwrap_or(u32::MAX);
        plan.extend_from_slice(&ttl_ms.to_le_bytes());
        plan.extend_from_slice(&process);
        plan.extend_from_slice(&report.number.to_le_bytes());
        plan.extend_from_slice(&report.cells);
        let call = Call::new(
            &USAGE,
            [report.minute, report.minute.saturating_sub(1)].map(|minute| self.key(report.hash, minute)),
            plan,
            Self::TIMEOUT,
        );
        let reply = with_deadline(Self::TIMEOUT, self.route.run(&call)).await?;
        let processes: i64 = redis::from_redis_value(reply).map_err(|_| malformed())?;
        u64::try_from(processes).or_else(|_| Err(unreadable_as(UNKNOWN_LAYOUT)?))
    }

    /// Reads hashes of minutes whose versions are not the known ones, in the order of the minutes;
    /// an unchanged hash is empty. One call returns [`MAX_CHANGED`] hashes at most.
    pub(crate) async fn read(
        &self,
        hash: UsageHash,
        known: &[(u64, u64)],
    ) -> Result<Vec<StoredFields>, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(READ);
        for (_, version) in known {
            plan.extend_from_slice(&version.to_le_bytes());
        }
        let keys = known.iter().map(|(minute, _)| self.key(hash, *minute));
        let call = Call::new(&USAGE, keys, plan, Self::TIMEOUT);
        let reply = with_deadline(Self::TIMEOUT, self.route.run(&call)).await?;
        let hashes: Vec<Vec<Vec<u8>>> = redis::from_redis_value(reply).map_err(|_| malformed())?;
        let pairs = |flat: Vec<Vec<u8>>| {
            let mut texts = flat.into_iter();
            std::iter::from_fn(move || Some((texts.next()?, texts.next()?))).collect()
        };
        Ok(hashes.into_iter().map(pairs).collect())
    }

    fn key(&self, hash: UsageHash, minute: u64) -> String {
        match hash {
            UsageHash::Counts => self.namespace.usage_key(minute),
            UsageHash::DeniedKeys => self.namespace.denied_keys_key(minute),
        }
    }
}

/// Encodes the counts of a policy. Returns the number of cells: one for each pair of outcomes with
/// a count above zero.
pub(crate) fn encode_counts(usage: &UnreportedUsage, app: &str, cells: &mut Vec<u8>) -> usize {
    let (app, policy) = (shortened(app, MAX_APP), shortened(&usage.policy, MAX_POLICY));
    let mut size = 0;
    for (digit, pair) in PAIR_DIGITS.into_iter().zip(usage.counts.chunks_exact(2)) {
        if pair.iter().any(|count| *count > 0) {
            cells.extend_from_slice(&length(app.len() + policy.len() + 2));
            // The length separates the parts, which may contain any character.
            cells.extend_from_slice(&[digit, u8::try_from(app.len()).unwrap_or(u8::MAX)]);
            cells.extend_from_slice(app.as_bytes());
            cells.extend_from_slice(policy.as_bytes());
            for count in pair {
                let bytes = (*count).min(MAX_COUNT).to_le_bytes();
                cells.extend(bytes.into_iter().take(COUNT_BYTES));
            }
            size += 1;
        }
    }
    size
}

/// Encodes the denied keys of a policy. Returns the number of keys.
pub(crate) fn encode_denied(
    policy: &str,
    denied: &DeniedKeys,
    (app, revision): (&str, u64),
    cells: &mut Vec<u8>,
) -> usize {
    let (app, policy) = (shortened(app, MAX_APP), shortened(policy, MAX_POLICY));
    cells.extend_from_slice(&length(policy.len()));
    cells.extend_from_slice(policy.as_bytes());
    cells.extend_from_slice(&denied.absent().to_le_bytes());
    // A sketch has at most 20 keys.
    cells.push(u8::try_from(denied.keys().len()).unwrap_or(u8::MAX));
    for known in denied.keys() {
        let (first, last) = (known.first.as_micros(), known.last.as_micros());
        for number in [known.count, known.error, first, last, revision] {
            cells.extend_from_slice(&number.to_le_bytes());
        }
        cells.push(known.origin);
        cells.extend_from_slice(&length(known.key.len()));
        cells.extend_from_slice(&length(app.len()));
        cells.extend_from_slice(known.key.as_bytes());
        cells.extend_from_slice(app.as_bytes());
    }
    denied.keys().len()
}

/// Returns the version of a stored hash.
pub(crate) fn version(fields: &StoredFields) -> Option<u64> {
    let (_, version) = fields.iter().find(|(field, _)| field == b"#version")?;
    std::str::from_utf8(version).ok()?.parse().ok()
}

/// The counts of a stored field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredCounts {
    pub(crate) app: String,
    pub(crate) policy: String,
    /// The counts by the index of their outcome. Those of other pairs are zero.
    pub(crate) counts: [u64; USAGE_OUTCOMES],
}

/// Decodes counts. `None` for a field without counts.
pub(crate) fn decode_counts(field: &[u8], value: &[u8]) -> Option<StoredCounts> {
    let [digit, length, names @ ..] = field else {
        return None;
    };
    let pair = PAIR_DIGITS.iter().position(|known| known == digit)?;
    let (app, policy) = std::str::from_utf8(names)
        .ok()?
        .split_at_checked((*length).into())?;
    let (first, second) = value.split_at_checked(COUNT_BYTES)?;
    let mut counts = [0; USAGE_OUTCOMES];
    for (count, bytes) in counts.iter_mut().skip(2 * pair).zip([first, second]) {
        let bytes: &[u8; COUNT_BYTES] = bytes.try_into().ok()?;
        *count = bytes
            .iter()
            .rev()
            .fold(0, |high, low| high << 8 | u64::from(*low));
    }
    Some(StoredCounts {
        app: app.to_owned(),
        policy: policy.to_owned(),
        counts,
    })
}

/// A denied key of a stored hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredDeniedKey {
    pub(crate) known: DeniedKeyCount,
    pub(crate) revision: u64,
    pub(crate) app: String,
}

/// Decodes the denied keys of a policy: its name, the denials of an absent key and the keys. `None`
/// for another field.
pub(crate) fn decode_denied(field: &[u8], value: &[u8]) -> Option<(String, u64, Vec<StoredDeniedKey>)> {
    let policy = std::str::from_utf8(field.strip_prefix(b"p")?).ok()?;
    let (absent, mut rest) = value.split_first_chunk::<8>()?;
    let mut keys = Vec::new();
    while !rest.is_empty() {
        let (head, names) = rest.split_at_checked(ENTRY_BYTES)?;
        let (numbers, lengths) = head.split_at_checked(40)?;
        let mut numbers = numbers.chunks_exact(8);
        let mut number = || Some(u64::from_le_bytes(numbers.next()?.try_into().ok()?));
        let (count, error, first, last, revision) = (number()?, number()?, number()?, number()?, number()?);
        let [origin, key_low, key_high, app_low, app_high] = *lengths else {
            return None;
        };
        let (key, names) = names.split_at_checked(u16::from_le_bytes([key_low, key_high]).into())?;
        let (app, others) = names.split_at_checked(u16::from_le_bytes([app_low, app_high]).into())?;
        keys.push(StoredDeniedKey {
            known: DeniedKeyCount {
                key: String::from_utf8_lossy(key).into(),
                count,
                error,
                first: Timestamp::from_micros(first),
                last: Timestamp::from_micros(last),
                origin,
            },
            revision,
            app: String::from_utf8_lossy(app).into_owned(),
        });
        rest = others;
    }
    Some((policy.to_owned(), u64::from_le_bytes(*absent), keys))
}

/// Returns the length of a text of at most a few hundred bytes.
fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_le_bytes()
}

fn shortened(name: &str, max_bytes: usize) -> &str {
    let mut end = name.len().min(max_bytes);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.get(..end).unwrap_or_default()
}

fn malformed() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "malformed reply of the script of usage")
}

#[cfg(test)]
mod tests {
    use limiter_testing::RedisServer;

    use super::*;
    use crate::redis::RedisStore;
    use crate::redis::settings::{Certificates, Deployment, NodeSettings, Topology};

    fn store(server: &RedisServer) -> UsageStore {
        let deployment = Deployment {
            topology: Topology::Standalone(server.url().into()),
            certificates: Certificates::default(),
            node: NodeSettings {
                connections: 1,
                max_in_flight: 16,
            },
        };
        let namespace = Namespace::new("", "usage");
        RedisStore::new(deployment, namespace, Clock::System)
            .unwrap()
            .usage_store()
    }

    fn report(number: u64, policies: &[(&str, [u64; USAGE_OUTCOMES])]) -> NumberedReport {
        let (mut cells, mut size) = (Vec::new(), 0);
        for (policy, counts) in policies {
            let usage = UnreportedUsage {
                policy: (*policy).into(),
                counts: *counts,
                denied: DeniedKeys::default(),
            };
            size += encode_counts(&usage, "shop", &mut cells);
        }
        NumberedReport {
            hash: UsageHash::Counts,
            minute: 7,
            number,
            cells,
            size,
            decisions: 0,
        }
    }

    #[tokio::test]
    async fn counts_of_reports_are_added_once() {
        let server = RedisServer::start();
        let store = store(&server);
        let large = MAX_COUNT / 4;
        let first = report(
            1,
            &[("all", [1, 2, 3, 4, 5, large]), ("none", [0; USAGE_OUTCOMES])],
        );
        assert_eq!(first.size, PAIRS_OF_OUTCOMES);
        let second = report(
            2,
            &[("all", [large, 0, 0, 0, 0, large]), ("other", [0, 0, 0, 9, 0, 0])],
        );
        assert_eq!(second.size, 3);
        for (process, report) in [(1, &first), (2, &first), (1, &second), (1, &first), (1, &second)] {
            store.add([process; 8], report).await.unwrap();
        }
        let hashes = store.read(UsageHash::Counts, &[(7, 0)]).await.unwrap();
        let mut sums = std::collections::BTreeMap::<_, [u64; USAGE_OUTCOMES]>::new();
        for (field, value) in &hashes[0] {
            let Some(stored) = decode_counts(field, value) else {
                continue;
            };
            assert_eq!(stored.app, "shop");
            let sums = sums.entry(stored.policy).or_default();
            for (sum, count) in sums.iter_mut().zip(stored.counts) {
                *sum += count;
            }
        }
        let expected = [
            ("all".to_owned(), [large + 2, 4, 6, 8, 10, 3 * large]),
            ("other".to_owned(), [0, 0, 0, 9, 0, 0]),
        ];
        assert_eq!(sums, expected.into());
    }

    #[tokio::test]
    async fn hash_of_another_layout_is_an_error_and_unchanged() {
        let server = RedisServer::start();
        let (store, first) = (store(&server), report(1, &[("p", [1; USAGE_OUTCOMES])]));
        let key = store.key(UsageHash::Counts, first.minute);
        server.command(&["HSET", &key, "#layout", "1"]);
        let error = store.add([1; 8], &first).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::UnknownLayout, "{error}");
        assert_eq!(server.command(&["HLEN", &key]).integer(), 1);
    }
}
