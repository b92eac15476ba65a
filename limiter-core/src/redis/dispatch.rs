//! Batching of concurrent calls to one Redis node.
//!
//! A call to an idle node is sent immediately by its own future. Concurrent calls wait in a queue,
//! one for each node and runtime, until a batch slot is free. Then a task of the runtime takes up
//! to 64 different requests, and one call of the script decides all of them. Releasing a slot
//! starts the next batch.
//!
//! Several slots keep the server busy while replies travel: two for a short round trip, more for a
//! longer one, so that the wait for a slot is a fraction of the round trip. A slot without a reply
//! for much longer than a round trip is released, since the connection may be dead. A full batch
//! does not wait for a slot, since waiting would not make it larger.
//!
//! Invariant: every waiting caller receives a reply or an error. Tests: `tests.rs`, and `model.rs`
//! (model check).

pub(crate) mod queue;
mod run;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::redis::client::connection::Asking;
use crate::redis::client::failure::Failure;
use crate::redis::dispatch::queue::{BatchCaller, BatchReply, Queue, QueuedCall};
pub(crate) use crate::redis::dispatch::run::QueuedRun;
use crate::redis::script::wire::InputDraft;
use crate::support::real_time::CallDeadline;
use crate::support::sync::atomic::{AtomicBool, Ordering};
use crate::support::sync::{Mutex, MutexGuard};

/// Batches in flight for a negligible round trip: the server executes one while the replies of the
/// other are delivered. One slot leaves the server idle half of the time; more slots make the
/// batches smaller.
const MIN_SLOTS: u32 = 2;
/// Round trip time per additional slot; bounds the wait for a slot.
const ROUND_TRIP_PER_SLOT: Duration = Duration::from_micros(250);
/// Upper bound of slots, and of full batches in flight.
const MAX_SLOTS: u32 = 32;
/// A slot is released after this number of round trips without a reply, and after at least
/// `LATE_AFTER`, since a server pauses occasionally.
const LATE_AFTER_ROUND_TRIPS: u32 = 4;
const LATE_AFTER: Duration = Duration::from_millis(25);
/// Replaces `LATE_AFTER` while the round trip is unknown. On a slow network, a shorter bound would
/// discard each connection before its first reply.
const FIRST_LATE_AFTER: Duration = Duration::from_millis(100);

/// The cluster slot of a call. Calls in different parts cannot be decided by one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchPart {
    /// 0 outside of a cluster.
    pub(crate) slot: u16,
    pub(crate) asking: Asking,
}

/// Queue and batch slots of the calls from one runtime to one node.
pub(crate) struct BatchQueue {
    state: Mutex<QueueState>,
    /// True if the last caller joined an equal request. Then the next caller is likely to join it
    /// too and builds its input only if necessary. Otherwise the input is built before the lock is
    /// taken, since building it under the lock delays other callers.
    joins: AtomicBool,
    start: Box<dyn Fn(BatchStart) + Send + Sync>,
}

#[derive(Debug)]
struct QueueState {
    queue: Queue,
    /// Number of occupied slots.
    taken: u32,
    /// True if a task was started that has not taken its batch yet.
    starting: bool,
    /// The call outside of a batch that occupies a slot.
    alone: Option<SoloCall>,
    /// Number of calls that were sent outside of a batch.
    solo_calls: u64,
    /// Shortest round trip so far.
    round_trip: Duration,
}

/// A call that its caller sends itself. Its caller may not be polled and no timer watches it, so
/// later callers release its slot when it is late.
#[derive(Clone, Copy, Debug)]
struct SoloCall {
    number: u64,
    late_at: Instant,
}

/// The next step of a call.
pub(crate) enum Admission {
    /// The caller sends the call itself.
    Alone(InFlightBatch),
    /// A batch decides the call. A closed channel is an error: the runtime of the batch has ended.
    Waits(oneshot::Receiver<BatchReply>),
}

/// Permission to take the next batch. If it is dropped unused, its runtime has ended, and all
/// waiting callers receive an error.
#[must_use = "waiting callers fail when this is dropped"]
pub(crate) struct BatchStart(Option<Arc<BatchQueue>>);

/// A batch or a solo call in flight. Dropping it releases its slot and starts the next batch.
#[must_use = "the next batch starts when this is dropped"]
pub(crate) struct InFlightBatch {
    batch_queue: Arc<BatchQueue>,
    began: Instant,
    is_held: bool,
    /// The number of the solo call.
    alone: Option<u64>,
}

impl BatchQueue {
    /// Creates a queue. `start` spawns a task that executes the batch; it drops the permission if
    /// the runtime has ended.
    pub(crate) fn new(start: impl Fn(BatchStart) + Send + Sync + 'static) -> Arc<Self> {
        let state = QueueState {
            queue: Queue::default(),
            taken: 0,
            starting: false,
            alone: None,
            solo_calls: 0,
            round_trip: Duration::MAX,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            joins: AtomicBool::new(false),
            start: Box::new(start),
        })
    }

    /// Admits a call: it is sent alone if the node is idle, and queued otherwise.
    pub(crate) fn enter(
        self: &Arc<Self>,
        part: BatchPart,
        input: &InputDraft<'_, '_>,
        wait: CallDeadline,
    ) -> Admission {
        let joins = self.joins.load(Ordering::Relaxed);
        if !joins {
            input.input();
        }
        let mut state = self.lock();
        if state.taken == 0 && !state.starting && state.queue.entries.is_empty() {
            return Admission::Alone(state.start_solo_call(self));
        }
        let (caller, reply) = BatchCaller::new(wait);
        let joined = state.queue.push(part, input, caller);
        if joined != joins {
            self.joins.store(joined, Ordering::Relaxed);
        }
        self.start_next_batch(state);
        Admission::Waits(reply)
    }

    /// Discards the measured round trip, since a new connection may be slower.
    pub(crate) fn forget_round_trip(&self) {
        self.lock().round_trip = Duration::MAX;
    }

    /// Fails waiting calls whose deadlines `rejects` selects.
    pub(crate) fn fail_waiting(&self, rejects: impl Fn(&CallDeadline) -> bool, failure: &Failure) {
        // Wakes the callers, which does not need the lock.
        let callers = self.lock().queue.remove_callers(rejects);
        callers
            .into_iter()
            .for_each(|caller| caller.send(Err(failure.clone())));
    }

    /// Starts the next batch if it is due.
    fn start_next_batch(self: &Arc<Self>, mut state: MutexGuard<'_, QueueState>) {
        state.release_late_solo_call();
        if !state.is_due() {
            return;
        }
        state.starting = true;
        drop(state);
        (self.start)(BatchStart(Some(Arc::clone(self))));
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }
}

impl QueueState {
    fn is_due(&self) -> bool {
        !self.starting && !self.queue.entries.is_empty() && self.has_free_slot()
    }

    fn has_free_slot(&self) -> bool {
        self.taken < self.slots() || (self.queue.is_full() && self.taken < MAX_SLOTS)
    }

    /// Occupies the slot of a call to an idle node.
    fn start_solo_call(&mut self, batch_queue: &Arc<BatchQueue>) -> InFlightBatch {
        let mut slot = InFlightBatch::new(batch_queue);
        self.taken = 1;
        self.solo_calls += 1;
        self.alone = Some(SoloCall {
            number: self.solo_calls,
            late_at: slot.began + self.late_after(),
        });
        slot.alone = Some(self.solo_calls);
        slot
    }

    /// Releases the slot of a late solo call if other calls wait for a slot.
    fn release_late_solo_call(&mut self) {
        if let Some(alone) = self.alone {
            if !self.queue.entries.is_empty() && !self.has_free_slot() && Instant::now() >= alone.late_at {
                self.alone = None;
                self.taken -= 1;
            }
        }
    }

    /// Returns the time after which a slot without a reply is released.
    fn late_after(&self) -> Duration {
        let round_trips = self.round_trip.checked_mul(LATE_AFTER_ROUND_TRIPS);
        round_trips.map_or(FIRST_LATE_AFTER, |late_after| late_after.max(LATE_AFTER))
    }

    fn slots(&self) -> u32 {
        // An unknown round trip counts as zero.
        let round_trip = Some(self.round_trip)
            .filter(|time| *time < Duration::MAX)
            .unwrap_or_default();
        let more = round_trip.as_micros() / ROUND_TRIP_PER_SLOT.as_micros();
        u32::try_from(more).map_or(MAX_SLOTS, |more| more.saturating_add(MIN_SLOTS).min(MAX_SLOTS))
    }
}

impl BatchStart {
    /// Takes the calls of the next batch from the queue.
    pub(crate) fn take_batch(mut self) -> Option<(Vec<QueuedCall>, InFlightBatch)> {
        let batch_queue = self.0.take()?;
        let mut state = batch_queue.lock();
        state.starting = false;
        state.taken += 1;
        let entries = state.queue.drain();
        let slot = InFlightBatch::new(&batch_queue);
        batch_queue.start_next_batch(state);
        Some((entries, slot))
    }
}

impl Drop for BatchStart {
    fn drop(&mut self) {
        let Some(batch_queue) = self.0.take() else { return };
        let mut state = batch_queue.lock();
        state.starting = false;
        let lost_calls = std::mem::take(&mut state.queue);
        drop(state);
        // Wakes the callers, which does not need the lock.
        drop(lost_calls);
    }
}

impl InFlightBatch {
    fn new(batch_queue: &Arc<BatchQueue>) -> Self {
        Self {
            batch_queue: Arc::clone(batch_queue),
            began: Instant::now(),
            is_held: true,
            alone: None,
        }
    }

    /// Returns the moment at which the slot counts as late.
    pub(crate) fn late_at(&self) -> Instant {
        self.began + self.batch_queue.lock().late_after()
    }

    /// Records a reply and returns the round trip.
    pub(crate) fn on_reply(&self) -> Duration {
        let took = self.began.elapsed();
        let mut state = self.batch_queue.lock();
        state.round_trip = state.round_trip.min(took);
        took
    }

    /// Releases the slot before the batch has ended.
    pub(crate) fn release(&mut self) {
        if !std::mem::take(&mut self.is_held) {
            return;
        }
        let mut state = self.batch_queue.lock();
        if let Some(number) = self.alone {
            let holds_one = state.alone.is_some_and(|alone| alone.number == number);
            if !holds_one {
                return;
            }
            state.alone = None;
        }
        state.taken -= 1;
        self.batch_queue.start_next_batch(state);
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for BatchQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchQueue")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
pub(crate) mod tests;
