//! Estimate of `retry_after` behind a queue: when a permit becomes available after those of all
//! waiters ahead. Calls that find no free slot, and calls that time out in the queue, report this
//! estimate. Tests: `backlog/tests.rs`.

use std::time::Duration;

use crate::algorithm::{Mode, StepOutcome, StepResult};
use crate::decision::{Decision, LimitOutcome, Origin, Rejection};
use crate::limiter::Limiter;
use crate::policy::{Algorithm, CounterWindow, FixedWindow, Funnel, Policy, SlidingWindow, TokenBucket};
use crate::request::{DecisionRequest, RequestedLimit};
use crate::support::real_time;
pub(crate) use crate::waiting::queue::Ticket;

/// The waiters to include in the estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BacklogScope {
    /// The earlier waiters.
    Earlier,
    /// All waiters: a call that leaves the queue and retries is the last of them.
    All,
}

/// Result of an estimate: a denial, or `None` if a permit is available now. The outer `None` means
/// that the store did not reply in time.
pub(crate) type BacklogEstimate = Option<Result<Option<Box<Decision>>, Rejection>>;

/// Cost of the other waiters of a queue under one limit, in the unit of the algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    count: u64,
    sum: u64,
    max: u64,
    /// Number of full quotas that the waiters need when each batch takes as many as fit into one
    /// quota; cost of the first batch; cost of the last batch.
    batches: u64,
    first: u64,
    last: u64,
}

impl Backlog {
    /// Adds a waiter behind the others.
    pub(crate) fn add(&mut self, cost: u64, quota: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(cost);
        self.max = self.max.max(cost);
        if self.last.saturating_add(cost) > quota {
            self.batches += 1;
            self.last = 0;
        }
        self.last = self.last.saturating_add(cost);
        if self.batches == 0 {
            self.first = self.last;
        }
    }

    /// Returns the cost to query in place of `cost`, so that the reply includes the waiters ahead,
    /// and the number of microseconds to add, because no store accepts a query above the quota.
    fn query_behind(mut self, cost: u64, policy: &Policy) -> (u64, u64) {
        if cost == 0 || self.count == 0 {
            return (cost, 0);
        }
        let quota = policy.algorithm().quota();
        self.add(cost, quota);
        match policy.algorithm() {
            Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
                let query_cost = self.sum.min(quota);
                (query_cost, rate.time_for(self.sum - query_cost, 0))
            }
            Algorithm::SlidingWindow(SlidingWindow { window, .. })
            | Algorithm::FixedWindow(FixedWindow { window, .. }) => {
                let (query_cost, windows) = self.query_in_windows(cost, quota, quota / cost);
                (query_cost, windows.saturating_mul(*window))
            }
            // In this algorithm, charged permits decay over the next window, so a full window would
            // delay the start of the next. The estimate therefore admits one call less per window,
            // and none if there is only one.
            Algorithm::CounterWindow(CounterWindow { window, .. }) => {
                let (query_cost, windows) = match (quota / cost).saturating_sub(1) {
                    each_window @ 1.. if self.all_cost(cost) => {
                        self.query_in_windows(cost, quota, each_window)
                    }
                    _ => {
                        let (query_cost, windows) = self.query_in_windows(cost, quota, quota / cost);
                        (query_cost, windows.saturating_mul(2))
                    }
                };
                (query_cost, windows.saturating_mul(*window))
            }
            // Concurrency limits have their own queue.
            Algorithm::Concurrency(_) => (cost, 0),
        }
    }

    /// Returns the cost to query and the number of windows to add. A permit leaves a window one
    /// window after its charge and goes to the next waiter: with equal costs to the waiter that
    /// many places behind, otherwise to the next batch as soon as the whole previous batch has
    /// left.
    fn query_in_windows(self, cost: u64, quota: u64, each_window: u64) -> (u64, u64) {
        if self.all_cost(cost) {
            let before = self.count.saturating_sub(1);
            // At least one of them fits into a window.
            let each_window = each_window.max(1);
            (
                (before % each_window + 1).saturating_mul(cost),
                before / each_window,
            )
        } else {
            // A waiter may cost more under its own policy than the quota of the newest policy.
            (self.first.min(quota), self.batches)
        }
    }

    /// True if every waiter has this cost.
    fn all_cost(self, cost: u64) -> bool {
        self.max == cost && self.sum == self.count.saturating_mul(cost)
    }
}

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
        let result = match self.decide_now(&request) {
            Some(result) => result,
            // An expired timeout is no store failure; the policy has its own deadline for that.
            None => {
                let query = self.decide(&request, request.deadline());
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
fn charged<'r, 'a>(request: &'r mut DecisionRequest<'a>) -> impl Iterator<Item = &'r mut RequestedLimit<'a>> {
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
