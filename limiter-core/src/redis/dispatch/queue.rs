//! Queue of calls that wait for a batch, in order of arrival.
//!
//! Callers with equal requests share an entry, which is sent once with their number. An index
//! contains the last entry that touches each limit, so that a caller finds an equal entry without a
//! search and before its input is built. A batch takes entries from the front, up to a number of
//! requests and of callers.
//!
//! Invariant: requests for one key are decided in order of arrival. Tests: `dispatch/tests.rs`,
//! `tests/dispatcher.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;

use crate::identity::Identity;
use crate::redis::client::failure::Failure;
use crate::redis::dispatch::BatchPart;
use crate::redis::script::wire::{InputDraft, ScriptInput};
use crate::request::Verdict;
use crate::support::real_time::CallDeadline;

/// Upper bound of different requests in a batch.
pub(crate) const MAX_REQUESTS: usize = 64;
/// Upper bound of callers in a batch: the script blocks all other commands of the server, and the
/// length of its reply grows with the callers.
const MAX_CALLERS: usize = 4_096;

/// The reply to one caller.
pub(crate) type BatchReply = Result<Verdict, Failure>;

/// A caller that waits for a verdict.
#[derive(Debug)]
pub(crate) struct BatchCaller {
    pub(crate) wait: CallDeadline,
    reply: oneshot::Sender<BatchReply>,
}

impl BatchCaller {
    /// Creates a caller and the receiver of its reply.
    pub(crate) fn new(wait: CallDeadline) -> (Self, oneshot::Receiver<BatchReply>) {
        let (reply, receiver) = oneshot::channel();
        (Self { wait, reply }, receiver)
    }

    /// Sends the reply. A caller that was cancelled in the meantime may have been charged.
    pub(crate) fn send(self, reply: BatchReply) {
        let _ = self.reply.send(reply);
    }
}

/// One request and its callers.
#[derive(Debug)]
pub(crate) struct QueuedCall {
    pub(crate) part: BatchPart,
    pub(crate) input: Arc<ScriptInput>,
    /// In order of arrival.
    pub(crate) callers: SmallVec<[BatchCaller; 1]>,
}

/// Entries in order of arrival.
///
/// Invariant: a caller joins an entry only if no later entry touches a key of its request, so the
/// requests for one key are decided in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(super) entries: VecDeque<QueuedCall>,
    /// Number of entries that have left; equals the number of the first entry.
    removed: u64,
    /// The number of the last entry that touches each limit.
    last: HashTable<(Identity, u64)>,
}

impl Queue {
    /// Returns whether a full batch waits.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= MAX_REQUESTS
    }

    /// Adds a caller. Returns whether it joined an equal request.
    pub(crate) fn push(&mut self, part: BatchPart, input: &InputDraft<'_, '_>, caller: BatchCaller) -> bool {
        if let Some(entry) = self.joinable(part, input) {
            entry.callers.push(caller);
            return true;
        }
        self.append(QueuedCall {
            part,
            input: Arc::clone(input.input()),
            callers: smallvec![caller],
        });
        false
    }

    /// Returns the entry with an equal request, if no later entry touches one of its limits.
    fn joinable(&mut self, part: BatchPart, input: &InputDraft<'_, '_>) -> Option<&mut QueuedCall> {
        let mut last = input.identities().map(|limit| self.last_with(limit));
        let number = last.next()??;
        if last.any(|other| other != Some(number)) {
            return None;
        }
        let index = usize::try_from(number.checked_sub(self.removed)?).ok()?;
        let entry = self.entries.get_mut(index)?;
        let is_same = entry.part == part && input.is_same(&entry.input);
        (is_same && entry.callers.len() < MAX_CALLERS).then_some(entry)
    }

    fn last_with(&self, limit: Identity) -> Option<u64> {
        let entry = self.last.find(limit.hash(), |(other, _)| *other == limit);
        entry.map(|(_, number)| *number)
    }

    fn append(&mut self, entry: QueuedCall) {
        let number = self.removed + self.entries.len() as u64;
        for limit in entry.input.limits.iter().map(|limit| limit.identity) {
            let (joinable, hash) = (
                |(other, _): &_| *other == limit,
                |(other, _): &(Identity, _)| other.hash(),
            );
            match self.last.entry(limit.hash(), joinable, hash) {
                Slot::Occupied(mut entry) => entry.get_mut().1 = number,
                Slot::Vacant(index) => _ = index.insert((limit, number)),
            }
        }
        self.entries.push_back(entry);
    }

    /// Removes the callers whose deadlines `selects` selects. The other calls keep their order.
    pub(crate) fn remove_callers(&mut self, selects: impl Fn(&CallDeadline) -> bool) -> Vec<BatchCaller> {
        let mut removed = Vec::new();
        for mut entry in std::mem::take(self).entries {
            let (selected, kept): (SmallVec<_>, SmallVec<_>) = entry
                .callers
                .into_iter()
                .partition(|caller| selects(&caller.wait));
            removed.extend::<SmallVec<[BatchCaller; 1]>>(selected);
            entry.callers = kept;
            if !entry.callers.is_empty() {
                self.append(entry);
            }
        }
        removed
    }

    /// Removes the calls of the next batch from the front.
    pub(crate) fn drain(&mut self) -> Vec<QueuedCall> {
        let mut callers = 0;
        let fits = |entry: &&QueuedCall| {
            callers += entry.callers.len();
            callers <= MAX_CALLERS
        };
        let count = self.entries.iter().take(MAX_REQUESTS).take_while(fits).count();
        let batch: Vec<QueuedCall> = self.entries.drain(..count).collect();
        for entry in &batch {
            self.forget(entry);
            self.removed += 1;
        }
        batch
    }

    /// Removes the first entry from the index.
    fn forget(&mut self, entry: &QueuedCall) {
        for limit in entry.input.limits.iter().map(|limit| limit.identity) {
            let joinable = |(other, number): &_| *other == limit && *number == self.removed;
            if let Ok(found) = self.last.find_entry(limit.hash(), joinable) {
                found.remove();
            }
        }
    }
}

impl QueuedCall {
    /// Removes cancelled callers. Returns whether any caller remains.
    pub(crate) fn is_awaited(&mut self) -> bool {
        self.callers.retain(|caller| !caller.reply.is_closed());
        !self.callers.is_empty()
    }

    /// Sends each caller its verdict.
    pub(crate) fn send_replies(self, verdicts: impl IntoIterator<Item = BatchReply>) {
        for (caller, verdict) in self.callers.into_iter().zip(verdicts) {
            caller.send(verdict);
        }
    }

    /// Sends all callers the same failure.
    pub(crate) fn fail(self, failure: &Failure) {
        self.send_replies(std::iter::repeat_with(|| Err(failure.clone())));
    }
}
