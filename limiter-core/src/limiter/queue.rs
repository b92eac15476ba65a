//! Who waits for what, in order of arrival.
//!
//! A line is what waits for the same limits of the same keys. Whoever is first in it, and nobody else, has the store asked: for
//! itself, and for those behind it who want the same. The question belongs to the line and not to whoever had it asked: its
//! grants go to those who are first when they come, so that one who leaves meanwhile loses them to the next.
//!
//! A waiter is in its line, or has its answer, and never both. All that changes that is done under one lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use super::wanted::Wanted;
use crate::decision::{Allowed, Decision, Rejection};
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::sync::{Mutex, MutexGuard};
use crate::units::Timestamp;

/// For so many waiters the store is asked at once, at most: a script holds up everybody else on the server.
const LONGEST_RUN: usize = 64;

/// What is waited for: a limit, or several of one decision.
pub(super) type Name = SmallVec<[Identity; 2]>;

/// What a waiter is told in the end.
pub(super) type Answer = Result<Allowed, Rejection>;

/// The lines of those who wait, by what they wait for. An empty line does not exist, but while a question is on its way.
#[derive(Debug)]
pub(super) struct Queues {
    waiting: Mutex<Waiting>,
    max: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: HashMap<Name, Line>,
    /// In all lines and beside them, those included who have their answer and have not taken it.
    count: usize,
    /// How many have ever come, or been asked for.
    tickets: u64,
}

#[derive(Debug, Default)]
struct Line {
    /// By their tickets, which are in order of arrival.
    waiters: BTreeMap<u64, Waiter>,
    /// The question that is on its way.
    asked: Option<Asked>,
    denied: Option<Denied>,
    /// How often permits of it came back: a denial from before the last time is not true any more.
    returns: u64,
}

/// A question that is on its way: its number, and until when it is waited for. It was lost with the runtime in which it was
/// asked if that is over; should it be heard of all the same, what it grants is handed out or given back.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    until: Instant,
}

#[derive(Debug)]
struct Waiter {
    wanted: Arc<Wanted>,
    answer: oneshot::Sender<Answer>,
    called: Arc<Notify>,
}

/// What the store said last to one who wanted this.
#[derive(Clone, Debug)]
struct Denied {
    wanted: Arc<Wanted>,
    decision: Box<Decision>,
    due: Timestamp,
}

/// A place in a line. Whoever has one has to [leave](Self::leave) it.
#[derive(Debug)]
pub(super) struct Place {
    name: Name,
    ticket: u64,
    wanted: Arc<Wanted>,
    answer: oneshot::Receiver<Answer>,
    called: Arc<Notify>,
}

/// How things stand for one who waits.
#[derive(Debug)]
pub(super) enum Turn {
    /// It is over.
    Over(Answer),
    /// Others come before.
    Behind,
    /// It is first, and a question is on its way, which is waited for until this moment.
    Asked(Instant),
    /// It is first, and was denied until this moment.
    Denied(Box<Decision>, Timestamp),
    /// It is first, and has to ask. Permits came back so often before.
    Own(u64),
}

/// A question of a line that is on its way. However it ends, the line goes on.
#[derive(Debug)]
#[must_use = "the line asks again when this is dropped"]
pub(super) struct Asking {
    queues: Arc<Queues>,
    name: Name,
    number: u64,
    /// Of the line, when this began.
    returns: u64,
    pub(super) wanted: Arc<Wanted>,
    /// For so many waiters.
    pub(super) times: usize,
}

/// Permits that may have come back when this is dropped.
#[derive(Debug)]
pub(super) struct ComingBack<'a> {
    queues: &'a Queues,
    name: &'a Name,
}

/// A place beside the lines, which is left when this is dropped.
#[derive(Debug)]
pub(super) struct Resting<'a>(&'a Queues);

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.0.lock().count -= 1;
    }
}

impl Drop for ComingBack<'_> {
    fn drop(&mut self) {
        self.queues.came_back(self.name);
    }
}

impl Queues {
    pub(super) fn new(max: usize) -> Self {
        let waiting = Mutex::default();
        Self { waiting, max }
    }

    /// Whether anybody waits for this.
    pub(super) fn is_waited_for(&self, name: &Name) -> bool {
        self.lock().lines.contains_key(name)
    }

    /// Takes the last place of a line.
    pub(super) fn join(&self, name: Name, wanted: Wanted) -> Result<Place, StoreError> {
        let (wanted, called) = (Arc::new(wanted), Arc::new(Notify::new()));
        let (sender, answer) = oneshot::channel();
        let waiter = Waiter {
            wanted: Arc::clone(&wanted),
            answer: sender,
            called: Arc::clone(&called),
        };
        let mut waiting = self.lock();
        waiting.come(self.max)?;
        waiting.tickets += 1;
        let ticket = waiting.tickets;
        let line = waiting.lines.entry(name.clone()).or_default();
        line.waiters.insert(ticket, waiter);
        Ok(Place {
            name,
            ticket,
            wanted,
            answer,
            called,
        })
    }

    /// Counts one who waits for something else than permits.
    pub(super) fn rest(&self) -> Result<Resting<'_>, StoreError> {
        self.lock().come(self.max)?;
        Ok(Resting(self))
    }

    /// Permits of this came back: whoever is first asks anew.
    pub(super) fn came_back(&self, name: &Name) {
        if let Some(line) = self.lock().lines.get_mut(name) {
            line.denied = None;
            line.returns += 1;
            line.call_first();
        }
    }

    /// The same as soon as what is returned is dropped: however a refund ends, and if it is not waited for to its end, the store
    /// may have made it.
    #[must_use = "they come back when this is dropped"]
    pub(super) fn coming_back<'a>(&'a self, name: &'a Name) -> ComingBack<'a> {
        ComingBack { queues: self, name }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// One more, where no more than these wait already.
    fn come(&mut self, max: usize) -> Result<(), StoreError> {
        if self.count >= max {
            let detail = format!("{max} calls wait for permits already");
            return Err(StoreError::new(StoreErrorKind::Overloaded, detail));
        }
        self.count += 1;
        Ok(())
    }

    /// Lets go of a line that nobody needs.
    fn tidy(&mut self, name: &Name) {
        let is_over = |line: &Line| line.waiters.is_empty() && line.asked_until().is_none();
        if self.lines.get(name).is_some_and(is_over) {
            self.lines.remove(name);
        }
    }
}

impl Line {
    /// Until when the question is waited for that is on its way.
    fn asked_until(&self) -> Option<Instant> {
        let until = self.asked.map(|asked| asked.until);
        until.filter(|until| *until > Instant::now())
    }

    fn call_first(&self) {
        if let Some((_, first)) = self.waiters.first_key_value() {
            first.called.notify_one();
        }
    }

    /// Tells the first in the line, if it wants what was asked for; else the answer is nobody's.
    fn tell_first(&mut self, wanted: &Wanted, answer: Answer) -> Result<(), Answer> {
        let Some(first) = self.waiters.first_entry() else {
            return Err(answer);
        };
        if *first.get().wanted != *wanted {
            return Err(answer);
        }
        let Waiter {
            answer: told, called, ..
        } = first.remove();
        // Nobody gives his end up before he has left the line, under the lock.
        let told = told.send(answer);
        called.notify_one();
        self.call_first();
        told
    }
}

impl Place {
    pub(super) fn wanted(&self) -> Arc<Wanted> {
        Arc::clone(&self.wanted)
    }

    /// How things stand.
    pub(super) fn look(&mut self, queues: &Queues, now: Timestamp) -> Turn {
        let waiting = queues.lock();
        if let Ok(answer) = self.answer.try_recv() {
            return Turn::Over(answer);
        }
        let Some(line) = waiting.lines.get(&self.name) else {
            return Turn::Behind;
        };
        let is_first = line
            .waiters
            .first_key_value()
            .is_some_and(|(ticket, _)| *ticket == self.ticket);
        if !is_first {
            return Turn::Behind;
        }
        if let Some(until) = line.asked_until() {
            return Turn::Asked(until);
        }
        match &line.denied {
            Some(denied) if denied.due > now && *denied.wanted == *self.wanted => {
                Turn::Denied(denied.decision.clone(), denied.due)
            }
            _ => Turn::Own(line.returns),
        }
    }

    /// Waits until there may be something new to see.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(super) async fn called(&self) {
        self.called.notified().await;
    }

    /// Begins a question, for this waiter, which is first, and for those behind it who want the same. It is waited for until
    /// this moment, and then counts as lost.
    pub(super) fn ask(&self, queues: &Arc<Queues>, until: Instant) -> Asking {
        // What is borrowed beside a permit may well be enough for the others.
        let longest = if self.wanted.is_leased() { 1 } else { LONGEST_RUN };
        let mut waiting = queues.lock();
        waiting.tickets += 1;
        let number = waiting.tickets;
        let line = waiting.lines.entry(self.name.clone()).or_default();
        line.asked = Some(Asked { number, until });
        let others = line.waiters.values().skip(1);
        let others = others.take_while(|waiter| *waiter.wanted == *self.wanted);
        let others = others.take(longest - 1).count();
        Asking {
            queues: Arc::clone(queues),
            name: self.name.clone(),
            number,
            returns: line.returns,
            wanted: Arc::clone(&self.wanted),
            times: 1 + others,
        }
    }

    /// Notes that this waiter, which is first, was denied until this moment, unless permits came back since it had to ask.
    pub(super) fn denied(&self, queues: &Queues, decision: Box<Decision>, due: Timestamp, returns: u64) {
        if let Some(line) = queues.lock().lines.get_mut(&self.name)
            && line.returns == returns
        {
            let wanted = Arc::clone(&self.wanted);
            line.denied = Some(Denied {
                wanted,
                decision,
                due,
            });
        }
    }

    /// Leaves the line. A grant that was not taken goes to the next whom it fits; else it is given back here.
    pub(super) fn leave(&mut self, queues: &Queues) -> Option<Allowed> {
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
                Some(line) => line.tell_first(&self.wanted, answer).err(),
                None => Some(answer),
            };
        }
        waiting.tidy(&self.name);
        untaken.and_then(Result::ok)
    }
}

impl Asking {
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Hands answers out to those who are first now. Returns the grants that fit none of them. `due` says when a denial ends.
    pub(super) fn hand_out(
        &self,
        answers: impl IntoIterator<Item = Result<Decision, Rejection>>,
        due: impl Fn(&Decision) -> Timestamp,
    ) -> Vec<Allowed> {
        let mut waiting = self.queues.lock();
        let line = waiting.lines.entry(self.name.clone()).or_default();
        let is_late = !self.is_of(line);
        let mut untaken = Vec::new();
        for answer in answers {
            match answer.and_then(Decision::require) {
                // What was denied or failed so long ago says nothing of now.
                Err(_) if is_late => break,
                // What came back in the meantime the store may not have seen.
                Err(Rejection::Limited(_)) if line.returns != self.returns => break,
                // What follows is denied too.
                Err(Rejection::Limited(decision)) => {
                    let due = due(&decision);
                    let wanted = Arc::clone(&self.wanted);
                    line.denied = Some(Denied {
                        wanted,
                        decision,
                        due,
                    });
                    break;
                }
                answer => {
                    // A failure is told to nobody but one who wants the same; whoever is first asks for itself.
                    untaken.extend(line.tell_first(&self.wanted, answer).err().and_then(Result::ok));
                }
            }
        }
        untaken
    }

    /// Whether it is the line's question still, and not one that was lost and is heard of late.
    fn is_of(&self, line: &Line) -> bool {
        line.asked.is_some_and(|asked| asked.number == self.number)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut waiting = self.queues.lock();
        if let Some(line) = waiting.lines.get_mut(&self.name)
            && self.is_of(line)
        {
            line.asked = None;
            line.call_first();
        }
        waiting.tidy(&self.name);
    }
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests;
