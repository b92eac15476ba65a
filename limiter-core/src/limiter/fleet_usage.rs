//! Reads the usage that the processes of a namespace report.
//!
//! Each process adds its counts to one hash per minute in Redis (`redis/usage`). A reader keeps the
//! version of each minute in a `UsageCursor`, so that a read returns only the minutes that have
//! changed. Denied keys are sketches of each process, so a count is too high by at most the stated
//! error. Tests: `tests/usage.rs`.

use std::collections::BTreeMap;

use crate::decision::Origin;
use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::redis::usage::{
    MAX_CHANGED, MICROS_PER_MINUTE, StoredFields, UsageHash, UsageStore, decode_counts, decode_denied,
    minute_of, version,
};
use crate::support::clock::Clock;
use crate::units::Timestamp;
use crate::usage_counters::USAGE_OUTCOMES;

/// The number of minutes that Redis stores.
const COUNT_MINUTES: u64 = 120;
const DENIED_MINUTES: u64 = 24 * 60;

/// The usage of all processes of a namespace, as far as their limiters
/// [report](crate::RedisBuilder::usage) it. Returned by [`Limiter::fleet_usage`].
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use limiter_core::usage::{UsageCursor, UsageReporting};
/// use limiter_core::{Limiter, Policy};
/// use std::time::Duration;
///
/// # let server = limiter_testing::RedisServer::start();
/// # let url = server.url();
/// let limits = Limiter::redis(&url).namespace("prod").app("shop").usage(UsageReporting::Counts).build()?;
/// let search = Policy::token_bucket("search").capacity(20).rate("10/s").build()?;
/// limits.check(&search, "user:7").await?.require()?;
/// limits.shutdown(Duration::from_secs(1)).await; // reports now, not within five seconds
///
/// let reader = Limiter::redis(&url).namespace("prod").build()?;
/// let usage = reader.fleet_usage().expect("the limiter uses Redis");
/// let minutes = usage.changed_minutes(&mut UsageCursor::default()).await?;
/// let cell = &minutes[0].cells[0];
/// assert_eq!((&*cell.policy, cell.app.as_deref(), cell.allowed), ("search", Some("shop"), 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct FleetUsage {
    store: UsageStore,
    clock: Clock,
}

/// The minutes that a reader has read, with their versions. An empty cursor reads all minutes.
#[derive(Clone, Debug, Default)]
pub struct UsageCursor {
    versions: BTreeMap<u64, u64>,
}

/// The decisions of one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageMinute {
    /// The start of the minute.
    pub start: Timestamp,
    /// The decisions by policy and app, without cells that are zero.
    pub cells: Vec<UsageCell>,
}

/// The decisions of a policy for an app in a minute, as far as they are reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageCell {
    /// The name of the policy.
    pub policy: String,
    /// The app of the limiters.
    pub app: Option<String>,
    /// Calls that the policy allowed.
    pub allowed: u64,
    /// Calls that the policy denied, including waits without a permit.
    pub denied: u64,
    /// Calls that passed in shadow mode and would have been denied.
    pub would_deny: u64,
    /// Calls without a decision, because the store failed or the request was invalid.
    pub failed: u64,
    /// Calls that trial values would have allowed.
    pub trial_allowed: u64,
    /// Calls that trial values would have denied.
    pub trial_denied: u64,
}

/// The most denied keys of one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeniedMinute {
    /// The start of the minute.
    pub start: Timestamp,
    /// The keys of all policies, the most denied first.
    pub keys: Vec<DeniedKey>,
}

/// A key that was denied often in a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeniedKey {
    /// The name of the policy.
    pub policy: String,
    /// The app of the limiters.
    pub app: Option<String>,
    /// The key in the escaped form of Redis keys; `~` and a hash for a long key.
    pub key: String,
    /// The number of denials, which is too high by at most `error`.
    pub denied: u64,
    /// The largest possible error of `denied`.
    pub error: u64,
    /// The time of the first known denial.
    pub first: Timestamp,
    /// The time of the last denial.
    pub last: Timestamp,
    /// The revision of the registry in Redis at the last denial; `None` without such a registry.
    pub revision: Option<u64>,
    /// The component that made the last denial.
    pub origin: Option<Origin>,
}

impl Limiter {
    /// Returns the usage that the processes of this namespace [report](crate::RedisBuilder::usage).
    /// `None` in process.
    #[must_use]
    pub fn fleet_usage(&self) -> Option<FleetUsage> {
        let clock = self.inner.clock.clone();
        let store = self.inner.backend.usage_store()?;
        Some(FleetUsage { store, clock })
    }
}

impl FleetUsage {
    /// Returns minutes whose decisions have changed since the cursor read them, the oldest first.
    /// One call returns a few minutes: repeat it until it returns none. The decisions are those
    /// since the start of the minute, so a reader replaces the minute that it has read before.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when Redis does not answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the cursor is changed when the minutes are returned.
    pub async fn changed_minutes(&self, cursor: &mut UsageCursor) -> Result<Vec<UsageMinute>, StoreError> {
        // The clock of another process may be ahead by up to a minute.
        let last = minute_of(self.clock.calendar()) + 1;
        let first = last.saturating_sub(COUNT_MINUTES + 1);
        let known = |minute| (minute, cursor.versions.get(&minute).copied().unwrap_or(0));
        let known: Vec<(u64, u64)> = (first..=last).map(known).collect();
        let hashes = self.store.read(UsageHash::Counts, &known).await?;
        cursor.versions.retain(|minute, _| *minute >= first);
        let mut changed = Vec::new();
        for ((minute, _), fields) in known.into_iter().zip(hashes) {
            if let Some(version) = version(&fields) {
                cursor.versions.insert(minute, version);
                changed.push(UsageMinute {
                    start: start_of(minute),
                    cells: cells(&fields),
                });
            }
        }
        Ok(changed)
    }

    /// Returns the denied keys of the minutes that contain these times or are between them, the
    /// oldest minute first. Times of more than 24 hours ago are ignored. Each four minutes are one
    /// query of Redis.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when Redis does not answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn denied_keys(&self, from: Timestamp, to: Timestamp) -> Result<Vec<DeniedMinute>, StoreError> {
        let newest = minute_of(self.clock.calendar()) + 1;
        let first = minute_of(from).max(newest.saturating_sub(DENIED_MINUTES));
        let minutes: Vec<(u64, u64)> = (first..=minute_of(to).min(newest))
            .map(|minute| (minute, 0))
            .collect();
        let mut found = Vec::new();
        for chunk in minutes.chunks(MAX_CHANGED) {
            let hashes = self.store.read(UsageHash::DeniedKeys, chunk).await?;
            for ((minute, _), fields) in chunk.iter().zip(hashes) {
                let keys = denied_keys(&fields);
                if !keys.is_empty() {
                    let start = start_of(*minute);
                    found.push(DeniedMinute { start, keys });
                }
            }
        }
        Ok(found)
    }
}

fn start_of(minute: u64) -> Timestamp {
    Timestamp::from_micros(minute.saturating_mul(MICROS_PER_MINUTE))
}

fn cells(fields: &StoredFields) -> Vec<UsageCell> {
    let mut counts: BTreeMap<(String, String), [u64; USAGE_OUTCOMES]> = BTreeMap::new();
    for stored in fields
        .iter()
        .filter_map(|(field, value)| decode_counts(field, value))
    {
        let totals = counts.entry((stored.policy, stored.app)).or_default();
        for (total, count) in totals.iter_mut().zip(stored.counts) {
            *total += count;
        }
    }
    let cell = |((policy, app), counts): ((String, String), [u64; USAGE_OUTCOMES])| {
        let [allowed, denied, would_deny, failed, trial_allowed, trial_denied] = counts;
        UsageCell {
            policy,
            app: Some(app).filter(|app| !app.is_empty()),
            allowed,
            denied,
            would_deny,
            failed,
            trial_allowed,
            trial_denied,
        }
    };
    counts.into_iter().map(cell).collect()
}

fn denied_keys(fields: &StoredFields) -> Vec<DeniedKey> {
    let mut keys = Vec::new();
    for (policy, absent, stored) in fields
        .iter()
        .filter_map(|(field, value)| decode_denied(field, value))
    {
        keys.extend(stored.into_iter().map(|stored| DeniedKey {
            policy: policy.clone(),
            app: Some(stored.app).filter(|app| !app.is_empty()),
            key: stored.known.key.into(),
            denied: stored.known.count.saturating_add(absent),
            error: stored.known.error.saturating_add(absent),
            first: stored.known.first,
            last: stored.known.last,
            revision: Some(stored.revision).filter(|revision| *revision > 0),
            origin: Origin::from_number(stored.known.origin),
        }));
    }
    keys.sort_by(|one, other| {
        other
            .denied
            .cmp(&one.denied)
            .then_with(|| one.key.cmp(&other.key))
    });
    keys
}
