//! The cost of the calls that wait in a queue before another call.
//!
//! The store does not know the waiters, so `retry_after` must include their permits. The backlog
//! sums their costs under one limit. It returns a cost to query in place of the call's own, and the
//! time beyond it, because no store accepts a query above the quota.
//!
//! Tests: `waiting/backlog/tests.rs`, with the maximum error of the estimate for each algorithm.

use crate::policy::{Algorithm, CounterWindow, FixedWindow, Policy, SlidingWindow};

/// The waiters to include in the estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BacklogScope {
    /// The earlier waiters.
    Earlier,
    /// All waiters: a call that leaves the queue and retries is the last of them.
    All,
}

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
    pub(crate) fn query_behind(mut self, cost: u64, policy: &Policy) -> (u64, u64) {
        if cost == 0 || self.count == 0 {
            return (cost, 0);
        }
        let algorithm = policy.algorithm();
        let quota = algorithm.quota();
        self.add(cost, quota);
        match algorithm {
            Algorithm::TokenBucket(_) | Algorithm::Funnel(_) => {
                let query_cost = self.sum.min(quota);
                let refill = algorithm.refill_micros(self.sum - query_cost);
                (query_cost, refill.unwrap_or(0))
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
