//! Runs the decisions of one pipeline together and keeps their order.

use std::future::poll_fn;
use std::task::Poll;

use crate::gateway::resp::reply::{Protocol, Reply};
use crate::gateway::resp::session::PendingReply;

/// Replies in the order of their commands.
#[derive(Default)]
pub(super) struct InOrder(Vec<(Protocol, PendingReply)>);

impl InOrder {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, protocol: Protocol, reply: PendingReply) {
        self.0.push((protocol, reply));
    }

    /// Waits for all replies. Decisions are polled in order, so that those of one key start in
    /// order.
    pub(super) async fn wait(mut self) -> impl Iterator<Item = (Protocol, Reply)> {
        poll_fn(|context| {
            let mut state = Poll::Ready(());
            for (_, reply) in &mut self.0 {
                if let PendingReply::Decides(decision) = reply {
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
        self.0.into_iter().filter_map(|(protocol, reply)| match reply {
            PendingReply::Ready(reply) => Some((protocol, reply)),
            PendingReply::Decides(_) => None,
        })
    }
}
