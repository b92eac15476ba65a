//! A question that is asked several times in a row enters a lane at once, so that nothing comes in
//! between.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::redis::call_deadline::CallDeadline;
use crate::redis::dispatch::queue::{BatchCaller, BatchPart, BatchReply};
use crate::redis::dispatch::{BatchQueue, InFlightBatch};
use crate::redis::script::input::LazyInput;

/// How it goes on.
pub(crate) enum QueuedRun {
    /// It is alone, and leaves by itself.
    Alone(InFlightBatch),
    /// It is answered by others, once for each time.
    Waits(Vec<oneshot::Receiver<BatchReply>>),
}

impl BatchQueue {
    /// As [`enter`](Self::enter), for a question that is asked so many times.
    pub(crate) fn enter_run(
        self: &Arc<Self>,
        part: BatchPart,
        question: &impl LazyInput,
        times: usize,
        wait: CallDeadline,
    ) -> QueuedRun {
        let (callers, told): (Vec<_>, _) = (0..times).map(|_| BatchCaller::new(wait)).unzip();
        // Made before the lock is taken, for which others may wait.
        question.question();
        let mut state = self.lock();
        if state.taken == 0 && !state.starting && state.queue.is_empty() {
            return QueuedRun::Alone(state.leave_alone(self));
        }
        for caller in callers {
            state.queue.push(part, question, caller);
        }
        self.start_next_batch(state);
        QueuedRun::Waits(told)
    }
}
