//! Limits on the calls of all listeners: how many are in flight, and how many bytes of bodies are
//! buffered.
//!
//! A call takes its place only when its body has arrived, so slow clients take no places. Slow
//! bodies count towards [`MAX_BUFFERED`] instead, and end with the read timeout. Tests: below.

mod body;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) use crate::gateway::admission::body::{BodyError, LimitedBody};
use crate::settings::ListenerLimits;

/// The largest number of bytes in request bodies that have arrived in part, over all listeners.
const MAX_BUFFERED: usize = 64 * 1_024 * 1_024;

/// The interval at which the end of the last call is looked for when the server ends.
const IDLE_INTERVAL: Duration = Duration::from_millis(10);

/// The limits on the calls of all listeners. Cheap to clone; clones share the counts.
#[derive(Clone, Debug)]
pub struct Admission {
    calls: Arc<Count>,
    bytes: ByteLimit,
    read_timeout: Duration,
}

/// A number with a limit. The bounded counter of limiter-core is no part of its public API, which
/// this crate uses alone.
#[derive(Debug)]
struct Count {
    used: AtomicUsize,
    max: usize,
}

/// Bytes of a number with a limit, which are released with this value.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    bytes: usize,
    of: Arc<Count>,
}

/// A number of bytes with a limit. Cheap to clone; clones share the number.
#[derive(Clone, Debug)]
pub(crate) struct ByteLimit(Arc<Count>);

/// The place of one call, which ends with this value.
#[derive(Debug)]
pub struct CallPlace(Arc<Count>);

impl Admission {
    /// Creates admission by these limits.
    #[must_use]
    pub fn new(limits: &ListenerLimits) -> Self {
        Self {
            calls: Arc::new(Count::new(limits.max_in_flight)),
            bytes: ByteLimit::new(MAX_BUFFERED),
            read_timeout: limits.read_timeout,
        }
    }

    /// Takes the place of a call; `None` when too many calls are in flight, which is counted.
    #[must_use]
    pub fn begin_call(&self) -> Option<CallPlace> {
        if self.calls.take(1) {
            return Some(CallPlace(Arc::clone(&self.calls)));
        }
        metrics::counter!("limiter_server_rejected_calls_total", "reason" => "in_flight").increment(1);
        None
    }

    /// Waits until no call is in flight: the calls of clients that have left go on.
    pub(crate) async fn idle(&self) {
        while self.calls.used.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(IDLE_INTERVAL).await;
        }
    }

    /// Sets the metric of the calls in flight.
    pub(crate) fn report(&self) {
        let calls = u32::try_from(self.calls.used.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        metrics::gauge!("limiter_server_calls_in_flight").set(f64::from(calls));
    }

    /// Limits the time and the memory in which the body of a request arrives.
    pub(crate) fn limit_body<B>(&self, body: B) -> LimitedBody<B> {
        LimitedBody::new(body, self.read_timeout, self.bytes.hold())
    }
}

impl ByteLimit {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Count::new(max)))
    }

    /// Returns a holder of no bytes.
    pub(crate) fn hold(&self) -> HeldBytes {
        HeldBytes {
            bytes: 0,
            of: Arc::clone(&self.0),
        }
    }
}

impl HeldBytes {
    /// Takes more bytes; false if they exceed the limit.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let is_taken = self.of.take(bytes);
        self.bytes += if is_taken { bytes } else { 0 };
        is_taken
    }

    /// Gives a part of the bytes back.
    #[cfg(feature = "rlqs")]
    pub(crate) fn give(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.of.give(bytes);
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.of.give(self.bytes);
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        self.0.give(1);
    }
}

impl Count {
    fn new(max: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            max,
        }
    }

    fn take(&self, number: usize) -> bool {
        let fits = |used: usize| used.checked_add(number).filter(|sum| *sum <= self.max);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_ok()
    }

    fn give(&self, number: usize) {
        self.used.fetch_sub(number, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_released_after_its_call() {
        let limits = ListenerLimits {
            max_in_flight: 2,
            ..ListenerLimits::default()
        };
        let admission = Admission::new(&limits);
        let (first, second) = (admission.begin_call(), admission.begin_call());
        assert!(first.is_some() && second.is_some());
        assert!(admission.begin_call().is_none());
        drop(first);
        assert!(admission.begin_call().is_some());
    }
}
