//! Single-flight refresh of the cluster's slot map: one task reads the map for all waiting calls.
//!
//! `support/background_task.rs` is not used, because a refresh is not a loop that reports progress:
//! it has a minimum interval from start to start, and its end is a result that the waiters receive.
//!
//! Invariants: at most one live refresh at a time, and each waiter receives a result, also when the
//! runtime of the refresh ends. Tests: below, and `model.rs` (model check).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::error::{StoreError, StoreErrorKind};
use crate::support::sync::{Mutex, MutexGuard};

/// Age at which a running refresh counts as abandoned, since its runtime is no longer driven.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(2);

/// Minimum interval between refreshes of the map.
pub(crate) const REFRESH_INTERVAL: Duration = Duration::from_millis(150);
/// The longest minimum interval while calls fail.
const LONGEST_INTERVAL: Duration = Duration::from_millis(600);
/// Fraction of the time since the first failed call by which the interval grows. A failover takes
/// less than 20 s by default, so that the interval is the minimum for its whole duration.
const INTERVAL_FRACTION: u32 = 150;
/// Time without a failed call after which a failure is the first one again.
const FAILURES_END_AFTER: Duration = Duration::from_secs(2);

/// State of the refresh and the result of the last one.
#[derive(Debug)]
pub(crate) struct SlotMapRefresh {
    state: Mutex<RefreshState>,
    /// `None` until a refresh has ended.
    result_sender: watch::Sender<Option<Result<(), StoreError>>>,
}

#[derive(Debug, Default)]
struct RefreshState {
    busy: bool,
    started: Option<Instant>,
    /// Calls have failed since then, without a change of the map.
    failures: Option<Failures>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    first: Instant,
    last: Instant,
}

/// Permission to refresh. Dropping it reports a failure to the waiters, also when the runtime of
/// its task ends.
#[derive(Debug)]
#[must_use = "waiters receive a failure when this is dropped"]
pub(crate) struct RefreshGuard {
    refresh: Arc<SlotMapRefresh>,
    started: Instant,
    result: Option<Result<(), StoreError>>,
}

impl SlotMapRefresh {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            result_sender: watch::Sender::new(None),
        })
    }

    /// Returns the permission to refresh, unless a refresh is running or the last one started less
    /// than `interval` ago.
    pub(crate) fn start(self: &Arc<Self>, interval: Duration, now: Instant) -> Option<RefreshGuard> {
        let mut state = self.lock();
        let since = state
            .started
            .map(|started| now.saturating_duration_since(started));
        let is_running = state.busy && since.is_some_and(|since| since < ABANDONED_AFTER);
        if is_running || since.is_some_and(|since| since < interval) {
            return None;
        }
        (state.busy, state.started) = (true, Some(now));
        Some(RefreshGuard {
            refresh: Arc::clone(self),
            started: now,
            result: None,
        })
    }

    /// Returns the minimum interval between refreshes after a failed call. It grows with the time
    /// for which calls have failed, because each refresh queries all nodes and a node may be down
    /// for long.
    pub(crate) fn interval_after_failure(&self, now: Instant) -> Duration {
        let mut state = self.lock();
        let series = state
            .failures
            .filter(|failures| now.saturating_duration_since(failures.last) < FAILURES_END_AFTER);
        let first = series.map_or(now, |failures| failures.first);
        state.failures = Some(Failures { first, last: now });
        drop(state);
        let failing_for = now.saturating_duration_since(first);
        (failing_for / INTERVAL_FRACTION).clamp(REFRESH_INTERVAL, LONGEST_INTERVAL)
    }

    /// Ends the series of failed calls, because the map has changed.
    pub(crate) fn end_failures(&self) {
        self.lock().failures = None;
    }

    /// Subscribes to the result of the next refresh. Subscribe before calling
    /// [`start`](Self::start): then either the running refresh reports, or `start` grants the
    /// permission.
    pub(crate) fn next(&self) -> watch::Receiver<Option<Result<(), StoreError>>> {
        self.result_sender.subscribe()
    }

    /// Returns the result of the last refresh; `None` before the end of the first one.
    pub(crate) fn last(&self) -> Option<Result<(), StoreError>> {
        self.result_sender.borrow().clone()
    }

    fn lock(&self) -> MutexGuard<'_, RefreshState> {
        self.state.lock()
    }
}

impl RefreshGuard {
    /// Reports the result to the waiters.
    pub(crate) fn finish(mut self, result: Result<(), StoreError>) {
        self.result = Some(result);
    }
}

impl Drop for RefreshGuard {
    fn drop(&mut self) {
        let mut state = self.refresh.lock();
        // An abandoned refresh has already lost its permission to another one.
        if state.started == Some(self.started) {
            state.busy = false;
        }
        // Released before the report: a caller in between starts its own refresh, and an earlier
        // caller receives the report below.
        drop(state);
        let unfinished = || {
            Err(StoreError::new(
                StoreErrorKind::Connection,
                "the slot map of the cluster could not be loaded",
            ))
        };
        let result = self.result.take().unwrap_or_else(unfinished);
        let _previous = self.refresh.result_sender.send_replace(Some(result));
    }
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests {
    use crate::redis::cluster::slot_map_refresh::*;

    #[test]
    fn refreshes_do_not_overlap_and_respect_interval() {
        let (refresh, now) = (SlotMapRefresh::new(), Instant::now());
        let guard = refresh.start(Duration::ZERO, now).unwrap();
        assert!(refresh.start(Duration::ZERO, now).is_none());
        guard.finish(Ok(()));
        let interval = Duration::from_millis(100);
        assert!(refresh.start(interval, now + interval / 2).is_none());
        assert!(refresh.start(interval, now + interval).is_some());
    }

    #[test]
    fn interval_grows_with_failures_and_is_minimal_after_change() {
        let (refresh, start) = (SlotMapRefresh::new(), Instant::now());
        for number in 0..1_000 {
            let passed = number * Duration::from_millis(200);
            let interval = refresh.interval_after_failure(start + passed);
            if passed <= Duration::from_secs(20) {
                assert_eq!(interval, REFRESH_INTERVAL, "{passed:?}");
            }
        }
        let later = start + Duration::from_secs(200);
        assert_eq!(refresh.interval_after_failure(later), LONGEST_INTERVAL);
        refresh.end_failures();
        assert_eq!(refresh.interval_after_failure(later), REFRESH_INTERVAL);
    }

    #[test]
    fn interval_is_minimal_after_time_without_failures() {
        let (refresh, start) = (SlotMapRefresh::new(), Instant::now());
        for number in 0..100 {
            let at = start + number * FAILURES_END_AFTER;
            assert_eq!(refresh.interval_after_failure(at), REFRESH_INTERVAL);
        }
    }

    #[test]
    fn abandoned_refresh_is_replaced_and_cannot_release_its_successor() {
        let (refresh, now) = (SlotMapRefresh::new(), Instant::now());
        let abandoned = refresh.start(Duration::ZERO, now).unwrap();
        let later = now + ABANDONED_AFTER;
        let _second = refresh.start(Duration::ZERO, later).unwrap();
        drop(abandoned);
        assert!(
            refresh.start(Duration::ZERO, later).is_none(),
            "the second refresh is running"
        );
    }
}
