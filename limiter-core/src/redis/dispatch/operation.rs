//! What is to be done on the node that owns a slot, whichever that is.

use crate::redis::call_deadline::Wait;
use crate::redis::client::node::{Failure, Node};
use crate::redis::dispatch::Part;
use crate::redis::script::Call;
use crate::redis::script::input::Drafted;
use crate::redis::topology::slots::slot;
use crate::request::Verdict;

/// Something that a node is asked for. It is asked again elsewhere only if a node proves that it has done nothing.
pub(crate) trait Errand: Sync {
    type Answer: Send;

    /// Where its keys lie, in a cluster.
    fn slot(&self) -> u16;

    /// How long whoever wants the answer waits for it.
    fn wait(&self) -> &Wait;

    /// Asks a node.
    fn run(&self, node: &Node, part: Part) -> impl Future<Output = Result<Self::Answer, Failure>> + Send;
}

/// A decision, which may travel with others.
#[derive(Debug)]
pub(crate) struct Decision<Q> {
    pub(crate) question: Q,
    pub(crate) wait: Wait,
}

impl<Q: Drafted> Errand for Decision<Q> {
    type Answer = Verdict;

    fn slot(&self) -> u16 {
        let keys = &self.question.question().keys;
        slot(keys.first().map_or("", String::as_str))
    }

    fn wait(&self) -> &Wait {
        &self.wait
    }

    async fn run(&self, node: &Node, part: Part) -> Result<Verdict, Failure> {
        node.decide(part, &self.question, &self.wait).await
    }
}

/// A call of a script that travels alone.
impl Errand for Call<'_> {
    type Answer = bb8_redis::redis::Value;

    fn slot(&self) -> u16 {
        slot(self.key())
    }

    fn wait(&self) -> &Wait {
        self.wait()
    }

    async fn run(&self, node: &Node, part: Part) -> Result<Self::Answer, Failure> {
        node.try_run(self, part.asking).await
    }
}
