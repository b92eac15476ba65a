//! A store query in flight for a queue, and the distribution of its results.
//!
//! Grants go to the waiters that are first when the reply arrives, so a cancelled waiter does not
//! lose its grant. A denial is ignored if permits were refunded since the query started, or if the
//! queue has given the query up as lost. When the query is dropped, the queue queries again.
//!
//! Invariant: each grant goes to one waiter or is returned for a refund. Tests:
//! `wait_queue/tests.rs`, `wait_queue/model.rs`, `tests/waiting.rs`.

use std::sync::Arc;

use crate::decision::{Allowed, Decision, Rejection};
use crate::request::owned::OwnedRequest;
use crate::wait_queue::{DeniedQuery, QueueId, RetryTimes, WaitQueue, WaitQueues};

/// A query in flight for a queue. When it is dropped, the queue continues.
#[derive(Debug)]
#[must_use = "the queue queries again when this is dropped"]
pub(crate) struct PendingQuery {
    pub(crate) queues: Arc<WaitQueues>,
    pub(crate) id: QueueId,
    pub(crate) number: u64,
    /// Refund count of the queue at the start of the query.
    pub(crate) refunds: u64,
    pub(crate) requested: Arc<OwnedRequest>,
    /// Number of waiters that the query serves.
    pub(crate) repetitions: usize,
}

impl PendingQuery {
    pub(crate) fn id(&self) -> &QueueId {
        &self.id
    }

    /// Hands results out to the waiters that are first now. Returns the grants that no waiter took.
    /// `times` returns the times that follow from a denial.
    pub(crate) fn hand_out(
        &self,
        results: impl IntoIterator<Item = Result<Decision, Rejection>>,
        times: impl Fn(&Decision) -> RetryTimes,
    ) -> Vec<Allowed> {
        let mut table = self.queues.lock();
        let queue = table.queue(&self.id);
        let is_lost = !self.belongs_to(queue);
        let mut unused = Vec::new();
        for result in results {
            match result.and_then(Decision::require) {
                // A denial or failure of a lost query is outdated.
                Err(_) if is_lost => break,
                // The store may have decided before the refund.
                Err(Rejection::Limited(_)) if queue.refunds != self.refunds => break,
                // All following results are denials too.
                Err(Rejection::Limited(decision)) => {
                    let times = times(&decision);
                    let request = Arc::clone(&self.requested);
                    queue.denied = Some(DeniedQuery {
                        request,
                        decision,
                        times,
                    });
                    break;
                }
                result => {
                    // A failure applies only to a waiter with the same request; another first
                    // waiter queries for itself.
                    unused.extend(
                        queue
                            .resolve_first(&self.requested, result)
                            .err()
                            .and_then(Result::ok),
                    );
                }
            }
        }
        unused
    }

    /// True if the queue still waits for this query, and has not given it up as lost.
    fn belongs_to(&self, queue: &WaitQueue) -> bool {
        queue
            .pending_query
            .is_some_and(|pending_query| pending_query.number == self.number)
    }
}

impl Drop for PendingQuery {
    fn drop(&mut self) {
        let mut table = self.queues.lock();
        if let Some(queue) = table.by_id.get_mut(&self.id) {
            if self.belongs_to(queue) {
                queue.pending_query = None;
                queue.notify_first();
            }
        }
        table.remove_if_idle(&self.id);
    }
}
