//! Runs the decisions of one pipeline together and keeps their order.
//!
//! A store may decide limits of one key in another order if their numbers differ, or if one of them
//! charges nothing. Such a decision starts after all earlier ones have ended. Tests: below.

use std::future::poll_fn;
use std::task::Poll;

use crate::gateway::resp::reply::{Protocol, Reply};
use crate::gateway::resp::session::PendingReply;
use crate::gateway::resp::throttle_command::ThrottleCommand;

/// Replies in the order of their commands.
#[derive(Default)]
pub(super) struct InOrder {
    replies: Vec<OrderedReply>,
    commands: Vec<ThrottleCommand>,
}

struct OrderedReply {
    protocol: Protocol,
    reply: PendingReply,
    /// True if the decision starts after all earlier ones.
    waits: bool,
}

impl InOrder {
    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    pub(super) fn push(&mut self, protocol: Protocol, reply: PendingReply) {
        let mut waits = false;
        if let PendingReply::Decides { command, .. } = &reply {
            waits = self
                .commands
                .iter()
                .any(|earlier| earlier.conflicts_with(command));
            self.commands.push(command.clone());
        }
        self.replies.push(OrderedReply {
            protocol,
            reply,
            waits,
        });
    }

    /// Waits for all replies. Decisions are polled in order, so that those of one key start in
    /// order.
    pub(super) async fn wait(mut self) -> impl Iterator<Item = (Protocol, Reply)> {
        poll_fn(|context| {
            let mut state = Poll::Ready(());
            for OrderedReply { reply, waits, .. } in &mut self.replies {
                if *waits && state.is_pending() {
                    break;
                }
                if let PendingReply::Decides { decision, .. } = reply {
                    match decision.as_mut().poll(context) {
                        Poll::Ready(decided) => *reply = PendingReply::Ready(decided),
                        Poll::Pending => state = Poll::Pending,
                    }
                }
            }
            state
        })
        .await;
        // All of them are ready now.
        self.replies
            .into_iter()
            .filter_map(|ordered| match ordered.reply {
                PendingReply::Ready(reply) => Some((ordered.protocol, reply)),
                PendingReply::Decides { .. } => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[test]
    fn conflicting_decision_starts_after_all_earlier_ones() {
        let started = Arc::new(AtomicI64::new(0));
        let decides = |key: &str, quantity: &str| {
            let arguments = [key, "1", "1", "1", quantity].map(str::as_bytes);
            let started = Arc::clone(&started);
            PendingReply::Decides {
                command: ThrottleCommand::parse(&arguments).unwrap(),
                decision: Box::pin(async move {
                    let before = started.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    Reply::Integer(100 * before + started.load(Ordering::Relaxed))
                }),
            }
        };
        let mut pending = InOrder::default();
        for (key, quantity) in [("a", "1"), ("b", "0"), ("a", "2"), ("a", "0"), ("c", "1")] {
            pending.push(Protocol::Resp2, decides(key, quantity));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let replies = runtime.block_on(pending.wait());
        // The number of decisions that had started at the start and at the end of each.
        let replies: Vec<Reply> = replies.map(|(_, reply)| reply).collect();
        let expected = [3, 103, 203, 305, 405].map(Reply::Integer);
        assert_eq!(replies, expected);
    }
}
