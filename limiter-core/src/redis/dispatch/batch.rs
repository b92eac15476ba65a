//! One batch, from the queue to its callers.

use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, Instant};

use bb8_redis::redis::{RedisError, Value};
use smallvec::SmallVec;
use tokio::task::yield_now;

use crate::error::StoreError;
use crate::observe;
use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::connection::Connection;
use crate::redis::client::node::{Failure, Node};
use crate::redis::dispatch::BatchStart;
use crate::redis::dispatch::queue::{BatchPart, QueuedCall};
use crate::redis::script::wire::Item;
use crate::redis::script::{is_unknown, reply, wire};
use crate::support::real_time::timeout_at_pinned;
use crate::units::Timestamp;

/// So often the other tasks may run once a moment has come, before it is taken for true that no
/// answer has: it may lie in the socket of a process that stood still.
const LAST_LOOKS: usize = 3;
/// How long an answer is awaited after the last caller's deadline, who looks once more himself.
const GRACE: Duration = Duration::from_millis(10);

/// Takes a batch and has it answered.
pub(crate) async fn execute(node: &Node, start: BatchStart) {
    // Tasks that are ready to run, those that the last batch has woken above all, may have
    // something to ask.
    yield_now().await;
    let Some((entries, mut slot)) = start.take_batch() else {
        return;
    };
    let mut pass = match node.admit() {
        Ok(pass) => Some(pass),
        Err(failure) => return fail(entries, &failure),
    };
    let moments = moments(&entries, slot.late_at());
    let last_deadline = moments.last().map(|(over, _)| *over - GRACE);
    let used = OnceLock::new();
    let mut exchange = pin!(exchange(node, entries, &used));
    for (moment, event) in moments {
        if let Some(outcome) = await_until(moment, exchange.as_mut()).await {
            match outcome {
                BatchOutcome::Answered => {
                    slot.answered();
                    match pass {
                        Some(pass) => node.answered(Some(pass)),
                        // Too late for some, which says little where others had time for it.
                        None if last_deadline.is_some_and(|last| Instant::now() < last) => node.on_success(),
                        None => {}
                    }
                }
                BatchOutcome::Unanswered(error) => node.failed(pass, Some(&error)),
                BatchOutcome::Unasked => {}
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
                match used.get() {
                    // It passed while this process stood still, before anything was asked.
                    Some((_, sent)) if *sent >= moment => continue,
                    Some((connection, _)) => connection.timed_out(deadline),
                    None => {}
                }
                node.failed(pass.take(), None);
            }
            Event::Over => {}
        }
    }
}

/// What happens while no answer comes.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Others need not wait for it.
    Late,
    /// The deadline of a caller passes.
    Overdue(Duration),
    /// Nobody waits for it any more.
    Over,
}

/// What will happen if no answer comes, and when. Of the callers that have the same time the first
/// one counts.
fn moments(entries: &[QueuedCall], late_at: Instant) -> SmallVec<[(Instant, Event); 3]> {
    // The first and the last to come of those who have the same time. Callers are many and their
    // times few, so moments are made of the times alone.
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
    moments.push((over, Event::Over));
    moments
}

/// What comes by this moment.
async fn await_until<T>(moment: Instant, mut answer: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    if let Ok(answer) = timeout_at_pinned(moment, answer.as_mut()).await {
        return Some(answer);
    }
    for _ in 0..LAST_LOOKS {
        yield_now().await;
        let look = std::future::poll_fn(|context| Poll::Ready(answer.as_mut().poll(context)));
        if let Poll::Ready(answer) = look.await {
            return Some(answer);
        }
    }
    None
}

/// What a batch says about the server.
#[derive(Debug)]
enum BatchOutcome {
    Answered,
    /// For this reason.
    Unanswered(StoreError),
    Unasked,
}

/// Sends what is still awaited, and tells the callers. The connection, and when it was had, is put
/// where it can be seen meanwhile.
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
    // Whoever left before anything is sent is not charged.
    entries.retain_mut(QueuedCall::is_awaited);
    if entries.is_empty() {
        return BatchOutcome::Unasked;
    }
    observe::batch(entries.len());
    let now = node.injected();
    match send(&mut connection, groups(entries), Naming::Hash, now).await {
        // Proof that nothing has run.
        Ok(unknown) if !unknown.is_empty() => match send(&mut connection, unknown, Naming::Text, now).await {
            Ok(_) => BatchOutcome::Answered,
            Err(outcome) => outcome,
        },
        Ok(_) => BatchOutcome::Answered,
        Err(outcome) => outcome,
    }
}

/// How the script is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    Hash,
    Text,
}

/// Has all groups answered; those are left whose script the server does not know by its hash.
async fn send(
    connection: &mut Connection,
    groups: Vec<SlotGroup>,
    naming: Naming,
    now: Option<Timestamp>,
) -> Result<Vec<SlotGroup>, BatchOutcome> {
    let command = |group: &SlotGroup| {
        // The batch has moments of its own, for each caller's deadline.
        let call = wire::call(&items(&group.entries), now, Duration::MAX);
        let command = match naming {
            Naming::Hash => call.by_hash(),
            Naming::Text => call.by_text(),
        };
        (command, group.asking)
    };
    let answers = match connection.send_all(groups.iter().map(command).collect()).await {
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
    let mut unknown = Vec::new();
    for (group, answer) in groups.into_iter().zip(answers) {
        match answer {
            Err(error) if naming == Naming::Hash && is_unknown(&error) => unknown.push(group),
            answer => group.send_reply(answer),
        }
    }
    Ok(unknown)
}

/// Questions about one part of the node's keys, which one call asks.
#[derive(Debug)]
struct SlotGroup {
    entries: Vec<QueuedCall>,
    asking: bool,
}

/// The entries by the part of the node's keys, each part's in their order.
fn groups(mut entries: Vec<QueuedCall>) -> Vec<SlotGroup> {
    // Outside of a cluster there is one part.
    if let Some(BatchPart { asking, .. }) = the_only_part(&entries) {
        return vec![SlotGroup { entries, asking }];
    }
    entries.sort_by_key(|entry| entry.part);
    let mut groups = Vec::new();
    let mut entries = entries.into_iter().peekable();
    while let Some(first) = entries.next() {
        let part = first.part;
        let mut group = vec![first];
        while let Some(next) = entries.next_if(|entry| entry.part == part) {
            group.push(next);
        }
        groups.push(SlotGroup {
            entries: group,
            asking: part.asking,
        });
    }
    groups
}

fn the_only_part(entries: &[QueuedCall]) -> Option<BatchPart> {
    let part = entries.first()?.part;
    entries.iter().all(|entry| entry.part == part).then_some(part)
}

impl SlotGroup {
    fn send_reply(self, answer: Result<Value, RedisError>) {
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => return fail(self.entries, &Failure::Answered(error)),
        };
        match reply::verdicts(&reply, &items(&self.entries)) {
            Ok(verdicts) => {
                for (entry, verdicts) in self.entries.into_iter().zip(verdicts) {
                    entry.send_replies(
                        verdicts
                            .into_iter()
                            .map(|verdict| verdict.map_err(Failure::Undecided)),
                    );
                }
            }
            Err(error) => fail(self.entries, &Failure::Undecided(error)),
        }
    }
}

fn items(entries: &[QueuedCall]) -> Vec<Item<'_>> {
    entries
        .iter()
        .map(|entry| (&*entry.question, entry.callers.len()))
        .collect()
}

fn fail(entries: Vec<QueuedCall>, failure: &Failure) {
    entries.into_iter().for_each(|entry| entry.fail(failure));
}
