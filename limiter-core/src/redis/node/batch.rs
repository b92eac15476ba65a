//! Execution of one batch, from the queue to the replies of its callers.
//!
//! The callers of a batch have different deadlines, and each may leave at any time, but one reply
//! decides for all of them. A task takes the batch, groups its calls (`group.rs`), and sends one
//! call of the script for each group in one pipeline. While it waits, it handles the moments
//! without a reply in order: a late batch releases its slot, a passed deadline counts as a timeout
//! of the connection, and after the last deadline the batch ends.
//!
//! Invariants: nothing is sent for callers that left before. A call is sent again only after a
//! reply that proves that nothing was executed. Each caller receives one reply or error.
//!
//! Tests: `dispatch/tests.rs`, `tests/dispatcher.rs`, and `dispatch/model.rs` (model check).

mod group;

use std::pin::pin;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::task::yield_now;

use crate::error::StoreError;
use crate::observe;
use crate::redis::client::connection::Connection;
use crate::redis::client::failure::Failure;
use crate::redis::dispatch::BatchStart;
use crate::redis::dispatch::queue::QueuedCall;
use crate::redis::node::Node;
use crate::redis::node::batch::group::{BatchGroup, fail, groups_across_slots, groups_by_slot};
use crate::support::real_time::{CallDeadline, reply_until};

/// Time after the last deadline during which a reply is still accepted. Callers poll once more
/// themselves at their deadline.
const GRACE: Duration = Duration::from_millis(10);

/// Takes a batch, sends it and delivers the replies.
pub(crate) async fn execute(node: &Node, start: BatchStart) {
    // Lets ready tasks run first, in particular those that the last batch woke: they may add calls
    // to this batch.
    yield_now().await;
    let Some((entries, mut slot)) = start.take_batch() else {
        return;
    };
    let moments = moments(&entries, slot.late_at());
    let used = OnceLock::new();
    let mut exchange = pin!(exchange(node, entries, &used));
    for (moment, event) in moments {
        if let Some(outcome) = reply_until(moment, exchange.as_mut()).await {
            match outcome {
                BatchOutcome::Answered => node.record_reply(slot.on_reply()),
                BatchOutcome::Unanswered(error) => node.record_failure(&error),
                BatchOutcome::NothingSent => {}
            }
            return;
        }
        match event {
            Event::Late => {
                if let Some((connection, _)) = used.get() {
                    node.discard(connection);
                }
                slot.release();
            }
            Event::Overdue(deadline) => {
                // Otherwise the deadline passed while this process was suspended, before the batch
                // was sent.
                if let Some((connection, _)) = used.get().filter(|(_, sent)| *sent < moment) {
                    connection.timed_out(deadline);
                }
            }
            Event::Abandoned => {}
        }
    }
}

/// Events while no reply arrives.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The batch is late; its slot is released.
    Late,
    /// The deadline of a caller passes.
    Overdue(Duration),
    /// No caller waits any longer.
    Abandoned,
}

/// Returns the events and their moments in order. Callers with equal deadline durations share one
/// event, at the earliest of their deadlines.
fn moments(entries: &[QueuedCall], late_at: Instant) -> SmallVec<[(Instant, Event); 3]> {
    // First and last caller of each deadline duration. Callers are many and durations few, so only
    // durations produce events.
    let mut spans = SmallVec::<[(CallDeadline, CallDeadline); 1]>::new();
    let callers = entries.iter().flat_map(|entry| &entry.callers);
    for wait in callers.map(|caller| caller.wait) {
        match spans
            .iter_mut()
            .find(|(first, _)| first.deadline() == wait.deadline())
        {
            Some((first, _)) if wait.began_before(first) => *first = wait,
            Some((_, last)) if last.began_before(&wait) => *last = wait,
            Some(_) => {}
            None => spans.push((wait, wait)),
        }
    }
    let ends = spans.iter().map(|(_, last)| last.ends() + GRACE);
    let over = ends.fold(late_at, Instant::max);
    let overdue = spans
        .iter()
        .map(|(first, _)| (first.ends(), Event::Overdue(first.deadline())));
    let mut moments: SmallVec<_> = overdue.chain([(late_at, Event::Late)]).collect();
    moments.sort_by_key(|(moment, _)| *moment);
    moments.push((over, Event::Abandoned));
    moments
}

/// Result of a batch with respect to the health of the server.
#[derive(Debug)]
enum BatchOutcome {
    Answered,
    /// No reply, for this reason.
    Unanswered(StoreError),
    NothingSent,
}

/// Sends the calls that are still awaited and delivers the replies. Stores the connection and the
/// moment at which it was acquired in `used`.
async fn exchange(
    node: &Node,
    mut entries: Vec<QueuedCall>,
    used: &OnceLock<(Connection, Instant)>,
) -> BatchOutcome {
    let callers = entries.iter().flat_map(|entry| &entry.callers);
    let deadline = callers.map(|caller| caller.wait.deadline()).min();
    let deadline = deadline.unwrap_or_default();
    let mut connection = match node.connection(deadline).await {
        Ok(connection) => used.get_or_init(|| (connection, Instant::now())).0.clone(),
        Err(error) => {
            fail(entries, &Failure::Unreachable(error.clone()));
            return BatchOutcome::Unanswered(error);
        }
    };
    // Callers that left before anything was sent are not charged.
    entries.retain_mut(QueuedCall::is_awaited);
    if entries.is_empty() {
        return BatchOutcome::NothingSent;
    }
    observe::batch(entries.len());
    let mut waiting = if node.across_slots().are_allowed(Instant::now()) {
        groups_across_slots(entries)
    } else {
        groups_by_slot(entries)
    };
    while !waiting.is_empty() {
        waiting = match send(node, &mut connection, waiting).await {
            Ok(repeated) => repeated,
            Err(outcome) => return outcome,
        };
    }
    BatchOutcome::Answered
}

/// Sends all groups. Returns those to be sent again, since nothing was executed for them.
async fn send(
    node: &Node,
    connection: &mut Connection,
    groups: Vec<BatchGroup>,
) -> Result<Vec<BatchGroup>, BatchOutcome> {
    let now = node.injected();
    let commands = groups.iter().map(|group| group.command(now)).collect();
    let answers = match connection.send_all(commands).await {
        Ok(answers) => answers,
        Err(error) => {
            let outcome = if error.is_io_error() {
                BatchOutcome::Unanswered(error.clone().into())
            } else {
                BatchOutcome::Answered
            };
            let failure = Failure::Answered(error);
            groups.into_iter().for_each(|group| fail(group.entries, &failure));
            return Err(outcome);
        }
    };
    let mut repeated = Vec::new();
    for (group, answer) in groups.into_iter().zip(answers) {
        let (reason, again) = group.finish(answer);
        if let Some(reason) = reason {
            node.across_slots().pause(reason, Instant::now());
        }
        repeated.extend(again);
    }
    Ok(repeated)
}
