//! The ticket of a waiter, and its state in the queue.
//!
//! A waiter reads its state after each notification: it has its result, is behind others, waits for
//! a query in flight or for the time of the next one, or must query. The query of the first waiter
//! also serves up to `MAX_RUN - 1` waiters behind it with the same request.
//!
//! Invariant: a waiter that leaves passes an unused grant to the next waiter or returns it. Tests:
//! `wait_queue/tests.rs`, `wait_queue/model.rs`, `tests/waiting.rs`.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use crate::decision::{Allowed, Decision};
use crate::request::owned::OwnedRequest;
use crate::units::Timestamp;
use crate::wait_queue::backlog::{Backlog, BacklogScope};
use crate::wait_queue::{
    DeniedQuery, PendingQuery, QueryId, QueueId, QueueTable, RetryTimes, WaitQueues, WaiterResult,
};

/// Maximum number of waiters per query: the script blocks the Redis server while it runs.
pub(crate) const MAX_RUN: usize = 64;

/// A place in a queue. Its holder has to [remove](Self::remove) it.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) id: QueueId,
    pub(crate) ticket: u64,
    /// The request at the last call of `poll_state`.
    pub(crate) requested: Arc<OwnedRequest>,
    pub(crate) result: oneshot::Receiver<WaiterResult>,
    pub(crate) notified: Arc<Notify>,
    /// Number of waiters ahead on arrival.
    pub(crate) waiters_ahead: u32,
}

/// State of a waiter.
#[derive(Debug)]
pub(crate) enum TicketState {
    /// The waiter has its result.
    Resolved(WaiterResult),
    /// Other waiters are ahead.
    Queued,
    /// The waiter is first and a query is in flight, which is awaited until this time.
    QueryPending(Instant),
    /// The waiter is first, was denied, and queries again at the time of the next query.
    RetryAt(Box<Decision>, RetryTimes),
    /// The waiter is first and has to query. Contains the refund count of the queue.
    MustQuery(u64),
}

impl Ticket {
    pub(crate) fn request(&self) -> Arc<OwnedRequest> {
        Arc::clone(&self.requested)
    }

    /// Returns the state of the waiter.
    pub(crate) fn poll_state(&mut self, queues: &WaitQueues, now: Timestamp) -> TicketState {
        let table = queues.lock();
        if let Ok(result) = self.result.try_recv() {
            return TicketState::Resolved(result);
        }
        let Some(queue) = table.by_id.get(&self.id) else {
            return TicketState::Queued;
        };
        match queue.waiters.first_key_value() {
            Some((ticket, first)) if *ticket == self.ticket => self.requested = Arc::clone(&first.request),
            _ => return TicketState::Queued,
        }
        if let Some(until) = queue.query_pending_until() {
            return TicketState::QueryPending(until);
        }
        match &queue.denied {
            Some(denied) if denied.times.query > now && *denied.request == *self.requested => {
                TicketState::RetryAt(denied.decision.clone(), denied.times)
            }
            _ => TicketState::MustQuery(queue.refunds),
        }
    }

    /// Returns the cost of the other waiters under each limit.
    pub(crate) fn backlog_of_others(
        &self,
        queues: &WaitQueues,
        scope: BacklogScope,
    ) -> SmallVec<[Backlog; 1]> {
        let mut backlogs: SmallVec<[Backlog; 1]> = self.id.iter().map(|_| Backlog::default()).collect();
        let table = queues.lock();
        let Some(queue) = table.by_id.get(&self.id) else {
            return backlogs;
        };
        let tickets = match scope {
            BacklogScope::Earlier => ..self.ticket,
            BacklogScope::All => ..u64::MAX,
        };
        let others = queue
            .waiters
            .range(tickets)
            .filter(|(ticket, _)| **ticket != self.ticket);
        for (_, other) in others {
            for (backlog, (cost, quota)) in backlogs.iter_mut().zip(other.request.costs()) {
                backlog.add(cost, quota);
            }
        }
        backlogs
    }

    /// True if no other call waits in the queue.
    pub(crate) fn is_only_waiter(&self, queues: &WaitQueues) -> bool {
        let table = queues.lock();
        let queue = table.by_id.get(&self.id);
        queue.is_none_or(|queue| queue.waiters.len() < 2)
    }

    /// Waits for a change of the state.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn notified(&self) {
        self.notified.notified().await;
    }

    /// Starts a query for this waiter, which is first, and for the waiters behind it with the same
    /// request. At `until` the query is considered lost.
    pub(crate) fn begin_query(&self, queues: &Arc<WaitQueues>, until: Instant) -> PendingQuery {
        self.begin(&mut queues.lock(), queues, until)
    }

    pub(crate) fn begin(
        &self,
        table: &mut QueueTable,
        queues: &Arc<WaitQueues>,
        until: Instant,
    ) -> PendingQuery {
        table.tickets += 1;
        let number = table.tickets;
        let queue = table.queue(&self.id);
        queue.pending_query = Some(QueryId { number, until });
        let run = queue.leading_run(MAX_RUN);
        let (requested, repetitions) = run.unwrap_or_else(|| (Arc::clone(&self.requested), 1));
        PendingQuery {
            queues: Arc::clone(queues),
            id: self.id.clone(),
            number,
            refunds: queue.refunds,
            requested,
            repetitions,
        }
    }

    /// Records a denial of this waiter, which is first, and the times that follow from it, unless
    /// permits were refunded since it had to query.
    pub(crate) fn denied(
        &self,
        queues: &WaitQueues,
        decision: Box<Decision>,
        times: RetryTimes,
        refunds: u64,
    ) {
        if let Some(queue) = queues.lock().by_id.get_mut(&self.id) {
            if queue.refunds == refunds {
                let request = Arc::clone(&self.requested);
                queue.denied = Some(DeniedQuery {
                    request,
                    decision,
                    times,
                });
            }
        }
    }

    /// Leaves the queue. An unused grant goes to the next waiter that it fits, or is returned.
    pub(crate) fn remove(&mut self, queues: &WaitQueues) -> Option<Allowed> {
        let mut table = queues.lock();
        table.count -= 1;
        let mut unused = None;
        if let Some(queue) = table.by_id.get_mut(&self.id) {
            let was_first = queue
                .waiters
                .first_key_value()
                .is_some_and(|(ticket, _)| *ticket == self.ticket);
            queue.waiters.remove(&self.ticket);
            if was_first {
                queue.notify_first();
            }
        }
        if let Ok(result @ Ok(_)) = self.result.try_recv() {
            unused = match table.by_id.get_mut(&self.id) {
                Some(queue) => queue.resolve_first(&self.requested, result).err(),
                None => Some(result),
            };
        }
        table.remove_if_idle(&self.id);
        unused.and_then(Result::ok)
    }
}
