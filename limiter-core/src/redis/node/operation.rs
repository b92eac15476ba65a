//! Operations on a node, which the route sends to the node that owns their slot.

use bb8_redis::redis::Value;

use crate::redis::client::failure::Failure;
use crate::redis::dispatch::BatchPart;
use crate::redis::node::Node;
use crate::redis::script::Call;
use crate::redis::topology::slots::slot;
use crate::support::real_time::CallDeadline;

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

/// A call of a script outside of batches.
impl NodeOperation for Call<'_> {
    type Output = Value;

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
