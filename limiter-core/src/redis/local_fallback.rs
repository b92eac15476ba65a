//! Decides in process while the store is out: each replica applies its share of the policy.
//!
//! The share is a limit of its own, with a state of its own that lasts over several outages, so that in any time T a replica
//! admits no more than its share's quota and rate allow, however often the store comes and goes. What the store said last
//! only ever takes permits away from it.

mod last_known;
mod replica_share;

use smallvec::SmallVec;

use crate::algorithm::{Change, Mode, StepOutcome};
use crate::error::StoreError;
use crate::policy::{Algorithm, CounterWindow, FixedWindow, SlidingWindow};
use crate::redis::local_fallback::last_known::{LastKnown, LastRemaining};
use crate::redis::local_fallback::replica_share::{ReplicaShare, comes_in, still_counts};
use crate::request::{DecisionRequest, RequestedLimit, Verdict};
use crate::store::MemoryStore;
use crate::support::clock::Clock;
use crate::units::{Timestamp, micros_ceil};

/// The limits of this replica alone.
#[derive(Debug)]
pub(crate) struct LocalFallback {
    store: MemoryStore,
    last_known: LastKnown,
    clock: Clock,
}

impl LocalFallback {
    /// Keeps so many keys at most, of those that are limited here, and of those of which is known what the store had left.
    pub(crate) fn new(clock: Clock, max_keys: usize) -> Self {
        Self {
            store: MemoryStore::new(clock.clone(), max_keys),
            last_known: LastKnown::new(max_keys),
            clock,
        }
    }

    /// Remembers what the store has left.
    pub(crate) fn on_verdict(&self, request: &DecisionRequest<'_>, verdict: &Verdict, now: Timestamp) {
        let now = now.as_micros();
        for (limit, outcome) in request.limits.iter().zip(&verdict.outcomes) {
            let left = LastRemaining {
                remaining: outcome.remaining,
                owed: owed(limit, outcome),
                as_of: now,
                until: now.saturating_add(outcome.reset_after),
                decided_at: verdict.decided_at.as_micros(),
            };
            self.last_known.note(limit.identity.hash(), left);
        }
    }

    /// Forgets what was used and what was heard.
    pub(crate) fn forget(&self, request: &DecisionRequest<'_>) {
        for limit in &request.limits {
            self.last_known.forget(limit.identity.hash());
            self.store.forget(limit);
        }
    }

    /// Decides by the share of one of so many replicas. A cost above the share is denied.
    pub(crate) fn decide(&self, request: &DecisionRequest<'_>, replicas: u32) -> Result<Verdict, StoreError> {
        let now = self.clock.now().as_micros();
        let shares: SmallVec<[ReplicaShare; 2]> = request
            .limits
            .iter()
            .map(|limit| self.share(limit, replicas, now))
            .collect();
        let applied: SmallVec<[Algorithm; 2]> = shares.iter().map(|share| share.applied).collect();
        let each = || request.limits.iter().zip(&shares);
        let mode = if request.mode == Mode::Charge && each().any(|(limit, share)| share.is_below(limit.cost))
        {
            Mode::Refuse
        } else {
            request.mode
        };
        let mut verdict = self
            .store
            .decide_as(request, mode, &applied, |number, state, moment| {
                if let Some(share) = shares.get(number) {
                    share.begin(state, moment.own);
                }
            })?;
        for (outcome, (limit, share)) in verdict.outcomes.iter_mut().zip(each()) {
            share.finish(outcome, limit.cost, now);
        }
        Ok(verdict)
    }

    /// Gives back to the share of one of so many replicas, or charges it whatever is left. A refund takes no room, so that it
    /// does not fail.
    pub(crate) fn change(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
        replicas: u32,
    ) -> Result<(), StoreError> {
        for limit in &request.limits {
            let share = limit.policy.algorithm().share(replicas);
            self.store.change_as(limit, &share, change)?;
        }
        Ok(())
    }

    fn share(&self, limit: &RequestedLimit<'_>, replicas: u32, now: u64) -> ReplicaShare {
        // A key is blocked or not: of that there are no shares.
        let replicas = if limit.blocks.is_some() { 1 } else { replicas };
        let whole = limit.policy.algorithm().share(replicas);
        let left = self
            .last_known
            .get(limit.identity.hash(), now)
            .map(|left| LastRemaining {
                remaining: left.remaining.div_ceil(u64::from(replicas)).min(whole.quota()),
                owed: left.owed.div_ceil(u64::from(replicas)),
                ..left
            });
        let applied = match (whole, left) {
            // Until the newest permit that the store has given leaves the window, those that it has given count.
            (Algorithm::SlidingWindow(window), Some(left)) => Algorithm::SlidingWindow(SlidingWindow {
                limit: left.remaining,
                ..window
            }),
            // Until its period ends.
            (Algorithm::FixedWindow(window), Some(left)) => Algorithm::FixedWindow(FixedWindow {
                limit: left.remaining,
                ..window
            }),
            (Algorithm::CounterWindow(window), Some(left)) => Algorithm::CounterWindow(CounterWindow {
                limit: window.limit - still_counts(window, left, now),
                ..window
            }),
            _ => whole,
        };
        ReplicaShare { applied, whole, left }
    }
}

/// What a limit owes beyond its quota: nothing is said of that but when all has come back. What is lent comes back later than at
/// the rate, so that nothing is taken for a debt that may be a loan.
fn owed(limit: &RequestedLimit<'_>, outcome: &StepOutcome) -> u64 {
    if outcome.remaining > 0 {
        return 0;
    }
    let algorithm = limit.policy.algorithm();
    let lease = limit.policy.lease().map_or(0, micros_ceil);
    let comes = comes_in(algorithm, outcome.reset_after.saturating_sub(lease));
    comes.saturating_sub(algorithm.quota())
}

#[cfg(test)]
mod tests;
