//! A call that a batch decides, as the circuit breaker records it.
//!
//! The batch records its reply once for all callers. A caller records that its deadline has passed,
//! and the result of a probe. A plain value with `Drop` keeps the futures of callers small.

use std::time::Instant;

use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::breaker::Pass;
use crate::redis::client::failure::Failure;
use crate::redis::node::Node;

/// A caller that waits for a batch. Dropped after its deadline, it is a call without a reply.
#[derive(Debug)]
pub(crate) struct BatchedCall<'a> {
    node: &'a Node,
    wait: &'a CallDeadline,
    probe: Option<Box<Instant>>,
}

impl<'a> BatchedCall<'a> {
    pub(crate) fn new(node: &'a Node, pass: Pass<'a>, wait: &'a CallDeadline) -> Self {
        let probe = pass.into_probe();
        Self { node, wait, probe }
    }

    /// Records the reply to a probe. The batch has recorded the replies to other calls.
    pub(crate) fn finish<T>(mut self, answer: Result<T, Failure>) -> Result<T, Failure> {
        if self.probe.is_some() {
            let probe = self.take_pass();
            self.node.record(probe, &answer, self.wait);
        }
        // A reply at the end of the deadline is not a missing reply. Only references are left.
        std::mem::forget(self);
        answer
    }

    fn take_pass(&mut self) -> Pass<'a> {
        self.node.0.breaker.pass(self.probe.take())
    }
}

impl Drop for BatchedCall<'_> {
    fn drop(&mut self) {
        // Dropped without a result, a probe is replaced by the next call.
        let pass = self.take_pass();
        if self.wait.is_overdue() {
            self.node.overdue(Some(pass), self.wait);
        }
    }
}
