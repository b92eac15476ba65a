//! Metrics of Redis and its connections.
//!
//! Durations of queries, sizes of batches, the number of replicas, and the state of each node's
//! circuit breaker. A gauge changes rarely, so `BreakerGauge` stores the state and shows it to a
//! recorder that is installed later.
//!
//! Invariant: a dropped breaker is shown as closed, since its node is no longer used. Tests:
//! `tests/metrics.rs`, `tests/metrics_late.rs`.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use metrics::{Gauge, Histogram, Key, Label, Recorder};

use crate::decision::Origin;
use crate::metrics_handles::{LazyHandle, ORIGINS};
use crate::observe::names::describe_histogram;
use crate::observe::recorded::{METADATA, describe_gauge, gauge, names, origin_label};

/// Records the duration of a decision that queried Redis, by its final origin.
pub(crate) fn record_query(started: Instant, origin: Option<Origin>) {
    static SECONDS: [LazyHandle<Histogram>; ORIGINS] = [const { LazyHandle::new() }; ORIGINS];
    let (index, label) = origin_label(origin);
    let histogram = SECONDS.get(index).and_then(|handle| {
        handle.get(|recorder| {
            let labels = vec![Label::from_static_parts("origin", label)];
            histogram(recorder, Key::from_parts(names::SECONDS, labels), names::SECONDS)
        })
    });
    if let Some(histogram) = histogram {
        histogram.record(started.elapsed());
    }
}

/// Records the number of requests in one command.
pub(crate) fn batch(requests: usize) {
    static REQUESTS: LazyHandle<Histogram> = LazyHandle::new();
    let key = || Key::from_static_name(names::BATCH_REQUESTS);
    if let Some(histogram) = REQUESTS.get(|recorder| histogram(recorder, key(), names::BATCH_REQUESTS)) {
        histogram.record(u32::try_from(requests).unwrap_or(u32::MAX));
    }
}

fn histogram(recorder: &dyn Recorder, key: Key, name: &'static str) -> Histogram {
    describe_histogram(recorder, name);
    recorder.register_histogram(&key, &METADATA)
}

/// Sets the number of replicas that share the limits.
pub(crate) fn replicas(count: u32) {
    static REPLICAS: LazyHandle<Gauge> = LazyHandle::new();
    if let Some(gauge) = REPLICAS.get(|recorder| gauge(recorder, names::REPLICAS)) {
        gauge.set(count);
    }
}

/// The state of a circuit breaker, as the value of the gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BreakerState {
    Closed = 0,
    HalfOpen = 1,
    Open = 2,
}

/// Shows the state of the breaker of one node.
#[derive(Debug)]
pub(crate) struct BreakerGauge {
    node: Box<str>,
    /// Stored as a number for a recorder that is installed later.
    state: AtomicU8,
    gauge: LazyHandle<Gauge>,
}

impl BreakerGauge {
    pub(crate) fn new(node: &impl fmt::Display) -> Self {
        Self {
            node: node.to_string().into(),
            state: AtomicU8::new(BreakerState::Closed as u8),
            gauge: LazyHandle::new(),
        }
    }

    /// Shows a change. Must be called in the order of the changes.
    pub(crate) fn set(&self, state: BreakerState) {
        self.state.store(state as u8, Ordering::Relaxed);
        self.show();
    }

    /// Shows the current state if no recorder was installed before. Called regularly.
    #[inline]
    pub(crate) fn keep_shown(&self) {
        if !self.gauge.is_initialised() {
            self.show();
        }
    }

    #[cold]
    fn show(&self) {
        let made = |recorder: &dyn Recorder| {
            describe_gauge(recorder, names::BREAKER_STATE);
            let labels = vec![Label::new("node", self.node.to_string())];
            recorder.register_gauge(&Key::from_parts(names::BREAKER_STATE, labels), &METADATA)
        };
        if let Some(gauge) = self.gauge.get(made) {
            gauge.set(self.state.load(Ordering::Relaxed));
        }
    }
}

/// A node that is no longer used, for example after it has left its cluster, must not stay open in
/// the gauge.
impl Drop for BreakerGauge {
    fn drop(&mut self) {
        if self.gauge.is_initialised() && self.state.load(Ordering::Relaxed) != BreakerState::Closed as u8 {
            self.set(BreakerState::Closed);
        }
    }
}
