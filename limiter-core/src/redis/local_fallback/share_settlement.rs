//! Refunds and charges of the share of one replica.
//!
//! Invariant: a change of usage that Redis does not receive changes the unreported permits too.
//! Tests: `local_fallback/tests.rs`, `tests/outages.rs`, `tests/local_fallback.rs`.

use crate::algorithm::UsageCorrection;
use crate::error::StoreError;
use crate::redis::local_fallback::LocalFallback;
use crate::request::{DecisionRequest, Verdict};
use crate::units::Timestamp;

/// The charge of a call that Redis and the share of one of `replicas` have admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareCharge {
    pub(crate) decided_at: Timestamp,
    /// In the algorithm's own unit.
    pub(crate) estimate: u64,
    pub(crate) replicas: u32,
}

impl LocalFallback {
    /// Gives an allowed request's permits back to the share of one of `replicas`, after Redis has
    /// denied it.
    pub(crate) fn refund(&self, request: &DecisionRequest<'_>, verdict: &Verdict, replicas: u32) {
        for (limit, outcome) in request.limits.iter().zip(&verdict.outcomes) {
            let whole_at = match outcome.whole_at {
                0 => verdict.decided_at.as_micros().saturating_add(outcome.reset_after),
                whole_at => whole_at,
            };
            let share = limit.policy.algorithm().share(replicas);
            // A refund needs no capacity, so it does not fail.
            let _ = self
                .store
                .change_as(limit, &share, UsageCorrection::Refund { whole_at });
        }
    }

    /// Refunds the share of one of `replicas`, or charges it unconditionally. A refund needs no
    /// capacity, so it does not fail.
    pub(crate) fn apply_change(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
        replicas: u32,
    ) -> Result<(), StoreError> {
        for limit in &request.limits {
            let share = limit.policy.algorithm().share(replicas);
            self.store.change_as(limit, &share, change)?;
            match change {
                UsageCorrection::Refund { whole_at } => {
                    let now = self.store.moment_of(&share, self.clock.now()).own;
                    self.unreported.take_back(limit, whole_at, now);
                }
                UsageCorrection::ForceCharge => {
                    self.unreported
                        .record(limit, limit.cost, &share, self.clock.now())
                }
            }
        }
        Ok(())
    }

    /// Applies the refund or charge of a call that Redis and the share have admitted. Redis
    /// receives the change, so it is not recorded as unreported.
    pub(crate) fn correct(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
        charge: ShareCharge,
    ) {
        for limit in &request.limits {
            let share = limit.policy.algorithm().share(charge.replicas);
            // The share of a level is refilled at its own rate. Its earlier usage is unknown, so
            // the earliest time is used: that of a share without usage before the call.
            let change = match (change, share.refill_micros(charge.estimate)) {
                (UsageCorrection::Refund { whole_at: 1.. }, Some(refilled_in)) => UsageCorrection::Refund {
                    whole_at: charge.decided_at.as_micros().saturating_add(refilled_in),
                },
                _ => change,
            };
            // A refund does not fail, and without capacity a charge counts in Redis alone.
            let _ = self.store.change_as(limit, &share, change);
        }
    }
}
