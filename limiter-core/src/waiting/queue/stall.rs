//! Whoever is first in a line asks for it, if it is polled. Where it is not (a future that is kept
//! and not awaited, in a `select!` that goes on without it), those behind it notice after a while,
//! and one of them asks in its place.
//!
//! The order stays: what is granted goes to who is first, polled or not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::units::Timestamp;
use crate::waiting::queue::{PendingQuery, Ticket, WaitQueue, WaitQueues};

/// For so long who is first may leave undone what is its turn to do.
const AFTER: Duration = Duration::from_secs(1);
/// Longer by this for each who was before: in a long line not all look every second.
const EACH: Duration = Duration::from_millis(1);

/// A line as one who is behind saw it. As long as nothing of this changes, nobody has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueSnapshot {
    first: u64,
    returns: u64,
    denied_until: Option<Timestamp>,
}

/// How a line stood when one who is behind first saw it so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallWatch {
    line: QueueSnapshot,
    since: Timestamp,
}

impl WaitQueue {
    /// How it stands, where it is the turn of who is first; `None` while something is awaited.
    fn standstill(&self, now: Timestamp) -> Option<QueueSnapshot> {
        let (ticket, first) = self.waiters.first_key_value()?;
        let denied = self
            .denied
            .as_ref()
            .filter(|denied| *denied.wanted == *first.wanted);
        let denied_until = denied.map(|denied| denied.due);
        let is_awaited = self.asked_until().is_some() || denied_until.is_some_and(|until| until > now);
        (!is_awaited).then_some(QueueSnapshot {
            first: *ticket,
            returns: self.returns,
            denied_until,
        })
    }
}

impl Ticket {
    /// How long one who is behind waits before it looks whether the line stands still.
    pub(crate) fn patience(&self) -> Duration {
        AFTER.saturating_add(EACH.saturating_mul(self.behind))
    }

    /// Whether it has been the turn of who is first for so long that it seems not to be polled.
    pub(crate) fn is_stalled(
        &self,
        queues: &WaitQueues,
        now: Timestamp,
        seen: &mut Option<StallWatch>,
    ) -> bool {
        let waiting = queues.lock();
        let line = waiting.lines.get(&self.name);
        let Some(line) = line.and_then(|line| line.standstill(now)) else {
            *seen = None;
            return false;
        };
        match seen {
            Some(seen) if seen.line == line => {
                let is_due_since = line.denied_until.map_or(seen.since, |due| due.min(seen.since));
                now >= is_due_since.after(AFTER)
            }
            _ => {
                *seen = Some(StallWatch { line, since: now });
                false
            }
        }
    }

    /// Begins a question in place of who is first, if nobody has done so since the line was seen to
    /// be held up. It is waited for until this moment.
    pub(crate) fn begin_query_for_first(
        &self,
        queues: &Arc<WaitQueues>,
        now: Timestamp,
        seen: Option<StallWatch>,
        until: Instant,
    ) -> Option<PendingQuery> {
        let mut waiting = queues.lock();
        let line = waiting.lines.get(&self.name)?.standstill(now)?;
        let is_seen = seen.is_some_and(|seen| seen.line == line) && line.first != self.ticket;
        is_seen.then(|| self.begin(&mut waiting, queues, until))
    }
}
