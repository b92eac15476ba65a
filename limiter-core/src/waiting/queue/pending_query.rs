//! A question that a line has on its way, and to whom its answers go.

use std::sync::Arc;

use crate::decision::{Allowed, Decision, Rejection};
use crate::request::owned::OwnedRequest;
use crate::units::Timestamp;
use crate::waiting::queue::{DeniedQuery, QueueId, WaitQueue, WaitQueues};

/// A question of a line that is on its way. However it ends, the line goes on.
#[derive(Debug)]
#[must_use = "the line asks again when this is dropped"]
pub(crate) struct PendingQuery {
    pub(crate) queues: Arc<WaitQueues>,
    pub(crate) name: QueueId,
    pub(crate) number: u64,
    /// Of the line, when this began.
    pub(crate) returns: u64,
    pub(crate) wanted: Arc<OwnedRequest>,
    /// For so many waiters.
    pub(crate) times: usize,
}

impl PendingQuery {
    pub(crate) fn name(&self) -> &QueueId {
        &self.name
    }

    /// Hands answers out to those who are first now. Returns the grants that fit none of them.
    /// `due` says when a denial ends.
    pub(crate) fn hand_out(
        &self,
        answers: impl IntoIterator<Item = Result<Decision, Rejection>>,
        due: impl Fn(&Decision) -> Timestamp,
    ) -> Vec<Allowed> {
        let mut waiting = self.queues.lock();
        let line = waiting.line(&self.name);
        let is_late = !self.belongs_to(line);
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
                    line.denied = Some(DeniedQuery {
                        wanted,
                        decision,
                        due,
                    });
                    break;
                }
                answer => {
                    // A failure is told to nobody but one who wants the same; whoever is first asks
                    // for itself.
                    untaken.extend(
                        line.resolve_first(&self.wanted, answer)
                            .err()
                            .and_then(Result::ok),
                    );
                }
            }
        }
        untaken
    }

    /// Whether it is the line's question still, and not one that was lost and is heard of late.
    fn belongs_to(&self, line: &WaitQueue) -> bool {
        line.asked.is_some_and(|asked| asked.number == self.number)
    }
}

impl Drop for PendingQuery {
    fn drop(&mut self) {
        let mut waiting = self.queues.lock();
        if let Some(line) = waiting.lines.get_mut(&self.name) {
            if self.belongs_to(line) {
                line.asked = None;
                line.call_first();
            }
        }
        waiting.tidy(&self.name);
    }
}
