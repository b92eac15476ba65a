//! What waits to be asked, in order of arrival; who asks the same as somebody before shares that
//! one's entry.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;

use crate::identity::Identity;
use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::node::Failure;
use crate::redis::script::input::{LazyInput, ScriptInput};
use crate::request::Verdict;

/// Different questions that leave together at most …
pub(crate) const MOST_QUESTIONS: usize = 64;
/// … and callers whom they answer: a script holds up everybody else on the server, and its reply is
/// as long.
const MOST_CALLERS: usize = 4_096;

/// What a caller is told.
pub(crate) type BatchReply = Result<Verdict, Failure>;

/// Which part of a node's keys a question is about. What lies in different parts cannot be asked in
/// one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchPart {
    /// 0 on a server that is in no cluster.
    pub(crate) slot: u16,
    /// On behalf of a slot that is moving to the node.
    pub(crate) asking: bool,
}

/// Somebody who waits for a verdict.
#[derive(Debug)]
pub(crate) struct BatchCaller {
    pub(crate) wait: CallDeadline,
    answer: oneshot::Sender<BatchReply>,
}

impl BatchCaller {
    /// And the other end of what he is answered through.
    pub(crate) fn new(wait: CallDeadline) -> (Self, oneshot::Receiver<BatchReply>) {
        let (answer, told) = oneshot::channel();
        (Self { wait, answer }, told)
    }
}

/// One question, and those who ask it.
#[derive(Debug)]
pub(crate) struct QueuedCall {
    pub(crate) part: BatchPart,
    pub(crate) question: Arc<ScriptInput>,
    /// In order of arrival.
    pub(crate) callers: SmallVec<[BatchCaller; 1]>,
}

/// Entries in order of arrival.
///
/// A caller joins an entry only if nothing later touches a key of its question, so each key sees
/// its questions in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: VecDeque<QueuedCall>,
    /// How many entries have left: the number of the first that is here.
    left: u64,
    /// The number of the last entry that touches a limit.
    last: HashTable<(Identity, u64)>,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a whole batch waits.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= MOST_QUESTIONS
    }

    /// Adds one who asks; whether somebody asks the same already.
    pub(crate) fn push(&mut self, part: BatchPart, question: &impl LazyInput, caller: BatchCaller) -> bool {
        if let Some(entry) = self.same(part, question) {
            entry.callers.push(caller);
            return true;
        }
        self.append(QueuedCall {
            part,
            question: Arc::clone(question.question()),
            callers: smallvec![caller],
        });
        false
    }

    /// The entry that asks the same, if it is the last that touches any of the question's limits.
    fn same(&mut self, part: BatchPart, question: &impl LazyInput) -> Option<&mut QueuedCall> {
        let mut last = question.identities().map(|limit| self.last_with(limit));
        let number = last.next()??;
        if last.any(|other| other != Some(number)) {
            return None;
        }
        let place = usize::try_from(number.checked_sub(self.left)?).ok()?;
        let entry = self.entries.get_mut(place)?;
        let is_same = entry.part == part && question.is_same(&entry.question);
        (is_same && entry.callers.len() < MOST_CALLERS).then_some(entry)
    }

    fn last_with(&self, limit: Identity) -> Option<u64> {
        let entry = self.last.find(limit.hash(), |(other, _)| *other == limit);
        entry.map(|(_, number)| *number)
    }

    fn append(&mut self, entry: QueuedCall) {
        let number = self.left + self.entries.len() as u64;
        for limit in entry.question.limits.iter().map(|limit| limit.identity) {
            let (same, hash) = (
                |(other, _): &_| *other == limit,
                |(other, _): &(Identity, _)| other.hash(),
            );
            match self.last.entry(limit.hash(), same, hash) {
                Slot::Occupied(mut entry) => entry.get_mut().1 = number,
                Slot::Vacant(place) => _ = place.insert((limit, number)),
            }
        }
        self.entries.push_back(entry);
    }

    /// Takes out what may leave together, from the front.
    pub(crate) fn drain(&mut self) -> Vec<QueuedCall> {
        let mut callers = 0;
        let fits = |entry: &&QueuedCall| {
            callers += entry.callers.len();
            callers <= MOST_CALLERS
        };
        let count = self.entries.iter().take(MOST_QUESTIONS).take_while(fits).count();
        let batch: Vec<QueuedCall> = self.entries.drain(..count).collect();
        for entry in &batch {
            self.forget(entry);
            self.left += 1;
        }
        batch
    }

    /// Removes the first entry from the index.
    fn forget(&mut self, entry: &QueuedCall) {
        for limit in entry.question.limits.iter().map(|limit| limit.identity) {
            let same = |(other, number): &_| *other == limit && *number == self.left;
            if let Ok(found) = self.last.find_entry(limit.hash(), same) {
                found.remove();
            }
        }
    }
}

impl QueuedCall {
    /// Whether anybody waits for it still; those who do not are let go.
    pub(crate) fn is_awaited(&mut self) -> bool {
        self.callers.retain(|caller| !caller.answer.is_closed());
        !self.callers.is_empty()
    }

    /// Tells each caller his verdict.
    pub(crate) fn send_replies(self, verdicts: impl IntoIterator<Item = BatchReply>) {
        for (caller, verdict) in self.callers.into_iter().zip(verdicts) {
            // One who has gone meanwhile may have been charged.
            let _ = caller.answer.send(verdict);
        }
    }

    /// Tells all callers the same.
    pub(crate) fn fail(self, failure: &Failure) {
        self.send_replies(std::iter::repeat_with(|| Err(failure.clone())));
    }
}
