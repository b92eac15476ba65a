//! What is to be done on the node that owns a slot, whichever that is.

use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::node::{Failure, Node};
use crate::redis::dispatch::BatchPart;
use crate::redis::script::Call;
use crate::redis::script::input::LazyInput;
use crate::redis::topology::slots::slot;
use crate::request::Verdict;

/// Something that a node is asked for. It is asked again elsewhere only if a node proves that it
/// has done nothing.
pub(crate) trait NodeOperation: Sync {
    type Answer: Send;

    /// Where its keys lie, in a cluster.
    fn slot(&self) -> u16;

    /// How long whoever wants the answer waits for it.
    fn wait(&self) -> &CallDeadline;

    /// Asks a node.
    fn execute(
        &self,
        node: &Node,
        part: BatchPart,
    ) -> impl Future<Output = Result<Self::Answer, Failure>> + Send;
}

/// A decision, which may travel with others.
#[derive(Debug)]
pub(crate) struct DecideOperation<Q> {
    pub(crate) question: Q,
    pub(crate) wait: CallDeadline,
}

impl<Q: LazyInput> NodeOperation for DecideOperation<Q> {
    type Answer = Verdict;

    fn slot(&self) -> u16 {
        let keys = &self.question.question().keys;
        slot(keys.first().map_or("", String::as_str))
    }

    fn wait(&self) -> &CallDeadline {
        &self.wait
    }

    async fn execute(&self, node: &Node, part: BatchPart) -> Result<Verdict, Failure> {
        node.decide(part, &self.question, &self.wait).await
    }
}

/// A call of a script that travels alone.
impl NodeOperation for Call<'_> {
    type Answer = bb8_redis::redis::Value;

    fn slot(&self) -> u16 {
        slot(self.key())
    }

    fn wait(&self) -> &CallDeadline {
        self.wait()
    }

    async fn execute(&self, node: &Node, part: BatchPart) -> Result<Self::Answer, Failure> {
        node.try_run(self, part.asking).await
    }
}
