//! Operations on the node that owns a slot.

use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::node::{Failure, Node};
use crate::redis::dispatch::BatchPart;
use crate::redis::script::Call;
use crate::redis::script::input::LazyInput;
use crate::redis::topology::slots::slot;
use crate::request::Verdict;

/// An operation on a node. It is repeated on another node only if the reply proves that nothing was
/// executed.
pub(crate) trait NodeOperation: Sync {
    type Output: Send;

    /// Returns the slot of its keys in a cluster.
    fn slot(&self) -> u16;

    /// Returns the deadline of the caller.
    fn wait(&self) -> &CallDeadline;

    /// Executes the operation on a node.
    fn execute(
        &self,
        node: &Node,
        part: BatchPart,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send;
}

/// A decision, which may be sent in a batch.
#[derive(Debug)]
pub(crate) struct DecideOperation<Q> {
    pub(crate) input: Q,
    pub(crate) wait: CallDeadline,
}

impl<Q: LazyInput> NodeOperation for DecideOperation<Q> {
    type Output = Verdict;

    fn slot(&self) -> u16 {
        let keys = &self.input.input().keys;
        slot(keys.first().map_or("", String::as_str))
    }

    fn wait(&self) -> &CallDeadline {
        &self.wait
    }

    async fn execute(&self, node: &Node, part: BatchPart) -> Result<Verdict, Failure> {
        node.decide(part, &self.input, &self.wait).await
    }
}

/// A call of a script outside of batches.
impl NodeOperation for Call<'_> {
    type Output = bb8_redis::redis::Value;

    fn slot(&self) -> u16 {
        slot(self.key())
    }

    fn wait(&self) -> &CallDeadline {
        self.wait()
    }

    async fn execute(&self, node: &Node, part: BatchPart) -> Result<Self::Output, Failure> {
        node.try_run(self, part.asking).await
    }
}
