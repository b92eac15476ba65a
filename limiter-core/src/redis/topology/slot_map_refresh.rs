//! Sees to it that one learns the map of slots for all who need it.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::error::{StoreError, StoreErrorKind};
use crate::support::sync::{Mutex, MutexGuard};

/// Who takes longer lives in a runtime that nobody drives.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(2);

/// Whether somebody is learning, and how that ended the last time.
#[derive(Debug)]
pub(crate) struct SlotMapRefresh {
    state: Mutex<RefreshState>,
    learned: watch::Sender<Result<(), StoreError>>,
}

#[derive(Debug, Default)]
struct RefreshState {
    busy: bool,
    started: Option<Instant>,
}

/// The right to learn. It ends with its owner, also when that is a task whose runtime ends, and
/// tells those who wait.
#[derive(Debug)]
#[must_use = "those who wait are told of a failure when this is dropped"]
pub(crate) struct RefreshGuard {
    learner: Arc<SlotMapRefresh>,
    started: Instant,
    result: Option<Result<(), StoreError>>,
}

impl SlotMapRefresh {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            learned: watch::Sender::new(Ok(())),
        })
    }

    /// The right to learn, unless somebody is at it or the last one started less than `interval`
    /// ago.
    pub(crate) fn start(self: &Arc<Self>, interval: Duration, now: Instant) -> Option<RefreshGuard> {
        let mut state = self.lock();
        let since = state
            .started
            .map(|started| now.saturating_duration_since(started));
        let at_it = state.busy && since.is_some_and(|since| since < ABANDONED_AFTER);
        if at_it || since.is_some_and(|since| since < interval) {
            return None;
        }
        *state = RefreshState {
            busy: true,
            started: Some(now),
        };
        Some(RefreshGuard {
            learner: Arc::clone(self),
            started: now,
            result: None,
        })
    }

    /// Tells how the next learning ends. Take it before [`start`](Self::start): then either the one
    /// who is at it will tell, or there is none, and `start` gives the right.
    pub(crate) fn next(&self) -> watch::Receiver<Result<(), StoreError>> {
        self.learned.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, RefreshState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RefreshGuard {
    /// Tells those who wait.
    pub(crate) fn finish(mut self, result: Result<(), StoreError>) {
        self.result = Some(result);
    }
}

impl Drop for RefreshGuard {
    fn drop(&mut self) {
        let mut state = self.learner.lock();
        // One that was given up as abandoned has lost its right to another.
        if state.started == Some(self.started) {
            state.busy = false;
        }
        // Before anybody is told: who comes in between learns for himself, and who came before is
        // told below.
        drop(state);
        let unfinished = || {
            Err(StoreError::new(
                StoreErrorKind::Connection,
                "the map of slots was not learned",
            ))
        };
        let result = self.result.take().unwrap_or_else(unfinished);
        let _previous = self.learner.learned.send_replace(result);
    }
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests {
    use crate::redis::topology::slot_map_refresh::*;

    #[test]
    fn one_learns_at_a_time_and_not_too_often() {
        let (learner, now) = (SlotMapRefresh::new(), Instant::now());
        let learning = learner.start(Duration::ZERO, now).unwrap();
        assert!(learner.start(Duration::ZERO, now).is_none());
        learning.finish(Ok(()));
        let interval = Duration::from_millis(100);
        assert!(learner.start(interval, now + interval / 2).is_none());
        assert!(learner.start(interval, now + interval).is_some());
    }

    #[test]
    fn who_learns_in_a_runtime_that_nobody_drives_is_replaced_and_does_not_disturb() {
        let (learner, now) = (SlotMapRefresh::new(), Instant::now());
        let abandoned = learner.start(Duration::ZERO, now).unwrap();
        let later = now + ABANDONED_AFTER;
        let _second = learner.start(Duration::ZERO, later).unwrap();
        drop(abandoned);
        assert!(
            learner.start(Duration::ZERO, later).is_none(),
            "the second is at it"
        );
    }
}
