//! Enters repetitions of a request into a batch queue under one lock, so that no other request is
//! decided in between.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::redis::dispatch::queue::{BatchCaller, BatchReply};
use crate::redis::dispatch::{BatchPart, BatchQueue, InFlightBatch};
use crate::redis::script::wire::InputDraft;
use crate::support::real_time::CallDeadline;

/// The next step of the repetitions.
pub(crate) enum QueuedRun {
    /// The caller sends them itself.
    Alone(InFlightBatch),
    /// Batches decide them; one receiver for each repetition.
    Waits(Vec<oneshot::Receiver<BatchReply>>),
}

impl BatchQueue {
    /// Like [`enter`](Self::enter), for `times` repetitions of a request.
    pub(crate) fn enter_repeated(
        self: &Arc<Self>,
        part: BatchPart,
        input: &InputDraft<'_, '_>,
        times: usize,
        wait: CallDeadline,
    ) -> QueuedRun {
        let (callers, receivers): (Vec<_>, _) = (0..times).map(|_| BatchCaller::new(wait)).unzip();
        // Built before the lock is taken, since building it under the lock delays other callers.
        input.input();
        let mut state = self.lock();
        if state.taken == 0 && !state.starting && state.queue.entries.is_empty() {
            return QueuedRun::Alone(state.start_solo_call(self));
        }
        for caller in callers {
            state.queue.push(part, input, caller);
        }
        self.start_next_batch(state);
        QueuedRun::Waits(receivers)
    }
}
