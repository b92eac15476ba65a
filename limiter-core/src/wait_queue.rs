//! Queues of waiting calls, in order of arrival.
//!
//! A queue contains the calls that wait for the same limits and keys. Only its first waiter queries
//! the store, for itself and for the waiters behind it with the same request. The query belongs to
//! the queue: its grants go to the waiters that are first when the reply arrives, so a grant for a
//! cancelled waiter goes to the next one.
//!
//! Invariant: a waiter is in its queue or has its result, never both. All changes run under one
//! lock. Tests: `wait_queue/tests.rs`; the model checker runs `wait_queue/model.rs`.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use crate::decision::{Allowed, Decision, Rejection};
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::request::owned::OwnedRequest;
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::Timestamp;
use crate::wait_queue::index::QueueIndex;
pub(crate) use crate::wait_queue::pending_query::PendingQuery;
pub(crate) use crate::wait_queue::stall::StallWatch;
pub(crate) use crate::wait_queue::ticket::{Ticket, TicketState};

/// Identifies a queue: the limits of one decision.
pub(crate) type QueueId = SmallVec<[Identity; 2]>;

/// The final result of a waiter.
pub(crate) type WaiterResult = Result<Allowed, Rejection>;

/// All queues by id. An empty queue exists only while a query of it is in flight.
#[derive(Debug)]
pub(crate) struct WaitQueues {
    table: Mutex<QueueTable>,
    max: usize,
}

#[derive(Debug, Default)]
pub(crate) struct QueueTable {
    by_id: HashMap<QueueId, WaitQueue>,
    index: QueueIndex,
    /// Number of waiters inside and outside of the queues, including those that have not yet taken
    /// their result.
    count: usize,
    /// Number of tickets and queries so far.
    tickets: u64,
}

#[derive(Debug, Default)]
struct WaitQueue {
    /// Waiters by ticket number, which is the order of arrival. The first waiter uses the policies
    /// of `last`; later waiters are converted when needed.
    waiters: BTreeMap<u64, QueuedWaiter>,
    /// The request of the newest waiter.
    last: Option<Arc<OwnedRequest>>,
    /// The query in flight.
    pending_query: Option<QueryId>,
    denied: Option<DeniedQuery>,
    /// Number of refunds so far: a denial from before the latest refund is outdated.
    refunds: u64,
}

/// A query in flight: its number and the time until which it is awaited. After that time it is
/// considered lost with its runtime; grants of a late reply are handed out or refunded.
#[derive(Clone, Copy, Debug)]
struct QueryId {
    number: u64,
    until: Instant,
}

#[derive(Debug)]
struct QueuedWaiter {
    request: Arc<OwnedRequest>,
    result: oneshot::Sender<WaiterResult>,
    notified: Arc<Notify>,
}

/// The last denial of the store, and the request that was denied.
#[derive(Clone, Debug)]
struct DeniedQuery {
    request: Arc<OwnedRequest>,
    decision: Box<Decision>,
    times: RetryTimes,
}

/// The times that follow from a denial, by the clock of the limiter. They stay as they are, while
/// the `retry_after` of the denial is outdated for waiters that become first later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTimes {
    /// The time at which permits are due.
    pub(crate) permits: Timestamp,
    /// The time of the next query.
    pub(crate) query: Timestamp,
}

/// Notifies the waiters of a limit about a refund when it is dropped.
#[derive(Debug)]
pub(crate) struct RefundNotifier<'a> {
    queues: &'a WaitQueues,
    id: &'a QueueId,
}

/// A counted place outside of the queues, which is released on drop.
#[derive(Debug)]
pub(crate) struct WaitSlotGuard<'a>(&'a WaitQueues);

impl RetryTimes {
    /// The next query is at the time at which permits are due.
    pub(crate) fn when_due(permits: Timestamp) -> Self {
        let query = permits;
        Self { permits, query }
    }
}

impl Drop for WaitSlotGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().count -= 1;
    }
}

impl Drop for RefundNotifier<'_> {
    fn drop(&mut self) {
        self.queues.notify_refund(self.id);
    }
}

impl WaitQueues {
    pub(crate) fn new(max: usize) -> Self {
        let table = Mutex::default();
        Self { table, max }
    }

    /// True if a call waits in this queue.
    pub(crate) fn has_waiters(&self, id: &QueueId) -> bool {
        self.lock().by_id.contains_key(id)
    }

    /// Adds a waiter at the end of a queue. The queue continues under the policies of the newest
    /// waiter, because a query under outdated policies could block all of them.
    pub(crate) fn join(&self, id: QueueId, request: OwnedRequest) -> Result<Ticket, StoreError> {
        let (request, notified) = (Arc::new(request), Arc::new(Notify::new()));
        let (sender, result) = oneshot::channel();
        let waiter = QueuedWaiter {
            request: Arc::clone(&request),
            result: sender,
            notified: Arc::clone(&notified),
        };
        let mut table = self.lock();
        table.count_waiter(self.max)?;
        table.tickets += 1;
        let ticket = table.tickets;
        let queue = table.queue(&id);
        queue.use_policies_of(&request);
        let waiters_ahead = u32::try_from(queue.waiters.len()).unwrap_or(u32::MAX);
        queue.waiters.insert(ticket, waiter);
        Ok(Ticket {
            id,
            ticket,
            requested: request,
            result,
            notified,
            waiters_ahead,
        })
    }

    /// Counts a call that sleeps without waiting for permits.
    pub(crate) fn count_sleeper(&self) -> Result<WaitSlotGuard<'_>, StoreError> {
        self.lock().count_waiter(self.max)?;
        Ok(WaitSlotGuard(self))
    }

    /// Records that permits of these limits were refunded: the first waiter of each queue that
    /// contains one of them queries the store again.
    pub(crate) fn notify_refund(&self, id: &QueueId) {
        let mut table = self.lock();
        let QueueTable { by_id, index, .. } = &mut *table;
        for identity in id {
            if let Some(queue) = by_id.get_mut([*identity].as_slice()) {
                queue.notify_refund();
            }
            for id in index.with(*identity) {
                if let Some(queue) = by_id.get_mut(id) {
                    queue.notify_refund();
                }
            }
        }
    }

    /// Returns a notifier that calls [`notify_refund`](Self::notify_refund) on drop: the store may
    /// have executed a refund even if the call failed or was cancelled.
    #[must_use = "waiters are notified when this is dropped"]
    pub(crate) fn refund_notifier<'a>(&'a self, id: &'a QueueId) -> RefundNotifier<'a> {
        RefundNotifier { queues: self, id }
    }

    fn lock(&self) -> MutexGuard<'_, QueueTable> {
        self.table.lock()
    }
}

impl QueueTable {
    /// Counts one more waiter, up to `max`.
    fn count_waiter(&mut self, max: usize) -> Result<(), StoreError> {
        if self.count >= max {
            let detail = format!("{max} calls are already waiting; the maximum is reached (max_waiting)");
            return Err(StoreError::new(StoreErrorKind::Overloaded, detail));
        }
        self.count += 1;
        Ok(())
    }

    fn queue(&mut self, id: &QueueId) -> &mut WaitQueue {
        match self.by_id.entry(id.clone()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(vacant) => {
                self.index.add(id);
                vacant.insert(WaitQueue::default())
            }
        }
    }

    /// Removes a queue without waiters and queries.
    fn remove_if_idle(&mut self, id: &QueueId) {
        let is_idle = |queue: &WaitQueue| queue.waiters.is_empty() && queue.query_pending_until().is_none();
        if self.by_id.get(id).is_some_and(is_idle) {
            self.by_id.remove(id);
            self.index.remove(id);
        }
    }
}

impl WaitQueue {
    /// Returns the time until which the query in flight is awaited.
    fn query_pending_until(&self) -> Option<Instant> {
        let until = self.pending_query.map(|pending_query| pending_query.until);
        until.filter(|until| *until > Instant::now())
    }

    fn notify_refund(&mut self) {
        self.denied = None;
        self.refunds += 1;
        self.notify_first();
    }

    /// Two call sites may disagree on a policy and alternate; an arrival therefore converts only
    /// the first waiter.
    fn use_policies_of(&mut self, later: &Arc<OwnedRequest>) {
        let previous = self.last.replace(Arc::clone(later));
        if previous.is_some_and(|previous| !previous.has_policies_of(later)) {
            self.denied = None;
            self.notify_first();
        }
    }

    /// Notifies the first waiter, converted to the newest policies. A waiter that these policies
    /// never admit is rejected, and the next one becomes first.
    fn notify_first(&mut self) {
        let Some(last) = &self.last else { return };
        while let Some(mut first) = self.waiters.first_entry() {
            match first.get_mut().use_policies_of(last) {
                Ok(()) => return first.get().notified.notify_one(),
                Err(never_fits) => _ = first.remove().resolve(Err(never_fits)),
            }
        }
    }

    /// Returns the request of the first waiter and the number of consecutive waiters with that
    /// request, at most `max`.
    fn leading_run(&mut self, max_len: usize) -> Option<(Arc<OwnedRequest>, usize)> {
        let last = self.last.as_ref()?;
        let mut waiters = self.waiters.values_mut();
        let request = Arc::clone(&waiters.next()?.request);
        // A call that also leases tokens may get enough for the other waiters.
        let max_len = if request.is_leased() { 1 } else { max_len };
        let others = waiters.take(max_len - 1).map_while(|waiter| {
            waiter.use_policies_of(last).ok()?;
            (*waiter.request == *request).then_some(())
        });
        let times = 1 + others.count();
        Some((request, times))
    }

    /// Resolves the first waiter if the result applies to its request; otherwise returns the
    /// result.
    fn resolve_first(&mut self, request: &OwnedRequest, result: WaiterResult) -> Result<(), WaiterResult> {
        let Some(first) = self.waiters.first_entry() else {
            return Err(result);
        };
        let first_request = &first.get().request;
        let applies = match result {
            // Policies may change more often than the store replies; equal costs are sufficient for
            // a grant, or no waiter would ever receive one.
            Ok(_) => first_request.has_costs_of(request),
            // The policy determines the consequence of a failure.
            Err(_) => **first_request == *request,
        };
        if !applies {
            return Err(result);
        }
        let sent = first.remove().resolve(result);
        self.notify_first();
        sent
    }
}

impl QueuedWaiter {
    fn use_policies_of(&mut self, later: &OwnedRequest) -> Result<(), Rejection> {
        if !self.request.has_policies_of(later) {
            self.request = Arc::new(self.request.under_policies_of(later)?);
        }
        Ok(())
    }

    /// The receiver is dropped only after the waiter was removed from the queue, under the lock, so
    /// `send` cannot fail.
    fn resolve(self, result: WaiterResult) -> Result<(), WaiterResult> {
        let sent = self.result.send(result);
        self.notified.notify_one();
        sent
    }
}

pub(crate) mod backlog;
pub(crate) mod index;
#[cfg(all(test, shuttle))]
mod model;
pub(crate) mod pending_query;
pub(crate) mod stall;
pub(crate) mod ticket;

#[cfg(test)]
mod tests;
