//! What a call is told that has to wait and does not, or has waited in vain: when there would be a
//! permit for it after those for all who are before it.

use std::time::Duration;

use crate::algorithm::{Mode, StepOutcome, StepResult};
use crate::decision::{Decision, LimitOutcome, Origin, Rejection};
use crate::limiter::Limiter;
use crate::policy::{Algorithm, CounterWindow, FixedWindow, Funnel, Policy, SlidingWindow, TokenBucket};
use crate::request::{DecisionRequest, RequestedLimit};
use crate::support::real_time;
pub(crate) use crate::waiting::queue::Ticket;

/// Whom a call is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BacklogScope {
    /// Those who have come before.
    Earlier,
    /// All who wait for the same: whoever leaves the line and comes again is the last of them.
    All,
}

/// When there would be a permit after those for others: a denial, or nothing where there is one
/// now. `None` where the store did not answer in time.
pub(crate) type BacklogEstimate = Option<Result<Option<Box<Decision>>, Rejection>>;

/// What others in a line are to be charged under one limit, in the algorithm's own unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    count: u64,
    sum: u64,
    most: u64,
    /// How often a quota is too little for those who come next, of whom as many take it together as
    /// it is enough for; what the first of these take; and the last.
    batches: u64,
    first: u64,
    last: u64,
}

impl Backlog {
    /// One more, after the others.
    pub(crate) fn add(&mut self, cost: u64, quota: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(cost);
        self.most = self.most.max(cost);
        if self.last.saturating_add(cost) > quota {
            self.batches += 1;
            self.last = 0;
        }
        self.last = self.last.saturating_add(cost);
        if self.batches == 0 {
            self.first = self.last;
        }
    }

    /// What a store is to be asked for in place of this cost, to learn when there will be as much
    /// after what the others take; and how many microseconds later that is, since no store is asked
    /// for more than there can be at once.
    fn with(mut self, cost: u64, policy: &Policy) -> (u64, u64) {
        if cost == 0 || self.count == 0 {
            return (cost, 0);
        }
        let quota = policy.algorithm().quota();
        self.add(cost, quota);
        match policy.algorithm() {
            Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
                let asked = self.sum.min(quota);
                (asked, rate.time_for(self.sum - asked, 0))
            }
            Algorithm::SlidingWindow(SlidingWindow { window, .. })
            | Algorithm::FixedWindow(FixedWindow { window, .. }) => {
                let (asked, windows) = self.in_windows(cost, quota, quota / cost);
                (asked, windows.saturating_mul(*window))
            }
            // What is taken counts less and less in the next window, too: the last of a full one
            // would go on when that begins. So one less goes on in each; and nobody, where that is
            // the only one.
            Algorithm::CounterWindow(CounterWindow { window, .. }) => {
                let (asked, windows) = match (quota / cost).saturating_sub(1) {
                    each_window @ 1.. if self.are_alike(cost) => self.in_windows(cost, quota, each_window),
                    _ => {
                        let (asked, windows) = self.in_windows(cost, quota, quota / cost);
                        (asked, windows.saturating_mul(2))
                    }
                };
                (asked, windows.saturating_mul(*window))
            }
            // Nobody waits so for what is in flight.
            Algorithm::Concurrency(_) => (cost, 0),
        }
    }

    /// What is asked of a window, and how many windows later it is there. What is taken of a window
    /// leaves it one window later, and then goes to the next: of those who are alike to who comes
    /// that many places later, of others to all of the next batch when all of the one before has
    /// left.
    fn in_windows(self, cost: u64, quota: u64, each_window: u64) -> (u64, u64) {
        if self.are_alike(cost) {
            let before = self.count.saturating_sub(1);
            // At least one of them fits into a window.
            let each_window = each_window.max(1);
            (
                (before % each_window + 1).saturating_mul(cost),
                before / each_window,
            )
        } else {
            // By its own policy one of them may want more than there ever is by that of who came
            // last.
            (self.first.min(quota), self.batches)
        }
    }

    /// Whether this is what each of them takes.
    fn are_alike(self, cost: u64) -> bool {
        self.most == cost && self.sum == self.count.saturating_mul(cost)
    }
}

impl Limiter {
    /// When there would be a permit for a call after those for the others, if the store says so in
    /// this time.
    pub(crate) async fn after_others(
        &self,
        request: &DecisionRequest<'_>,
        place: &Ticket,
        among: BacklogScope,
        patience: Duration,
    ) -> BacklogEstimate {
        let mut request = request.clone();
        request.mode = Mode::Peek;
        let ahead = place.others(&self.inner.queues, among);
        let mut later = Vec::new();
        for (limit, ahead) in charged(&mut request).zip(ahead) {
            let (asked, micros) = ahead.with(limit.cost, limit.policy);
            limit.cost = asked;
            later.push(micros);
        }
        let answer = match self.decide_now(&request) {
            Some(answer) => answer,
            // That the time is over says nothing of the store, whose policy has one of its own for
            // it.
            None => {
                let asked = self.decide(&request, request.deadline());
                real_time::timeout(patience, asked).await.ok()?
            }
        };
        let answer = answer.and_then(|decision| postponed(decision, &later).require());
        Some(match answer {
            Ok(_) => Ok(None),
            Err(Rejection::Limited(denied)) => Ok(Some(denied)),
            Err(rejection) => Err(rejection),
        })
    }
}

/// The limits of a request that are charged, as the others in its line name them.
fn charged<'r, 'a>(request: &'r mut DecisionRequest<'a>) -> impl Iterator<Item = &'r mut RequestedLimit<'a>> {
    request.limits.iter_mut().filter(|limit| limit.blocks.is_none())
}

/// The same decision so many microseconds later for each of its limits, with nobody else asking.
fn postponed(mut decision: Decision, later: &[u64]) -> Decision {
    // What this replica's share has for whom nobody knows, and what nobody decides has no time at
    // all.
    if !matches!(decision.origin, Origin::Memory | Origin::Redis | Origin::Lease) {
        return decision;
    }
    for (limit, micros) in decision.limits.iter_mut().zip(later) {
        if *micros > 0 {
            let outcome = limit.outcome();
            let postponed = StepOutcome {
                fits: false,
                retry_after: outcome.retry_after.saturating_add(*micros),
                delay: 0,
                ..outcome
            };
            *limit = LimitOutcome::new(limit.policy(), StepResult::Told(postponed));
            decision.allowed = false;
        }
    }
    decision
}

#[cfg(test)]
mod tests;
