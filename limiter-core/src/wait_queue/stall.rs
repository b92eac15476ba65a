//! Detection of a first waiter that is not polled. A future that is kept and not awaited, for
//! example by a `select!`, would block its queue; after a while a waiter behind it queries the
//! store in its place.
//!
//! The order does not change: grants go to the first waiter, polled or not.
//!
//! Tests: `tests/contract/waiting.rs` (`unpolled_waiter_delays_queue_briefly`,
//! `grant_of_cancelled_unpolled_waiter_goes_to_next`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::units::Timestamp;
use crate::wait_queue::{PendingQuery, Ticket, WaitQueue, WaitQueues};

/// Time for which the first waiter may leave a required query undone.
const STALL_AFTER: Duration = Duration::from_secs(1);
/// Additional pause per predecessor, so that in a long queue the waiters do not all check every
/// second.
const PAUSE_PER_WAITER: Duration = Duration::from_millis(1);

/// State of a queue as seen by a waiter behind the first. While it is unchanged, no query was
/// started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueSnapshot {
    first: u64,
    refunds: u64,
    denied_until: Option<Timestamp>,
}

/// A snapshot and the time at which a waiter first saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallWatch {
    queue: QueueSnapshot,
    since: Timestamp,
}

impl WaitQueue {
    /// Returns a snapshot if the first waiter has to query; `None` while a query or a pause is
    /// pending.
    fn stall_snapshot(&self, now: Timestamp) -> Option<QueueSnapshot> {
        let (ticket, first) = self.waiters.first_key_value()?;
        let denial = self
            .denied
            .as_ref()
            .filter(|denial| *denial.request == *first.request);
        let denied_until = denial.map(|denial| denial.times.query);
        let is_pending =
            self.query_pending_until().is_some() || denied_until.is_some_and(|until| until > now);
        (!is_pending).then_some(QueueSnapshot {
            first: *ticket,
            refunds: self.refunds,
            denied_until,
        })
    }
}

impl Ticket {
    /// Returns the pause before a waiter behind the first checks for a stall.
    pub(crate) fn stall_check_pause(&self) -> Duration {
        STALL_AFTER.saturating_add(PAUSE_PER_WAITER.saturating_mul(self.waiters_ahead))
    }

    /// True if the first waiter has had to query for one second and is assumed not to be polled.
    pub(crate) fn is_stalled(
        &self,
        queues: &WaitQueues,
        now: Timestamp,
        stall: &mut Option<StallWatch>,
    ) -> bool {
        let table = queues.lock();
        let queue = table.by_id.get(&self.id);
        let Some(queue) = queue.and_then(|queue| queue.stall_snapshot(now)) else {
            *stall = None;
            return false;
        };
        match stall {
            Some(stall) if stall.queue == queue => {
                let is_due_since = queue.denied_until.map_or(stall.since, |due| due.min(stall.since));
                now >= is_due_since.after(STALL_AFTER)
            }
            _ => {
                *stall = Some(StallWatch { queue, since: now });
                false
            }
        }
    }

    /// Starts a query in place of the first waiter, unless another waiter has started one since the
    /// stall was seen. `until` is the time at which the query is considered lost.
    pub(crate) fn begin_query_for_first(
        &self,
        queues: &Arc<WaitQueues>,
        now: Timestamp,
        stall: Option<StallWatch>,
        until: Instant,
    ) -> Option<PendingQuery> {
        let mut table = queues.lock();
        let queue = table.by_id.get(&self.id)?.stall_snapshot(now)?;
        let is_unchanged = stall.is_some_and(|stall| stall.queue == queue) && queue.first != self.ticket;
        is_unchanged.then(|| self.begin(&mut table, queues, until))
    }
}
