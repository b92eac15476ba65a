//! Maximum wait of a call.

use std::time::Duration;

use crate::decision::{Decision, Rejection};
use crate::support::sync::atomic::{AtomicBool, Ordering};
use crate::waiting::wait_limit::WaitLimit;

/// Maximum wait of a call, and the slot limit that applies to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitBudget<'a> {
    pub(crate) timeout: Duration,
    /// Maximum wait for a store reply. It exceeds `timeout` if an outer bound shortens the wait
    /// without regard to the store; otherwise a reply within the deadline of the policies would
    /// count as missing.
    pub(crate) max_query_time: Duration,
    pub(crate) wait_limit: Option<&'a WaitLimit>,
    /// Rejects a call at once if its permit is due after its timeout. By default the call waits,
    /// because permits may be refunded before.
    pub(crate) rejects_early: bool,
    /// Set for a wait that follows the registry.
    pub(crate) followed: Option<FollowedWait<'a>>,
}

/// A wait that continues under other policies when the registry replaces them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowedWait<'a> {
    /// True while the call is in its queue. Only then it can be dropped and made again: it has no
    /// grant, and no query of its own that may have charged it.
    pub(crate) is_queued: &'a AtomicBool,
    /// True for a call that has waited under earlier policies, which has counted its trials.
    pub(crate) is_restart: bool,
}

/// Marks a followed wait as queued until it is dropped.
#[derive(Debug)]
pub(crate) struct QueuedMark<'a>(&'a AtomicBool);

impl Drop for QueuedMark<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl<'a> WaitBudget<'a> {
    /// Waits for `timeout` or the shorter `bound`, where store calls have this deadline.
    pub(crate) fn new(
        timeout: Duration,
        bound: Option<Duration>,
        deadline: Duration,
        wait_limit: Option<&'a WaitLimit>,
    ) -> Self {
        let bounded = bound.map_or(timeout, |bound| bound.min(timeout));
        Self {
            timeout: bounded,
            max_query_time: bounded.max(deadline).min(timeout),
            wait_limit,
            rejects_early: false,
            followed: None,
        }
    }

    /// Marks the call as queued, if it waits in the queue.
    pub(crate) fn mark_queued(&self) -> Option<QueuedMark<'a>> {
        let followed = self.followed.filter(|_| !self.timeout.is_zero())?;
        followed.is_queued.store(true, Ordering::Relaxed);
        Some(QueuedMark(followed.is_queued))
    }

    /// Returns whether an earlier attempt of the call has counted its trials.
    pub(crate) fn has_counted_trials(&self) -> bool {
        self.followed.is_some_and(|followed| followed.is_restart)
    }
}

/// Returns the rejection of a call that got no permit within its timeout. A call with a timeout of
/// zero has not waited, so it is denied.
pub(crate) fn no_permit_within(timeout: Duration, denied: Option<Box<Decision>>) -> Rejection {
    match denied {
        Some(denied) if timeout.is_zero() => Rejection::Limited(denied),
        decision => Rejection::TimedOut {
            decision,
            limit: timeout,
        },
    }
}

impl Rejection {
    /// Returns the rejection of a call with this timeout whose last attempt began after this time.
    pub(crate) fn of_whole_wait(self, timeout: Duration, waited: Duration) -> Self {
        match self {
            Self::TimedOut { decision, .. } => Self::TimedOut {
                decision,
                limit: timeout,
            },
            // The last attempt had no time left, so it did not wait.
            Self::Limited(denied) if !timeout.is_zero() && waited >= timeout => Self::TimedOut {
                decision: Some(denied),
                limit: timeout,
            },
            rejection => rejection,
        }
    }
}
