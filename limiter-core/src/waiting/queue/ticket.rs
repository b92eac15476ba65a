//! A place in a line, and how things stand for whoever has it.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use crate::decision::{Allowed, Decision};
use crate::request::owned::OwnedRequest;
use crate::units::Timestamp;
use crate::waiting::backlog::{Backlog, BacklogScope};
use crate::waiting::queue::{
    DeniedQuery, PendingQuery, QueryId, QueueId, QueueTable, WaitQueues, WaiterResult,
};

/// For so many waiters the store is asked at once, at most: a script holds up everybody else on the
/// server.
pub(crate) const LONGEST_RUN: usize = 64;

/// A place in a line. Whoever has one has to [leave](Self::leave) it.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) name: QueueId,
    pub(crate) ticket: u64,
    /// As it was when this last looked.
    pub(crate) wanted: Arc<OwnedRequest>,
    pub(crate) answer: oneshot::Receiver<WaiterResult>,
    pub(crate) called: Arc<Notify>,
    /// So many were before it when it came.
    pub(crate) behind: u32,
}

/// How things stand for one who waits.
#[derive(Debug)]
pub(crate) enum TicketState {
    /// It is over.
    Over(WaiterResult),
    /// Others come before.
    Behind,
    /// It is first, and a question is on its way, which is waited for until this moment.
    Asked(Instant),
    /// It is first, was denied, and asks again at this moment.
    Denied(Box<Decision>, Timestamp),
    /// It is first, and has to ask. Permits came back so often before.
    Own(u64),
}

impl Ticket {
    pub(crate) fn request(&self) -> Arc<OwnedRequest> {
        Arc::clone(&self.wanted)
    }

    /// How things stand.
    pub(crate) fn poll_state(&mut self, queues: &WaitQueues, now: Timestamp) -> TicketState {
        let waiting = queues.lock();
        if let Ok(answer) = self.answer.try_recv() {
            return TicketState::Over(answer);
        }
        let Some(line) = waiting.lines.get(&self.name) else {
            return TicketState::Behind;
        };
        match line.waiters.first_key_value() {
            Some((ticket, first)) if *ticket == self.ticket => self.wanted = Arc::clone(&first.wanted),
            _ => return TicketState::Behind,
        }
        if let Some(until) = line.asked_until() {
            return TicketState::Asked(until);
        }
        match &line.denied {
            Some(denied) if denied.due > now && *denied.wanted == *self.wanted => {
                TicketState::Denied(denied.decision.clone(), denied.due)
            }
            _ => TicketState::Own(line.returns),
        }
    }

    /// What others who wait for the same are to be charged under each limit.
    pub(crate) fn others(&self, queues: &WaitQueues, among: BacklogScope) -> SmallVec<[Backlog; 1]> {
        let mut ahead: SmallVec<[Backlog; 1]> = self.name.iter().map(|_| Backlog::default()).collect();
        let waiting = queues.lock();
        let Some(line) = waiting.lines.get(&self.name) else {
            return ahead;
        };
        let tickets = match among {
            BacklogScope::Earlier => ..self.ticket,
            BacklogScope::All => ..u64::MAX,
        };
        let others = line
            .waiters
            .range(tickets)
            .filter(|(ticket, _)| **ticket != self.ticket);
        for (_, other) in others {
            for (ahead, (cost, quota)) in ahead.iter_mut().zip(other.wanted.costs()) {
                ahead.add(cost, quota);
            }
        }
        ahead
    }

    /// Whether nobody else waits for the same.
    pub(crate) fn is_only_waiter(&self, queues: &WaitQueues) -> bool {
        let waiting = queues.lock();
        let line = waiting.lines.get(&self.name);
        line.is_none_or(|line| line.waiters.len() < 2)
    }

    /// Waits until there may be something new to see.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn called(&self) {
        self.called.notified().await;
    }

    /// Begins a question, for this waiter, which is first, and for those behind it who want the
    /// same. It is waited for until this moment, and then counts as lost.
    pub(crate) fn begin_query(&self, queues: &Arc<WaitQueues>, until: Instant) -> PendingQuery {
        self.begin(&mut queues.lock(), queues, until)
    }

    pub(crate) fn begin(
        &self,
        waiting: &mut QueueTable,
        queues: &Arc<WaitQueues>,
        until: Instant,
    ) -> PendingQuery {
        waiting.tickets += 1;
        let number = waiting.tickets;
        let line = waiting.line(&self.name);
        line.asked = Some(QueryId { number, until });
        let run = line.leading_run(LONGEST_RUN);
        let (wanted, times) = run.unwrap_or_else(|| (Arc::clone(&self.wanted), 1));
        PendingQuery {
            queues: Arc::clone(queues),
            name: self.name.clone(),
            number,
            returns: line.returns,
            wanted,
            times,
        }
    }

    /// Notes that this waiter, which is first, was denied, and asks again at this moment, unless
    /// permits came back since it had to ask.
    pub(crate) fn denied(&self, queues: &WaitQueues, decision: Box<Decision>, due: Timestamp, returns: u64) {
        if let Some(line) = queues.lock().lines.get_mut(&self.name) {
            if line.returns == returns {
                let wanted = Arc::clone(&self.wanted);
                line.denied = Some(DeniedQuery {
                    wanted,
                    decision,
                    due,
                });
            }
        }
    }

    /// Leaves the line. A grant that was not taken goes to the next whom it fits; else it is given
    /// back here.
    pub(crate) fn remove(&mut self, queues: &WaitQueues) -> Option<Allowed> {
        let mut waiting = queues.lock();
        waiting.count -= 1;
        let mut untaken = None;
        if let Some(line) = waiting.lines.get_mut(&self.name) {
            let was_first = line
                .waiters
                .first_key_value()
                .is_some_and(|(ticket, _)| *ticket == self.ticket);
            line.waiters.remove(&self.ticket);
            if was_first {
                line.call_first();
            }
        }
        if let Ok(answer @ Ok(_)) = self.answer.try_recv() {
            untaken = match waiting.lines.get_mut(&self.name) {
                Some(line) => line.resolve_first(&self.wanted, answer).err(),
                None => Some(answer),
            };
        }
        waiting.tidy(&self.name);
        untaken.and_then(Result::ok)
    }
}
