//! Counts decisions per policy and outcome, for the plots of the admin UI.
//!
//! The library counts the decisions of all protocols through the facade `metrics`.
//! [`UsageRecorder`] wraps the recorder of the process and gives these counters a second number,
//! which [`fold`] moves to the database every half second. Decisions without the store and invalid
//! requests have a third number, so pages can tell the causes of failed calls. A decision costs one
//! or two more increments and never waits. Counts that the database did not accept wait in the
//! minute of their decisions. Tests: below.

mod backlog;

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::store::{Store, StoreError, UsageKind, UsageTotals, now_micros};
use crate::usage::backlog::UsageBacklog;

/// The counter of the library.
const DECISIONS: &str = "limiter_decisions_total";
/// The counter of the library for trial values.
const TRIALS: &str = "limiter_trial_decisions_total";
/// The origins of decisions without the store.
const ORIGINS_WITHOUT_STORE: [&str; 3] = ["local_fallback", "failed_open", "failed_closed"];
/// The interval between additions to the database: a denial is on an open page within 6 seconds,
/// and a page asks every 5 seconds.
const FOLD_INTERVAL: Duration = Duration::from_millis(500);
/// The longest name of a policy in MySQL.
const MAX_NAME_CHARS: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum UsageOutcome {
    Allowed,
    Denied,
    WouldDeny,
    Failed,
}

impl UsageOutcome {
    /// Returns the outcome of a label; `None` for calls that another limit denied.
    fn of_label(label: &str) -> Option<Self> {
        match label {
            "allowed" => Some(Self::Allowed),
            "denied" | "blocked" | "timed_out" => Some(Self::Denied),
            "shadow_denied" => Some(Self::WouldDeny),
            "invalid" | "error" => Some(Self::Failed),
            _ => None,
        }
    }

    /// Returns the count of the outcome.
    fn of(self, totals: &mut UsageTotals) -> &mut i64 {
        match self {
            Self::Allowed => &mut totals.allowed,
            Self::Denied => &mut totals.denied,
            Self::WouldDeny => &mut totals.would_deny,
            Self::Failed => &mut totals.failed,
        }
    }
}

/// Returns the kind of the cause that a decision has beside its policy, by its labels.
fn cause_of(outcome: &str, origin: Option<&str>) -> Option<UsageKind> {
    match outcome {
        "invalid" => Some(UsageKind::Invalid),
        "error" => Some(UsageKind::WithoutStore),
        _ if ORIGINS_WITHOUT_STORE.contains(&origin?) => Some(UsageKind::WithoutStore),
        _ => None,
    }
}

/// Returns whether every database can store the name of a policy. Another one would prevent the
/// counts of all policies.
fn is_storable(policy: &str) -> bool {
    !policy.is_empty() && policy.chars().count() <= MAX_NAME_CHARS && !policy.contains('\0')
}

type CountTable = HashMap<(String, UsageKind, UsageOutcome), Arc<AtomicU64>>;

/// The decisions of this process that are not in the database yet. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct UsageCounts(Arc<Mutex<CountTable>>);

impl UsageCounts {
    fn counter(&self, policy: &str, kind: UsageKind, outcome: UsageOutcome) -> Arc<AtomicU64> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(table.entry((policy.to_owned(), kind, outcome)).or_default())
    }

    /// Takes all counts of a kind. Policies without a decision since the last call are absent.
    fn take(&self, taken: UsageKind) -> Vec<(String, UsageTotals)> {
        let mut totals: BTreeMap<String, UsageTotals> = BTreeMap::new();
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_kind = table.iter().filter(|((_, kind, _), _)| *kind == taken);
        for ((policy, _, outcome), counter) in of_kind {
            let count = counter.swap(0, Ordering::Relaxed);
            if count > 0 {
                let total = outcome.of(totals.entry(policy.clone()).or_default());
                *total = total.saturating_add(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        totals.into_iter().collect()
    }
}

/// Adds the counts to the database until the task is dropped.
pub async fn fold(counts: UsageCounts, store: Store, namespace: String) {
    let mut backlogs = UsageKind::ALL.map(UsageBacklog::new);
    backlog::describe();
    loop {
        tokio::time::sleep(FOLD_INTERVAL).await;
        for backlog in &mut backlogs {
            backlog.add(now_micros(), counts.take(backlog.kind));
            if let Err(error) = send(backlog, &store, &namespace).await {
                tracing::debug!(%error, "the database did not accept the usage; trying again");
            }
        }
    }
}

/// Adds the waiting minutes to the database, the oldest first, until it rejects one.
async fn send(backlog: &mut UsageBacklog, store: &Store, namespace: &str) -> Result<(), StoreError> {
    while let Some((minute, counts)) = backlog.oldest() {
        let added = store.add_usage(namespace, backlog.kind, minute, &counts).await;
        // A commit without an answer has probably added the counts: a database that waits for its
        // disk or for a standby answers late, and each repetition would add them again.
        if added.as_ref().err().is_none_or(StoreError::is_unconfirmed) {
            backlog.remove_oldest();
        }
        added?;
    }
    Ok(())
}

/// A recorder that also counts the decisions in [`UsageCounts`].
#[derive(Debug)]
pub struct UsageRecorder<R> {
    inner: R,
    counts: UsageCounts,
}

impl<R> UsageRecorder<R> {
    /// Wraps a recorder.
    pub fn new(inner: R, counts: UsageCounts) -> Self {
        Self { inner, counts }
    }
}

/// A counter with a second number, and a third one for a cause.
#[derive(Debug)]
struct CountedTwice {
    inner: Counter,
    own: Arc<AtomicU64>,
    cause: Option<Arc<AtomicU64>>,
}

impl CounterFn for CountedTwice {
    fn increment(&self, value: u64) {
        self.inner.increment(value);
        self.own.fetch_add(value, Ordering::Relaxed);
        if let Some(cause) = &self.cause {
            cause.fetch_add(value, Ordering::Relaxed);
        }
    }

    fn absolute(&self, value: u64) {
        // The library counts increments only.
        self.inner.absolute(value);
    }
}

impl<R: Recorder> Recorder for UsageRecorder<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let inner = self.inner.register_counter(key, metadata);
        let kind = match key.name() {
            DECISIONS => UsageKind::Policy,
            TRIALS => UsageKind::Trial,
            _ => return inner,
        };
        let label = |name: &str| {
            let mut labels = key.labels();
            labels
                .find(|label| label.key() == name)
                .map(metrics::Label::value)
        };
        let name = label("outcome").unwrap_or_default();
        match (label("policy"), UsageOutcome::of_label(name)) {
            (Some(policy), Some(outcome)) if is_storable(policy) => {
                let cause = cause_of(name, label("origin")).filter(|_| kind == UsageKind::Policy);
                Counter::from_arc(Arc::new(CountedTwice {
                    inner,
                    own: self.counts.counter(policy, kind, outcome),
                    cause: cause.map(|cause| self.counts.counter(policy, cause, outcome)),
                }))
            }
            _ => inner,
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.inner.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.inner.register_histogram(key, metadata)
    }
}

#[cfg(test)]
mod tests {
    use metrics::{Label, Level, NoopRecorder};

    use super::*;

    fn register(recorder: &impl Recorder, name: &'static str, outcome: &str, origin: &str) -> Counter {
        let labels = [("policy", "search"), ("outcome", outcome), ("origin", origin)];
        let labels: Vec<Label> = labels
            .into_iter()
            .map(|(name, value)| Label::new(name, value.to_owned()))
            .collect();
        let metadata = Metadata::new("test", Level::INFO, None);
        recorder.register_counter(&Key::from_parts(name, labels), &metadata)
    }

    #[test]
    fn decisions_of_all_origins_are_summed_by_outcome() {
        let counts = UsageCounts::default();
        let recorder = UsageRecorder::new(NoopRecorder, counts.clone());
        for (outcome, origin, count) in [
            ("allowed", "memory", 2),
            ("allowed", "lease", 1),
            ("denied", "memory", 4),
            ("blocked", "memory", 1),
            ("shadow_denied", "memory", 8),
            ("error", "none", 16),
            ("spared", "memory", 32),
        ] {
            register(&recorder, DECISIONS, outcome, origin).increment(count);
        }
        register(&recorder, "limiter_shed_total", "allowed", "memory").increment(64);
        register(&recorder, TRIALS, "denied", "none").increment(128);
        let expected = UsageTotals {
            allowed: 3,
            denied: 5,
            would_deny: 8,
            failed: 16,
        };
        let kind = UsageKind::Policy;
        let taken = counts.take(kind);
        assert_eq!(taken, [("search".to_owned(), expected)]);
        assert_eq!(counts.take(kind), []);
        let of_trial = UsageTotals {
            denied: 128,
            ..UsageTotals::default()
        };
        assert_eq!(counts.take(UsageKind::Trial), [("search".to_owned(), of_trial)]);
    }

    #[test]
    fn names_that_a_database_cannot_store_are_not_counted() {
        let counts = UsageCounts::default();
        let recorder = UsageRecorder::new(NoopRecorder, counts.clone());
        let longest = "p".repeat(255);
        for name in ["", "a\0b", &"p".repeat(256), &longest] {
            let labels = [("policy", name), ("outcome", "denied")];
            let labels = labels.map(|(name, value)| Label::new(name, value.to_owned()));
            let key = Key::from_parts(DECISIONS, labels.to_vec());
            let metadata = Metadata::new("test", Level::INFO, None);
            recorder.register_counter(&key, &metadata).increment(1);
        }
        let taken = counts.take(UsageKind::Policy);
        let names: Vec<&str> = taken.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [longest]);
    }

    #[test]
    fn causes_of_decisions_are_counted_beside_their_policy() {
        let counts = UsageCounts::default();
        let recorder = UsageRecorder::new(NoopRecorder, counts.clone());
        for (outcome, origin, count) in [
            ("allowed", "redis", 1),
            ("allowed", "local_fallback", 2),
            ("allowed", "failed_open", 4),
            ("denied", "failed_closed", 8),
            ("error", "none", 16),
            ("invalid", "none", 32),
        ] {
            register(&recorder, DECISIONS, outcome, origin).increment(count);
        }
        let of_kind = |allowed, denied, failed| {
            let totals = UsageTotals {
                allowed,
                denied,
                failed,
                ..UsageTotals::default()
            };
            [("search".to_owned(), totals)]
        };
        assert_eq!(counts.take(UsageKind::Policy), of_kind(7, 8, 48));
        assert_eq!(counts.take(UsageKind::WithoutStore), of_kind(6, 8, 16));
        assert_eq!(counts.take(UsageKind::Invalid), of_kind(0, 0, 32));
    }
}
