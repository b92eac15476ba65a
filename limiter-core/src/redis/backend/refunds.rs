//! Decisions on limits whose refunds are on their way to Redis.
//!
//! Redis denies a call that fits only after a refund if the refund arrives later. A denied call
//! therefore waits for the refunds that were pending at its submission
//! (`redis/pending_refunds.rs`), and Redis decides it once more, within the deadline of the call.
//!
//! Invariant: after a denial by Redis, only another reply of Redis can admit the call. Tests:
//! `tests/reservations.rs`.

use std::time::{Duration, Instant};

use crate::decision::Decisions;
use crate::decision::{Decision, Origin, Rejection};
use crate::identity::Identity;
use crate::redis::RedisBackend;
pub(crate) use crate::redis::pending_refunds::PendingAtSubmission;
use crate::request::DecisionRequest;
use crate::support::real_time::within;

impl RedisBackend {
    /// Announces a refund of these limits, before the task that sends it to Redis runs. Returns the
    /// ticket for [`finish_refund`](Self::finish_refund), which must be called however the refund
    /// ends.
    pub(crate) fn start_refund(&self, limits: &[Identity]) -> u64 {
        self.denials.begin_refund(limits);
        self.refunds.start(limits)
    }

    /// Ends a refund that [`start_refund`](Self::start_refund) has announced.
    pub(crate) fn finish_refund(&self, limits: &[Identity], ticket: u64) {
        self.denials.end_refund(limits);
        self.refunds.finish(limits, ticket);
    }

    /// Decides in Redis. If Redis denies the call, waits until the pending refunds are applied, and
    /// decides once more. Both take no longer than the deadline; without a second reply the denial
    /// is final.
    pub(crate) async fn decide_with_refunds(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
        pending: PendingAtSubmission,
    ) -> Result<Decision, Rejection> {
        let started = Instant::now();
        let first = self.decide_once(request, deadline).await;
        if !is_denied_by_redis(&first) || !finished(pending, remaining(started, deadline)).await {
            return first;
        }
        let second = self.decide_once(request, remaining(started, deadline)).await;
        // Redis has denied this call: a local decision in place of its second answer could admit
        // it.
        if is_from_redis(&second) { second } else { first }
    }

    /// As [`decide_with_refunds`](Self::decide_with_refunds), for a run of calls of which Redis
    /// denies the first.
    pub(crate) async fn decide_run_with_refunds(
        &self,
        request: &DecisionRequest<'_>,
        times: usize,
        deadline: Duration,
        pending: PendingAtSubmission,
    ) -> Decisions {
        let started = Instant::now();
        let first = self.decide_run_once(request, times, deadline).await;
        let is_denied = first.first().is_some_and(is_denied_by_redis);
        if !is_denied || !finished(pending, remaining(started, deadline)).await {
            return first;
        }
        let second = self
            .decide_run_once(request, times, remaining(started, deadline))
            .await;
        if second.first().is_some_and(is_from_redis) {
            second
        } else {
            first
        }
    }
}

fn remaining(started: Instant, deadline: Duration) -> Duration {
    deadline.saturating_sub(started.elapsed())
}

/// Waits for the refunds. `false` if they take longer than `at_most`.
async fn finished(pending: PendingAtSubmission, at_most: Duration) -> bool {
    let finished = async {
        pending.finished().await;
        Ok(())
    };
    within(at_most, finished).await.is_ok()
}

fn is_from_redis(answer: &Result<Decision, Rejection>) -> bool {
    matches!(answer, Ok(decision) if decision.origin == Origin::Redis)
}

fn is_denied_by_redis(answer: &Result<Decision, Rejection>) -> bool {
    is_from_redis(answer) && matches!(answer, Ok(decision) if !decision.allowed)
}
