//! Estimate of `retry_after` behind a queue: when a permit becomes available after those of all
//! waiters ahead. Calls that find no free slot, and calls that time out in the queue, report this
//! estimate. Tests: `backlog/tests.rs`.

use std::time::Duration;

use crate::algorithm::{Mode, StepOutcome, StepResult};
use crate::decision::{Decision, LimitOutcome, Origin, Rejection};
use crate::limiter::Limiter;
use crate::request::{DecisionRequest, ValidatedLimit};
use crate::support::real_time;
use crate::wait_queue::Ticket;
use crate::wait_queue::backlog::BacklogScope;

/// Result of an estimate: a denial, or `None` if a permit is available now. The outer `None` means
/// that the store did not reply in time.
pub(crate) type BacklogEstimate = Option<Result<Option<Box<Decision>>, Rejection>>;

impl Limiter {
    /// Estimates when a permit becomes available for a call after those of the other waiters, if
    /// the store replies within `timeout`.
    pub(crate) async fn estimate_backlog(
        &self,
        request: &DecisionRequest<'_>,
        ticket: &Ticket,
        scope: BacklogScope,
        timeout: Duration,
    ) -> BacklogEstimate {
        let mut request = request.clone();
        request.mode = Mode::Peek;
        let backlog = ticket.backlog_of_others(&self.inner.queues, scope);
        let mut delays = Vec::new();
        for (limit, backlog) in charged(&mut request).zip(backlog) {
            let (query_cost, micros) = backlog.query_behind(limit.cost, limit.policy);
            limit.cost = query_cost;
            delays.push(micros);
        }
        let result = match self.inner.backend.try_decide(&request) {
            Some(result) => result,
            // An expired timeout is no store failure; the policy has its own deadline for that.
            None => {
                let query = self.inner.backend.decide(&request, request.deadline());
                real_time::timeout(timeout, query).await.ok()?
            }
        };
        let result = result.and_then(|decision| delayed(decision, &delays).require());
        Some(match result {
            Ok(_) => Ok(None),
            Err(Rejection::Limited(denial)) => Ok(Some(denial)),
            Err(rejection) => Err(rejection),
        })
    }
}

/// Returns the limits of a request that are charged, in the order of the queue id.
fn charged<'r, 'a>(request: &'r mut DecisionRequest<'a>) -> impl Iterator<Item = &'r mut ValidatedLimit<'a>> {
    request.limits.iter_mut().filter(|limit| limit.blocks.is_none())
}

/// Adds a delay to each limit of a decision.
fn delayed(mut decision: Decision, delays: &[u64]) -> Decision {
    // The local share belongs to unknown callers, and a decision without a store has no time.
    if !matches!(decision.origin, Origin::Memory | Origin::Redis | Origin::Lease) {
        return decision;
    }
    for (limit, micros) in decision.limits.iter_mut().zip(delays) {
        if *micros > 0 {
            let outcome = limit.outcome();
            let delayed = StepOutcome {
                fits: false,
                retry_after: outcome.retry_after.saturating_add(*micros),
                delay: 0,
                ..outcome
            };
            *limit = LimitOutcome::new(limit.policy(), StepResult::Computed(delayed));
            decision.allowed = false;
        }
    }
    decision
}

#[cfg(test)]
mod tests;
