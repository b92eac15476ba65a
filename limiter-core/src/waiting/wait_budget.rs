//! For how long a call waits, and where.

use std::time::Duration;

use crate::waiting::wait_limit::WaitLimit;

/// For how long a call waits, and in which room, where that is bounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitBudget<'a> {
    pub(crate) timeout: Duration,
    /// For how long it waits for an answer of the store: longer, where somebody cuts its wait short
    /// who knows nothing of the store. Else an answer that takes the time that the policies give it
    /// would count as none.
    pub(crate) asks_up_to: Duration,
    pub(crate) room: Option<&'a WaitLimit>,
    /// A call whose permit is due after its time is rejected at once. Else it waits, since permits
    /// may be refunded before.
    pub(crate) rejects_early: bool,
}

impl<'a> WaitBudget<'a> {
    /// Waits for so long, or for what bounds that, where questions have this deadline.
    pub(crate) fn new(
        timeout: Duration,
        bound: Option<Duration>,
        deadline: Duration,
        room: Option<&'a WaitLimit>,
    ) -> Self {
        let bounded = bound.map_or(timeout, |bound| bound.min(timeout));
        Self {
            timeout: bounded,
            asks_up_to: bounded.max(deadline).min(timeout),
            room,
            rejects_early: false,
        }
    }
}
