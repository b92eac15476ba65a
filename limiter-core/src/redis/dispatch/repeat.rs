//! A question that is asked several times in a row, on behalf of callers who wait in line.

use std::time::Instant;

use smallvec::SmallVec;

use crate::error::StoreError;
use crate::redis::RedisStore;
use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::node::{Failure, Node, nobody_answers};
use crate::redis::dispatch::operation::NodeOperation;
use crate::redis::dispatch::{BatchPart, QueuedRun};
use crate::redis::script::input::{InputDraft, LazyInput, Operation};
use crate::redis::script::reply::{Replies, malformed};
use crate::redis::topology::slots::slot;
use crate::request::{DecisionRequest, Verdict};

/// The question, and how often it is asked.
#[derive(Debug)]
struct Repeated<Q> {
    question: Q,
    times: usize,
    wait: CallDeadline,
}

impl<Q: LazyInput> NodeOperation for Repeated<Q> {
    type Answer = Replies;

    fn slot(&self) -> u16 {
        let keys = &self.question.question().keys;
        slot(keys.first().map_or("", String::as_str))
    }

    fn wait(&self) -> &CallDeadline {
        &self.wait
    }

    async fn execute(&self, node: &Node, part: BatchPart) -> Result<Replies, Failure> {
        node.decide_run(part, &self.question, self.times, &self.wait)
            .await
    }
}

impl Node {
    /// Has a question decided so many times in a row, together with what others ask meanwhile. The
    /// answers are those to all of them, or to the first ones.
    async fn decide_run(
        &self,
        part: BatchPart,
        question: &impl LazyInput,
        times: usize,
        wait: &CallDeadline,
    ) -> Result<Replies, Failure> {
        let _place = self.place()?;
        let local = self.local().map_err(Failure::Unreachable)?;
        match local.lane.enter_run(part, question, times, *wait) {
            QueuedRun::Alone(slot) => {
                self.decide_alone(slot, part, question.question(), times, wait)
                    .await
            }
            QueuedRun::Waits(told) => {
                let mut verdicts = Replies::new();
                for told in told {
                    match told.await.unwrap_or_else(|_| Err(nobody_answers())) {
                        Ok(verdict) => verdicts.push(Ok(verdict)),
                        Err(failure) if verdicts.is_empty() => return Err(failure),
                        // What was granted before is granted.
                        Err(_) => break,
                    }
                }
                Ok(verdicts)
            }
        }
    }
}

impl RedisStore {
    /// Decides a request so many times in a row, for callers the first of whom has waited since
    /// `started`. The answers are those to all of them, or to the first ones; there is one at
    /// least.
    pub(crate) async fn decide_run_since(
        &self,
        started: Instant,
        request: &DecisionRequest<'_>,
        times: usize,
    ) -> Result<SmallVec<[Verdict; 1]>, StoreError> {
        let run = Repeated {
            question: InputDraft::new(request, Operation::from(request.mode), &self.namespace),
            times,
            wait: CallDeadline::since(started, request.deadline()),
        };
        let mut verdicts = SmallVec::new();
        for verdict in self.route.run(&run).await? {
            match verdict {
                Ok(verdict) => verdicts.push(verdict),
                Err(error) if verdicts.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        if verdicts.is_empty() {
            return Err(malformed());
        }
        Ok(verdicts)
    }
}
