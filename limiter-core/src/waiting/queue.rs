//! Who waits for what, in order of arrival.
//!
//! A line is what waits for the same limits of the same keys. Whoever is first in it, and nobody
//! else, has the store asked: for itself, and for those behind it who want the same. The question
//! belongs to the line and not to whoever had it asked: its grants go to those who are first when
//! they come, so that one who leaves meanwhile loses them to the next.
//!
//! A waiter is in its line, or has its answer, and never both. All that changes that is done under
//! one lock.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use crate::decision::{Allowed, Decision, Rejection};
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::request::owned::OwnedRequest;
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::Timestamp;
use crate::waiting::queue::index::QueueIndex;
pub(crate) use crate::waiting::queue::pending_query::PendingQuery;
pub(crate) use crate::waiting::queue::stall::StallWatch;
pub(crate) use crate::waiting::queue::ticket::{Ticket, TicketState};

/// What is waited for: a limit, or several of one decision.
pub(crate) type QueueId = SmallVec<[Identity; 2]>;

/// What a waiter is told in the end.
pub(crate) type WaiterResult = Result<Allowed, Rejection>;

/// The lines of those who wait, by what they wait for. An empty line does not exist, but while a
/// question is on its way.
#[derive(Debug)]
pub(crate) struct WaitQueues {
    waiting: Mutex<QueueTable>,
    max: usize,
}

#[derive(Debug, Default)]
pub(crate) struct QueueTable {
    lines: HashMap<QueueId, WaitQueue>,
    together: QueueIndex,
    /// In all lines and beside them, those included who have their answer and have not taken it.
    count: usize,
    /// How many have ever come, or been asked for.
    tickets: u64,
}

#[derive(Debug, Default)]
struct WaitQueue {
    /// By their tickets, which are in order of arrival. Who is first wants what it wants by the
    /// policies of `last`; those behind do so when it matters.
    waiters: BTreeMap<u64, QueuedWaiter>,
    /// What was wanted by who came last.
    last: Option<Arc<OwnedRequest>>,
    /// The question that is on its way.
    asked: Option<QueryId>,
    denied: Option<DeniedQuery>,
    /// How often permits of it came back: a denial from before the last time is not true any more.
    returns: u64,
}

/// A question that is on its way: its number, and until when it is waited for. It was lost with the
/// runtime in which it was asked if that is over; should it be heard of all the same, what it
/// grants is handed out or given back.
#[derive(Clone, Copy, Debug)]
struct QueryId {
    number: u64,
    until: Instant,
}

#[derive(Debug)]
struct QueuedWaiter {
    wanted: Arc<OwnedRequest>,
    answer: oneshot::Sender<WaiterResult>,
    called: Arc<Notify>,
}

/// What the store said last to one who wanted this.
#[derive(Clone, Debug)]
struct DeniedQuery {
    wanted: Arc<OwnedRequest>,
    decision: Box<Decision>,
    /// When it is asked again.
    due: Timestamp,
}

/// Permits that may have come back when this is dropped.
#[derive(Debug)]
pub(crate) struct RefundNotifier<'a> {
    queues: &'a WaitQueues,
    name: &'a QueueId,
}

/// A place beside the lines, which is left when this is dropped.
#[derive(Debug)]
pub(crate) struct WaitSlotGuard<'a>(&'a WaitQueues);

impl Drop for WaitSlotGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().count -= 1;
    }
}

impl Drop for RefundNotifier<'_> {
    fn drop(&mut self) {
        self.queues.came_back(self.name);
    }
}

impl WaitQueues {
    pub(crate) fn new(max: usize) -> Self {
        let waiting = Mutex::default();
        Self { waiting, max }
    }

    /// Whether anybody waits for this.
    pub(crate) fn has_waiters(&self, name: &QueueId) -> bool {
        self.lock().lines.contains_key(name)
    }

    /// Takes the last place of a line. Policies may have changed while calls wait: then the line is
    /// asked for under those of who came last, lest what is due under the old ones holds up
    /// everybody.
    pub(crate) fn join(&self, name: QueueId, wanted: OwnedRequest) -> Result<Ticket, StoreError> {
        let (wanted, called) = (Arc::new(wanted), Arc::new(Notify::new()));
        let (sender, answer) = oneshot::channel();
        let waiter = QueuedWaiter {
            wanted: Arc::clone(&wanted),
            answer: sender,
            called: Arc::clone(&called),
        };
        let mut waiting = self.lock();
        waiting.come(self.max)?;
        waiting.tickets += 1;
        let ticket = waiting.tickets;
        let line = waiting.line(&name);
        line.go_on_under(&wanted);
        let behind = u32::try_from(line.waiters.len()).unwrap_or(u32::MAX);
        line.waiters.insert(ticket, waiter);
        Ok(Ticket {
            name,
            ticket,
            wanted,
            answer,
            called,
            behind,
        })
    }

    /// Counts one who waits for something else than permits.
    pub(crate) fn rest(&self) -> Result<WaitSlotGuard<'_>, StoreError> {
        self.lock().come(self.max)?;
        Ok(WaitSlotGuard(self))
    }

    /// Permits of each of these limits came back: whoever is first in a line for one of them, alone
    /// or beside others, asks anew.
    pub(crate) fn came_back(&self, name: &QueueId) {
        let mut waiting = self.lock();
        let QueueTable { lines, together, .. } = &mut *waiting;
        for identity in name {
            if let Some(line) = lines.get_mut([*identity].as_slice()) {
                line.came_back();
            }
            for name in together.with(*identity) {
                if let Some(line) = lines.get_mut(name) {
                    line.came_back();
                }
            }
        }
    }

    /// The same as soon as what is returned is dropped: however a refund ends, and if it is not
    /// waited for to its end, the store may have made it.
    #[must_use = "they come back when this is dropped"]
    pub(crate) fn coming_back<'a>(&'a self, name: &'a QueueId) -> RefundNotifier<'a> {
        RefundNotifier { queues: self, name }
    }

    fn lock(&self) -> MutexGuard<'_, QueueTable> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueTable {
    /// One more, where no more than these wait already.
    fn come(&mut self, max: usize) -> Result<(), StoreError> {
        if self.count >= max {
            let detail = format!("{max} calls are waiting already (max_waiting)");
            return Err(StoreError::new(StoreErrorKind::Overloaded, detail));
        }
        self.count += 1;
        Ok(())
    }

    fn line(&mut self, name: &QueueId) -> &mut WaitQueue {
        match self.lines.entry(name.clone()) {
            Entry::Occupied(line) => line.into_mut(),
            Entry::Vacant(place) => {
                self.together.add(name);
                place.insert(WaitQueue::default())
            }
        }
    }

    /// Lets go of a line that nobody needs.
    fn tidy(&mut self, name: &QueueId) {
        let is_over = |line: &WaitQueue| line.waiters.is_empty() && line.asked_until().is_none();
        if self.lines.get(name).is_some_and(is_over) {
            self.lines.remove(name);
            self.together.remove(name);
        }
    }
}

impl WaitQueue {
    /// Until when the question is waited for that is on its way.
    fn asked_until(&self) -> Option<Instant> {
        let until = self.asked.map(|asked| asked.until);
        until.filter(|until| *until > Instant::now())
    }

    fn came_back(&mut self) {
        self.denied = None;
        self.returns += 1;
        self.call_first();
    }

    /// Two places in a program may not agree on a policy, and take turns: so an arrival converts
    /// who is first and nobody else.
    fn go_on_under(&mut self, later: &Arc<OwnedRequest>) {
        let before = self.last.replace(Arc::clone(later));
        if before.is_some_and(|before| !before.has_policies_of(later)) {
            self.denied = None;
            self.call_first();
        }
    }

    /// Calls who is first, by the policies of who came last; who can never be served by these is
    /// told so, and the next is first.
    fn call_first(&mut self) {
        let Some(last) = &self.last else { return };
        while let Some(mut first) = self.waiters.first_entry() {
            match first.get_mut().go_on_under(last) {
                Ok(()) => return first.get().called.notify_one(),
                Err(never_fits) => _ = first.remove().resolve(Err(never_fits)),
            }
        }
    }

    /// What is wanted by who is first, and by how many who come after it in a row, at most so many
    /// in all.
    fn leading_run(&mut self, longest: usize) -> Option<(Arc<OwnedRequest>, usize)> {
        let last = self.last.as_ref()?;
        let mut waiters = self.waiters.values_mut();
        let wanted = Arc::clone(&waiters.next()?.wanted);
        // What is borrowed beside a permit may well be enough for the others.
        let longest = if wanted.is_leased() { 1 } else { longest };
        let others = waiters.take(longest - 1).map_while(|waiter| {
            waiter.go_on_under(last).ok()?;
            (*waiter.wanted == *wanted).then_some(())
        });
        let times = 1 + others.count();
        Some((wanted, times))
    }

    /// Tells the first in the line, if it wants what was asked for; else the answer is nobody's.
    fn resolve_first(&mut self, wanted: &OwnedRequest, answer: WaiterResult) -> Result<(), WaiterResult> {
        let Some(first) = self.waiters.first_entry() else {
            return Err(answer);
        };
        let first_wants = &first.get().wanted;
        let is_its = match answer {
            // Policies that change more often than a question is answered must not keep its grants
            // from everybody.
            Ok(_) => first_wants.has_costs_of(wanted),
            // What a failure means is up to the policy.
            Err(_) => **first_wants == *wanted,
        };
        if !is_its {
            return Err(answer);
        }
        let told = first.remove().resolve(answer);
        self.call_first();
        told
    }
}

impl QueuedWaiter {
    fn go_on_under(&mut self, later: &OwnedRequest) -> Result<(), Rejection> {
        if !self.wanted.has_policies_of(later) {
            self.wanted = Arc::new(self.wanted.under_policies_of(later)?);
        }
        Ok(())
    }

    /// Nobody gives his end up before he has left the line, under the lock.
    fn resolve(self, answer: WaiterResult) -> Result<(), WaiterResult> {
        let told = self.answer.send(answer);
        self.called.notify_one();
        told
    }
}

pub(crate) mod index;
#[cfg(all(test, shuttle))]
mod model;
pub(crate) mod pending_query;
pub(crate) mod stall;
pub(crate) mod ticket;

#[cfg(test)]
mod tests;
