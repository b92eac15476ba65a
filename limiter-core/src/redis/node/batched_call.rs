//! A call that a batch decides, as the circuit breaker records it.
//!
//! The batch records its reply once for all callers. A caller records that its deadline has passed.
//! A plain value with `Drop` keeps the futures of callers small.

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::client::failure::Failure;
use crate::redis::node::Node;
use crate::support::real_time::{CallDeadline, no_answer_within};

/// A caller that waits for a batch. Dropped after its deadline, it is a call without a reply.
#[derive(Debug)]
pub(crate) struct BatchedCall<'a> {
    node: &'a Node,
    wait: &'a CallDeadline,
}

impl<'a> BatchedCall<'a> {
    pub(crate) fn new(node: &'a Node, wait: &'a CallDeadline) -> Self {
        Self { node, wait }
    }

    /// Returns the reply, which the batch has recorded.
    pub(crate) fn finish<T>(self, answer: Result<T, Failure>) -> Result<T, Failure> {
        // A reply at the end of the deadline is not a missing reply. Only references are left.
        std::mem::forget(self);
        answer
    }
}

impl BatchedCall<'_> {
    /// Returns the failure of a call whose batch has ended without a reply to it. The batch ends
    /// shortly after the deadline, and a late caller is polled only then; otherwise its runtime has
    /// ended. The batch may have been sent.
    pub(crate) fn without_reply(self) -> Failure {
        if self.wait.is_overdue() {
            return Failure::Unreachable(no_answer_within(self.wait.deadline()));
        }
        let detail = "the Tokio runtime of the request has ended";
        Failure::Unreachable(StoreError::new(StoreErrorKind::Connection, detail))
    }
}

impl Drop for BatchedCall<'_> {
    fn drop(&mut self) {
        if self.wait.is_overdue() {
            self.node.on_timeout(self.wait);
        }
    }
}
