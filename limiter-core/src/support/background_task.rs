//! One background task per owner, which another runtime takes over.
//!
//! A task is spawned in the runtime of the call that needs it first. If that runtime ends, the task
//! ends without notice. So it reports progress, and a call after a pause without progress starts
//! the next one; a task that was only slow notices its successor and ends. Tests: below.

use std::time::Duration;

use crate::support::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Timestamp, micros_ceil};

/// Decides which of several tasks is the current one.
#[derive(Debug)]
pub(crate) struct BackgroundTask {
    abandoned_after: Duration,
    /// `abandoned_after`, converted once.
    abandoned_micros: u64,
    /// Time in microseconds by which the current task reports progress; 0 without a task.
    due: AtomicU64,
    /// The number of the current task, the last one that was started.
    number: AtomicU32,
}

/// The number of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskNumber(u32);

impl BackgroundTask {
    /// Creates the state of no task. A task counts as abandoned with its runtime after
    /// `abandoned_after` without progress.
    pub(crate) fn new(abandoned_after: Duration) -> Self {
        Self {
            abandoned_after,
            abandoned_micros: micros_ceil(abandoned_after),
            due: AtomicU64::new(0),
            number: AtomicU32::new(0),
        }
    }

    /// Returns the number of a task that the caller must spawn; `None` if one is running.
    #[inline]
    pub(crate) fn claim(&self, now: Timestamp) -> Option<TaskNumber> {
        let due = self.due.load(Ordering::Relaxed);
        if self.is_running_until(due, now) {
            None
        } else {
            self.claim_from(due, now)
        }
    }

    /// Returns whether a task is running, so that [`claim`](Self::claim) would return `None`.
    #[inline]
    pub(crate) fn is_running(&self, now: Timestamp) -> bool {
        self.is_running_until(self.due.load(Ordering::Relaxed), now)
    }

    #[inline]
    fn is_running_until(&self, due: u64, now: Timestamp) -> bool {
        let micros = now.as_micros();
        // A test's clock may have been set back.
        micros < due && due - micros <= self.abandoned_micros
    }

    /// Returns whether a task was started and has not ended, also if it makes no progress.
    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        self.due.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn claim_from(&self, due: u64, now: Timestamp) -> Option<TaskNumber> {
        let next = now.after(self.abandoned_after).as_micros();
        self.due
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .ok()?;
        let number = self.number.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        Some(TaskNumber(number))
    }

    /// Reports progress. Returns false if another task has taken over; the caller then ends.
    #[must_use]
    pub(crate) fn continues(&self, task: TaskNumber, now: Timestamp) -> bool {
        let is_current = self.number.load(Ordering::Relaxed) == task.0;
        if is_current {
            let due = now.after(self.abandoned_after).as_micros();
            self.due.store(due, Ordering::Relaxed);
        }
        is_current
    }

    /// Records the end of a task. Lets the next [`claim`](Self::claim) succeed, unless another task
    /// has taken over.
    pub(crate) fn end(&self, task: TaskNumber) {
        if self.number.load(Ordering::Relaxed) == task.0 {
            self.release();
        }
    }

    /// Lets the next [`claim`](Self::claim) succeed. Work that was recorded before this call, by a
    /// caller whose claim failed, is visible after it: the task checks for such work before it
    /// ends.
    pub(crate) fn release(&self) {
        self.due.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use crate::support::background_task::*;

    const LATE: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(100_000_000 + seconds * 1_000_000)
    }

    #[test]
    fn running_task_is_not_started_twice() {
        let task = BackgroundTask::new(LATE);
        let first = task.claim(at(0)).unwrap();
        assert_eq!(task.claim(at(4)), None);
        assert!(task.continues(first, at(4)));
        assert_eq!(task.claim(at(8)), None);
    }

    #[test]
    fn abandoned_task_is_replaced_and_ends() {
        let task = BackgroundTask::new(LATE);
        let first = task.claim(at(0)).unwrap();
        let second = task.claim(at(5)).unwrap();
        assert!(!task.continues(first, at(6)));
        assert!(task.continues(second, at(6)));
        assert_eq!(task.claim(at(10)), None);
    }

    #[test]
    fn released_task_is_started_again() {
        let task = BackgroundTask::new(LATE);
        let first = task.claim(at(0)).unwrap();
        task.release();
        assert!(task.claim(at(1)).is_some_and(|second| second != first));
    }

    #[test]
    fn end_of_replaced_task_does_not_end_its_successor() {
        let task = BackgroundTask::new(LATE);
        let first = task.claim(at(0)).unwrap();
        let second = task.claim(at(5)).unwrap();
        task.end(first);
        assert!(task.is_running(at(6)));
        task.end(second);
        assert!(!task.is_started() && task.claim(at(6)).is_some());
    }

    #[test]
    fn clock_set_back_does_not_block_the_next_task() {
        let task = BackgroundTask::new(LATE);
        task.claim(at(60)).unwrap();
        assert!(task.claim(at(0)).is_some());
    }
}
