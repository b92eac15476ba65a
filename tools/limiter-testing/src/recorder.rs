//! A recorder of metrics with readable values.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Recorded metrics. Cheap to clone; clones share everything.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<HashMap<String, Entry>>>);

#[derive(Clone, Debug)]
enum Entry {
    Described,
    Counter(Arc<AtomicU64>),
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Records>),
}

/// Number of recorded values.
#[derive(Debug, Default)]
struct Records(AtomicU64);

impl HistogramFn for Records {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Ledger {
    /// Returns the metrics by name and labels, such as `seconds{origin=redis}`: the value of a
    /// counter or a gauge, or the number of values of a histogram.
    #[expect(clippy::cast_precision_loss, reason = "a test counts little")]
    #[must_use]
    pub fn all(&self) -> Vec<(String, f64)> {
        let load = |number: &AtomicU64| number.load(Ordering::SeqCst);
        let value = |entry: &Entry| match entry {
            Entry::Described => None,
            Entry::Counter(count) => Some(load(count) as f64),
            Entry::Gauge(bits) => Some(f64::from_bits(load(bits))),
            Entry::Histogram(records) => Some(load(&records.0) as f64),
        };
        let entries = self.lock();
        let all = entries
            .iter()
            .filter_map(|(name, entry)| Some((name.clone(), value(entry)?)));
        all.collect()
    }

    /// Returns the value of one metric, if it was recorded.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.all()
            .into_iter()
            .find_map(|(own, value)| (own == name).then_some(value))
    }

    fn entry(&self, key: &Key, new: impl FnOnce() -> Entry) -> Entry {
        let labels = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()));
        let name = format!("{}{{{}}}", key.name(), labels.collect::<Vec<_>>().join(","));
        let mut entries = self.lock();
        assert!(entries.contains_key(key.name()), "{name} was described before");
        entries.entry(name).or_insert_with(new).clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder for Ledger {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, description: SharedString) {
        assert!(!description.is_empty(), "{name:?}");
        self.lock().insert(name.as_str().to_owned(), Entry::Described);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe_counter(name, unit, description);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe_counter(name, unit, description);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.entry(key, || Entry::Counter(Arc::default())) {
            Entry::Counter(count) => Counter::from_arc(count),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.entry(key, || Entry::Gauge(Arc::default())) {
            Entry::Gauge(bits) => Gauge::from_arc(bits),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.entry(key, || Entry::Histogram(Arc::default())) {
            Entry::Histogram(records) => Histogram::from_arc(records),
            _ => Histogram::noop(),
        }
    }
}
