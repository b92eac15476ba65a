//! Execution of one request several times in a row, on behalf of queued waiters.
//!
//! The repetitions enter the batch queue of the node under one lock, so that no other request is
//! decided in between. After a failure, the replies to the earlier repetitions are returned,
//! because their grants are valid.
//!
//! Invariant: the result contains at least one reply or is an error. Tests: `node/repeat_tests.rs`,
//! `tests/waiting.rs`.

use std::time::Instant;

use smallvec::SmallVec;

use crate::error::StoreError;
use crate::redis::RedisStore;
use crate::redis::client::failure::Failure;
use crate::redis::dispatch::{BatchPart, QueuedRun};
use crate::redis::node::Node;
use crate::redis::node::NodeOperation;
use crate::redis::node::batched_call::BatchedCall;
use crate::redis::script::reply::{Replies, malformed};
use crate::redis::script::wire::{InputDraft, Operation};
use crate::redis::topology::slots::slot;
use crate::request::{DecisionRequest, Verdict};
use crate::support::real_time::CallDeadline;

/// A request and the number of its repetitions.
#[derive(Debug)]
struct Repeated<'a, 'r> {
    input: InputDraft<'a, 'r>,
    times: usize,
    wait: CallDeadline,
}

impl NodeOperation for Repeated<'_, '_> {
    type Output = Replies;

    fn slot(&self) -> u16 {
        let keys = &self.input.input().keys;
        slot(keys.first().map_or("", String::as_str))
    }

    fn wait(&self) -> &CallDeadline {
        &self.wait
    }

    async fn execute(&self, node: &Node, part: BatchPart) -> Result<Replies, Failure> {
        node.decide_repeated(part, &self.input, self.times, &self.wait)
            .await
    }
}

impl Node {
    /// Decides a request `times` times in a row, in a batch with concurrent requests. Returns the
    /// replies to all repetitions or to the first ones.
    async fn decide_repeated(
        &self,
        part: BatchPart,
        input: &InputDraft<'_, '_>,
        times: usize,
        wait: &CallDeadline,
    ) -> Result<Replies, Failure> {
        let _slot = self.in_flight_slot()?;
        self.admit(wait)?;
        let local = self.local().map_err(Failure::Unreachable)?;
        match local.batch_queue.enter_repeated(part, input, times, *wait) {
            QueuedRun::Alone(slot) => self.decide_alone(slot, part, input.input(), times, wait).await,
            QueuedRun::Waits(receivers) => {
                let call = BatchedCall::new(self, wait);
                let mut verdicts = Replies::new();
                for receiver in receivers {
                    match receiver.await {
                        Ok(Ok(verdict)) => verdicts.push(Ok(verdict)),
                        // Earlier grants are valid.
                        _ if !verdicts.is_empty() => break,
                        Ok(Err(failure)) => return call.finish(Err(failure)),
                        Err(_) => return Err(call.without_reply()),
                    }
                }
                call.finish(Ok(verdicts))
            }
        }
    }
}

impl RedisStore {
    /// Decides a request `times` times in a row for callers of which the first started to wait at
    /// `started`. Returns the replies to all repetitions or to the first ones, at least one.
    pub(crate) async fn decide_run_since(
        &self,
        started: Instant,
        request: &DecisionRequest<'_>,
        times: usize,
    ) -> Result<SmallVec<[Verdict; 1]>, StoreError> {
        let run = Repeated {
            input: InputDraft::new(request, Operation::from(request.mode), &self.namespace),
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
