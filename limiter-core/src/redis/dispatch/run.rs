//! A question that is asked several times in a row enters a lane at once, so that nothing comes in between.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::redis::call_deadline::Wait;
use crate::redis::dispatch::queue::{Answer, Caller, Part};
use crate::redis::dispatch::{Lane, Slot};
use crate::redis::script::input::Drafted;

/// How it goes on.
pub(crate) enum EnteredRun {
    /// It is alone, and leaves by itself.
    Alone(Slot),
    /// It is answered by others, once for each time.
    Waits(Vec<oneshot::Receiver<Answer>>),
}

impl Lane {
    /// As [`enter`](Self::enter), for a question that is asked so many times.
    pub(crate) fn enter_run(
        self: &Arc<Self>,
        part: Part,
        question: &impl Drafted,
        times: usize,
        wait: Wait,
    ) -> EnteredRun {
        let (callers, told): (Vec<_>, _) = (0..times).map(|_| Caller::new(wait)).unzip();
        // Made before the lock is taken, for which others may wait.
        question.question();
        let mut state = self.lock();
        if state.taken == 0 && !state.starting && state.queue.is_empty() {
            return EnteredRun::Alone(state.leave_alone(self));
        }
        for caller in callers {
            state.queue.push(part, question, caller);
        }
        self.go_on(state);
        EnteredRun::Waits(told)
    }
}
