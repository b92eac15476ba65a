//! Calls that arrive together leave together.
//!
//! A call that finds nobody on the way to its node is sent at once, by its own future. Others wait
//! in a lane, one for each node and runtime, until a slot is free; then a task of that runtime
//! takes what waits, up to 64 different questions, and has one call of the script answer all of
//! them. Whoever gives a slot back sees to it that the next batch starts.
//!
//! A few slots keep the server busy while answers travel and callers are woken: two where the round
//! trip is short, more as it gets longer, so that nobody waits for a slot longer than a fraction of
//! the round trip. What holds a slot without an answer for far longer than a round trip gives it
//! back, since the connection may be dead. A whole batch does not wait for a slot, as it would not
//! grow by waiting.

pub(crate) mod batch;
pub(crate) mod in_flight;
pub(crate) mod operation;
mod queue;
pub(crate) mod repeat;
#[cfg(test)]
pub(crate) mod repeat_tests;
mod run;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::redis::call_deadline::CallDeadline;
pub(crate) use crate::redis::dispatch::queue::BatchPart;
use crate::redis::dispatch::queue::{BatchCaller, BatchReply, Queue, QueuedCall};
pub(crate) use crate::redis::dispatch::run::QueuedRun;
use crate::redis::script::input::LazyInput;
use crate::support::sync::atomic::{AtomicBool, Ordering};
use crate::support::sync::{Mutex, MutexGuard};

/// Batches on their way, where the round trip takes no time: one is at work on the server while the
/// answers of the other are handed out. One fewer leaves the server idle half of the time, more
/// make the batches smaller.
const FEWEST_SLOTS: u32 = 2;
/// One slot more for each such part of the round trip, so that nobody waits longer for a slot.
const SLOT_EVERY: Duration = Duration::from_micros(250);
/// Slots at most, and whole batches on their way.
const MOST_SLOTS: u32 = 32;
/// A slot is given back after so many round trips without an answer, and after so long at least: a
/// server stands still for a moment now and then.
const LATE_AFTER_ROUND_TRIPS: u32 = 4;
const LATE_AFTER: Duration = Duration::from_millis(25);
/// The same where no round trip is known yet. A network may be as slow, and who takes every first
/// batch for late changes connections before any of them has answered.
const FIRST_LATE_AFTER: Duration = Duration::from_millis(100);

/// The calls of one runtime to one node.
pub(crate) struct BatchQueue {
    state: Mutex<QueueState>,
    /// Whether the last who came asked the same as somebody before. Then the next may do so, too,
    /// and need not make his question; else it is made before the lock is taken, for which others
    /// may wait.
    gathers: AtomicBool,
    start: Box<dyn Fn(BatchStart) + Send + Sync>,
}

#[derive(Debug)]
struct QueueState {
    queue: Queue,
    /// Slots that are taken.
    taken: u32,
    /// Whether somebody is about to take a batch out of the queue.
    starting: bool,
    /// The lone call that holds one of them.
    alone: Option<SoloCall>,
    /// How many calls have left alone.
    left_alone: u64,
    /// The shortest round trip.
    round_trip: Duration,
}

/// A call that left by itself. Nobody has a timer for it, and its caller may not even look at it,
/// so that those who come after it see to it that it keeps no slot for long.
#[derive(Clone, Copy, Debug)]
struct SoloCall {
    number: u64,
    late_at: Instant,
}

/// How a call goes on.
pub(crate) enum Admission {
    /// It is alone, and leaves by itself.
    Alone(InFlightBatch),
    /// It is answered by others. An answer that never comes is an error: whoever was to give it is
    /// gone.
    Waits(oneshot::Receiver<BatchReply>),
}

/// The right to take the next batch. Where it ends unused, its runtime has ended, and nobody else
/// will come: then those who wait are told so.
#[must_use = "those who wait fail when this is dropped"]
pub(crate) struct BatchStart(Option<Arc<BatchQueue>>);

/// A batch, or a lone call, on its way. It makes room for the next as it ends, however it ends.
#[must_use = "the next batch starts when this is dropped"]
pub(crate) struct InFlightBatch {
    lane: Arc<BatchQueue>,
    began: Instant,
    is_held: bool,
    /// The number of the lone call that it is.
    alone: Option<u64>,
}

impl BatchQueue {
    /// `start` has a task take the batch; it may drop the right where there is no runtime to run
    /// it.
    pub(crate) fn new(start: impl Fn(BatchStart) + Send + Sync + 'static) -> Arc<Self> {
        let state = QueueState {
            queue: Queue::default(),
            taken: 0,
            starting: false,
            alone: None,
            left_alone: 0,
            round_trip: Duration::MAX,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            gathers: AtomicBool::new(false),
            start: Box::new(start),
        })
    }

    /// Lets a call go by itself if nobody is on the way, else has it wait with the others.
    pub(crate) fn enter(
        self: &Arc<Self>,
        part: BatchPart,
        question: &impl LazyInput,
        wait: CallDeadline,
    ) -> Admission {
        let (caller, told) = BatchCaller::new(wait);
        let gathers = self.gathers.load(Ordering::Relaxed);
        if !gathers {
            question.question();
        }
        let mut state = self.lock();
        if state.taken == 0 && !state.starting && state.queue.is_empty() {
            return Admission::Alone(state.leave_alone(self));
        }
        let joined = state.queue.push(part, question, caller);
        if joined != gathers {
            self.gathers.store(joined, Ordering::Relaxed);
        }
        self.start_next_batch(state);
        Admission::Waits(told)
    }

    /// Another connection may be longer.
    pub(crate) fn forget_round_trip(&self) {
        self.lock().round_trip = Duration::MAX;
    }

    /// Has the next batch started if it is due.
    fn start_next_batch(self: &Arc<Self>, mut state: MutexGuard<'_, QueueState>) {
        state.let_go_alone();
        if !state.is_due() {
            return;
        }
        state.starting = true;
        drop(state);
        (self.start)(BatchStart(Some(Arc::clone(self))));
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn is_due(&self) -> bool {
        !self.starting && !self.queue.is_empty() && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.taken < self.slots() || (self.queue.is_full() && self.taken < MOST_SLOTS)
    }

    /// The slot of a call that finds nobody on the way.
    fn leave_alone(&mut self, lane: &Arc<BatchQueue>) -> InFlightBatch {
        let mut slot = InFlightBatch::new(lane);
        self.taken = 1;
        self.left_alone += 1;
        self.alone = Some(SoloCall {
            number: self.left_alone,
            late_at: slot.began + self.patience(),
        });
        slot.alone = Some(self.left_alone);
        slot
    }

    /// Takes the slot of a lone call back that is late, if others wait for it.
    fn let_go_alone(&mut self) {
        if let Some(alone) = self.alone {
            if !self.queue.is_empty() && !self.has_room() && Instant::now() >= alone.late_at {
                self.alone = None;
                self.taken -= 1;
            }
        }
    }

    /// How long a slot is kept without an answer.
    fn patience(&self) -> Duration {
        let round_trips = self.round_trip.checked_mul(LATE_AFTER_ROUND_TRIPS);
        round_trips.map_or(FIRST_LATE_AFTER, |patience| patience.max(LATE_AFTER))
    }

    fn slots(&self) -> u32 {
        // A round trip that is not known yet counts as none.
        let round_trip = Some(self.round_trip)
            .filter(|time| *time < Duration::MAX)
            .unwrap_or_default();
        let more = round_trip.as_micros() / SLOT_EVERY.as_micros();
        u32::try_from(more).map_or(MOST_SLOTS, |more| {
            more.saturating_add(FEWEST_SLOTS).min(MOST_SLOTS)
        })
    }
}

impl BatchStart {
    /// Takes what may leave together.
    fn take_batch(mut self) -> Option<(Vec<QueuedCall>, InFlightBatch)> {
        let lane = self.0.take()?;
        let mut state = lane.lock();
        state.starting = false;
        state.taken += 1;
        let entries = state.queue.drain();
        let slot = InFlightBatch::new(&lane);
        lane.start_next_batch(state);
        Some((entries, slot))
    }
}

impl Drop for BatchStart {
    fn drop(&mut self) {
        let Some(lane) = self.0.take() else { return };
        let mut state = lane.lock();
        state.starting = false;
        let lost = std::mem::take(&mut state.queue);
        drop(state);
        // Their callers are woken, which needs no lock.
        drop(lost);
    }
}

impl InFlightBatch {
    fn new(lane: &Arc<BatchQueue>) -> Self {
        Self {
            lane: Arc::clone(lane),
            began: Instant::now(),
            is_held: true,
            alone: None,
        }
    }

    /// When it is late.
    fn late_at(&self) -> Instant {
        self.began + self.lane.lock().patience()
    }

    /// An answer came.
    pub(crate) fn answered(&self) {
        let took = self.began.elapsed();
        let mut state = self.lane.lock();
        state.round_trip = state.round_trip.min(took);
    }

    /// Makes room for the next before this one has ended.
    fn release(&mut self) {
        if !std::mem::take(&mut self.is_held) {
            return;
        }
        let mut state = self.lane.lock();
        if let Some(number) = self.alone {
            let holds_one = state.alone.is_some_and(|alone| alone.number == number);
            if !holds_one {
                return;
            }
            state.alone = None;
        }
        state.taken -= 1;
        self.lane.start_next_batch(state);
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for BatchQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests;
