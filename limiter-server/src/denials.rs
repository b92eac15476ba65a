//! Moves samples of denials to the database, where they stay for 30 days.
//!
//! A process keeps the most denied keys of its gateway for a day ([`KeyActivity`]), and library
//! processes report theirs to Redis, which keeps them for a day. A pass sums the minutes of an hour
//! and records the most denied keys of each policy. The records are idempotent
//! ([`Store::record_denials`]), so every node records those of Redis. A gateway that ends loses the
//! denials since its last pass.
//!
//! Tests: `tests/denials.rs`.
//!
//! [`KeyActivity`]: crate::gateway::activity::KeyActivity

pub(crate) mod seen_key;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use limiter_core::usage::FleetUsage;

use crate::denials::seen_key::{SeenKey, read_library};
use crate::gateway::Gateway;
use crate::key_text::recorded;
use crate::store::{DenialSample, Store, UsageSpan};

/// The interval between passes over the gateway.
const INTERVAL: Duration = Duration::from_secs(5);
/// The number of passes between passes over the library processes. They report a minute at its
/// end at the latest, and a read of an hour is 15 queries.
const LIBRARY_EVERY: u64 = 12;
/// The age of the oldest minute that is read again, in microseconds: a report can be late.
const LATE: i64 = 10 * 60_000_000;
/// The age of the oldest minute in Redis.
const OLDEST: i64 = 24 * 3_600_000_000;
/// The largest number of keys of a policy in one hour.
const KEYS_PER_HOUR: usize = 20;
/// The maximum length of a name in the database, in characters.
const MAX_CHARS: usize = 255;
/// The source of the samples of library processes. Those of gateways have the id of their process.
const LIBRARY: &str = "library";

/// Records the denials of one namespace.
#[derive(Debug)]
pub struct DenialRecorder {
    store: Store,
    namespace: String,
    fleet: Option<FleetUsage>,
    /// The gateway of this process, with the name of its node and the id of the process.
    gateway: Option<(Gateway, String, String)>,
    /// The last recorded denial of the gateway.
    recorded: i64,
    /// The time of the last pass over the gateway that succeeded.
    passed_at: Option<i64>,
    /// The first minute of library processes that the next pass reads; `None` for the oldest.
    from: Option<i64>,
}

impl DenialRecorder {
    /// Records the denials of a namespace. Without a source, nothing is recorded.
    #[must_use]
    pub fn new(store: Store, namespace: &str) -> Self {
        Self {
            store,
            namespace: namespace.to_owned(),
            fleet: None,
            gateway: None,
            recorded: 0,
            passed_at: None,
            from: None,
        }
    }

    /// Records the denials that library processes report.
    #[must_use]
    pub fn with_library(mut self, fleet: FleetUsage) -> Self {
        self.fleet = Some(fleet);
        self
    }

    /// Records the denials of the gateway of a node.
    #[must_use]
    pub fn with_gateway(mut self, gateway: Gateway, node: &str, instance: &str) -> Self {
        self.gateway = Some((gateway, node.to_owned(), instance.to_owned()));
        self
    }

    /// Records the new denials of the gateway.
    ///
    /// # Errors
    ///
    /// The reason as one message. The next pass repeats the denials that were not recorded.
    pub async fn record_gateway(&mut self, now: i64) -> Result<(), String> {
        let Some((gateway, node, instance)) = &self.gateway else {
            return Ok(());
        };
        let activity = gateway.activity();
        let mut samples = Vec::new();
        // The database can have been unavailable since the last pass that succeeded.
        let passed_at = self.passed_at.unwrap_or_else(|| activity.since()).min(now);
        let from = passed_at.saturating_sub(LATE).max(now.saturating_sub(OLDEST));
        let mut starts: BTreeSet<i64> = hours(from, now).collect();
        // After the clock was set back, calls count for the newest minute until that time.
        let is_behind = self.recorded > now;
        if is_behind {
            starts.extend(hours(self.recorded.saturating_sub(LATE), self.recorded));
        }
        for start in starts {
            let end = start.saturating_add(UsageSpan::Hour.micros()).saturating_sub(1);
            for policy in activity.policies() {
                let keys = activity.keys(&policy, (start, end)).into_iter();
                let keys = keys.map(|key| SeenKey::by_gateway(&policy, key));
                samples.extend(most_denied(keys.collect(), start, node));
            }
        }
        let last = samples.iter().map(|of| of.last_at).max();
        samples.retain(|of| is_behind || of.last_at > self.recorded);
        if !samples.is_empty() {
            let recorded = self.store.record_denials(&self.namespace, instance, &samples);
            recorded.await.map_err(|error| error.to_string())?;
            self.recorded = last.unwrap_or(self.recorded);
        }
        self.passed_at = Some(now);
        Ok(())
    }

    /// Records the denials of library processes: in the first pass of the last day, and later of
    /// the hours that can have changed.
    ///
    /// # Errors
    ///
    /// The reason as one message. The next pass repeats the hours that were not recorded.
    pub async fn record_library(&mut self, now: i64) -> Result<(), String> {
        let Some(fleet) = &self.fleet else {
            return Ok(());
        };
        let from = self.from.unwrap_or_else(|| now.saturating_sub(OLDEST));
        for start in hours(from, now) {
            let end = start.saturating_add(UsageSpan::Hour.micros()).saturating_sub(1);
            let read = read_library(fleet, (start, end)).await;
            let keys = read.map_err(|error| format!("cannot read the denied keys in Redis: {error}"))?;
            let samples = most_denied(keys, start, "");
            if !samples.is_empty() {
                let recorded = self.store.record_denials(&self.namespace, LIBRARY, &samples);
                recorded.await.map_err(|error| error.to_string())?;
            }
        }
        self.from = Some(now.saturating_sub(LATE));
        Ok(())
    }
}

/// Returns the start of each hour between two times.
fn hours(from: i64, to: i64) -> impl Iterator<Item = i64> {
    let first = UsageSpan::Hour.start(from);
    let next = |start: &i64| start.checked_add(UsageSpan::Hour.micros());
    std::iter::successors(Some(first), next).take_while(move |start| *start <= to)
}

/// Returns the most denied keys of each policy as samples of an hour.
fn most_denied(mut keys: Vec<SeenKey>, start_at: i64, node: &str) -> Vec<DenialSample> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    keys.sort_by_key(|of| std::cmp::Reverse(of.denied));
    let fits = |name: &str| name.chars().count() <= MAX_CHARS && !name.contains('\0');
    let is_kept = |of: &SeenKey| {
        of.denied > 0 && fits(&of.policy) && of.app.as_deref().is_none_or(fits) && {
            let count = counts.entry(of.policy.clone()).or_default();
            *count += 1;
            *count <= KEYS_PER_HOUR
        }
    };
    keys.retain(is_kept);
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let samples = keys.into_iter().map(|of| DenialSample {
        start_at,
        node: node.to_owned(),
        key: recorded(&stored_text(&of.key)).into_owned(),
        rule: of.rule.as_deref().map(stored_text),
        revision: of.revision.map(number),
        origin: of.origin.map(str::to_owned),
        first_at: of.first_at,
        last_at: of.last_at,
        error: number(of.error),
        denied: number(of.denied),
        policy: of.policy,
        app: of.app,
    });
    samples.collect()
}

/// Returns a text of a client without NUL, which PostgreSQL rejects.
fn stored_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Records denials until the task is dropped.
pub(crate) async fn run(mut recorders: Vec<DenialRecorder>) {
    for pass in 1_u64.. {
        tokio::time::sleep(INTERVAL).await;
        let now = crate::store::now_micros();
        for recorder in &mut recorders {
            let mut result = recorder.record_gateway(now).await;
            if pass % LIBRARY_EVERY == 1 && result.is_ok() {
                result = recorder.record_library(now).await;
            }
            if let Err(error) = result {
                let namespace = &recorder.namespace;
                tracing::debug!(namespace, %error, "samples of denials are not recorded; trying again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_contain_both_times() {
        let hour = UsageSpan::Hour.micros();
        let found: Vec<i64> = hours(hour + 5, 3 * hour).collect();
        assert_eq!(found, [hour, 2 * hour, 3 * hour]);
        assert_eq!(hours(7, 8).collect::<Vec<_>>(), [0]);
    }
}
