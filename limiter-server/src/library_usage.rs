//! Moves the usage that library processes report to Redis to the database.
//!
//! Redis has the sum of all processes for each minute of the last two hours. A pass reads the
//! minutes that have changed since the last pass and records them. The records are idempotent
//! ([`Store::record_library_usage`]), so every node folds, and a node that starts again reads all
//! minutes. A minute that the database did not accept is read again.
//!
//! Tests: `tests/library_usage.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use limiter_core::usage::{FleetUsage, UsageCell, UsageCursor, UsageMinute};
use limiter_core::{StoreErrorKind, Timestamp};

use crate::store::{LibraryUsage, Store, StoreError, UsageKind, UsageSpan, UsageTotals};

/// The interval between passes.
const INTERVAL: Duration = Duration::from_secs(5);
/// The number of passes between records of hours.
const HOURS_EVERY: u64 = 12;
/// The maximum length of a name in the database, in characters.
const MAX_NAME: usize = 255;

/// The reason why the usage of a namespace is not recorded, as of the last pass. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct LibraryUsageStatus(Arc<Mutex<BTreeMap<String, Option<String>>>>);

impl LibraryUsageStatus {
    /// Returns the reason, or none if the last pass succeeded; `None` before the first pass.
    #[must_use]
    pub fn last(&self, namespace: &str) -> Option<Option<String>> {
        let passes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        passes.get(namespace).cloned()
    }

    /// Records the result of a pass. A new reason is logged once.
    fn set(&self, namespace: &str, reason: Option<String>) {
        let up = if reason.is_none() { 1.0 } else { 0.0 };
        metrics::gauge!("limiter_server_library_usage_up", "namespace" => namespace.to_owned()).set(up);
        let mut passes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = passes.insert(namespace.to_owned(), reason.clone()).flatten();
        if let Some(reason) = reason
            && before.as_ref() != Some(&reason)
        {
            tracing::warn!(namespace, %reason, "usage of library processes is not recorded; trying again");
        }
    }
}

/// Moves the usage of one namespace to the database.
#[derive(Debug)]
pub struct LibraryUsageFold {
    fleet: FleetUsage,
    store: Store,
    namespace: String,
    cursor: UsageCursor,
    /// The starts of hours with minutes that were recorded since the hour was.
    hours: BTreeSet<i64>,
}

impl LibraryUsageFold {
    /// Folds from the oldest minute in Redis.
    #[must_use]
    pub fn new(fleet: FleetUsage, store: Store, namespace: &str) -> Self {
        Self {
            fleet,
            store,
            namespace: namespace.to_owned(),
            cursor: UsageCursor::default(),
            hours: BTreeSet::new(),
        }
    }

    /// Records the changed minutes.
    ///
    /// # Errors
    ///
    /// The reason as one message. The next pass repeats the minutes that were not recorded.
    pub async fn record_minutes(&mut self) -> Result<(), String> {
        let mut read: BTreeSet<Timestamp> = BTreeSet::new();
        loop {
            let mut cursor = self.cursor.clone();
            let minutes = self.fleet.changed_minutes(&mut cursor).await;
            let minutes = minutes.map_err(|error| {
                let action = match error.kind() {
                    StoreErrorKind::Refused => {
                        ": give the user of the server the commands +hget +hgetall +hmget +hset +hincrby"
                    }
                    _ => "",
                };
                format!("cannot read the usage in Redis: {error}{action}")
            })?;
            for minute in &minutes {
                let recorded = self.record(minute).await;
                recorded.map_err(|error| format!("cannot record the usage: {error}"))?;
            }
            self.cursor = cursor;
            // A minute that processes report to changes all the time.
            let new = minutes.iter().filter(|minute| read.insert(minute.start)).count();
            if new == 0 {
                return Ok(());
            }
        }
    }

    /// Records the sums of the hours whose minutes were recorded.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer. The next call repeats the hours.
    pub async fn record_hours(&mut self) -> Result<(), StoreError> {
        while let Some(hour) = self.hours.first().copied() {
            self.store.sum_library_hour(&self.namespace, hour).await?;
            self.hours.remove(&hour);
        }
        Ok(())
    }

    async fn record(&mut self, minute: &UsageMinute) -> Result<(), StoreError> {
        let at = i64::try_from(minute.start.as_micros()).unwrap_or(i64::MAX);
        for (kind, totals) in [
            (UsageKind::Policy, policy_totals as fn(&UsageCell) -> UsageTotals),
            (UsageKind::Trial, trial_totals),
        ] {
            // PostgreSQL stores no NUL.
            let fits = |name: &str| name.chars().count() <= MAX_NAME && !name.contains('\0');
            let rows = minute.cells.iter().filter_map(|cell| {
                let app = cell.app.as_deref().unwrap_or_default();
                let totals = totals(cell);
                (fits(&cell.policy) && fits(app) && totals.calls() > 0).then(|| LibraryUsage {
                    policy: cell.policy.clone(),
                    app: app.to_owned(),
                    totals,
                })
            });
            let rows: Vec<LibraryUsage> = rows.collect();
            self.store
                .record_library_usage(&self.namespace, kind, at, &rows)
                .await?;
        }
        self.hours.insert(UsageSpan::Hour.start(at));
        Ok(())
    }
}

fn policy_totals(cell: &UsageCell) -> UsageTotals {
    UsageTotals {
        allowed: count(cell.allowed),
        denied: count(cell.denied),
        would_deny: count(cell.would_deny),
        failed: count(cell.failed),
    }
}

fn trial_totals(cell: &UsageCell) -> UsageTotals {
    UsageTotals {
        allowed: count(cell.trial_allowed),
        denied: count(cell.trial_denied),
        ..UsageTotals::default()
    }
}

fn count(calls: u64) -> i64 {
    i64::try_from(calls).unwrap_or(i64::MAX)
}

/// Folds the usage of these namespaces until the task is dropped.
pub(crate) async fn run(fleets: BTreeMap<String, FleetUsage>, store: Store, status: LibraryUsageStatus) {
    let mut folds: Vec<LibraryUsageFold> = fleets
        .into_iter()
        .map(|(namespace, fleet)| LibraryUsageFold::new(fleet, store.clone(), &namespace))
        .collect();
    for pass in 1_u64.. {
        tokio::time::sleep(INTERVAL).await;
        for fold in &mut folds {
            let mut result = fold.record_minutes().await;
            if pass % HOURS_EVERY == 0 && result.is_ok() {
                let recorded = fold.record_hours().await;
                result = recorded.map_err(|error| format!("cannot record the usage of hours: {error}"));
            }
            status.set(&fold.namespace, result.err());
        }
    }
}
