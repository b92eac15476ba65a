//! Reports denials to Redis, which blocks keys that a penalty applies to.

use crate::algorithm::Mode;
use crate::error::StoreError;
use crate::key::Key;
use crate::penalty::denial_counts::{DatedDenials, DenialCounts, DeniedLimit};
use crate::policy::OnStoreFailure;
use crate::redis::backend::RedisBackend;
use crate::request::{DecisionRequest, LimitRequest};
use crate::store::Store;
use crate::support::deadline::within;
use crate::units::Amount;

/// The effect of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PenaltyState {
    /// The key is blocked for this number of microseconds.
    Blocked(u64),
    /// Number of further denials before the key is blocked.
    DenialsLeft(u64),
}

impl RedisBackend {
    /// Returns the denials that Redis has not received.
    pub(crate) fn denial_counts(&self) -> &DenialCounts {
        &self.denial_counts
    }

    /// Reports denials of a limit, and blocks its key if they are enough.
    ///
    /// It takes three steps. Each can be repeated, so none does harm if the next never follows: a
    /// full count stays full, and the next denial blocks; a block is not prolonged.
    pub(crate) async fn apply_penalty(
        &self,
        denied: &DeniedLimit,
        denials: &[DatedDenials],
    ) -> Result<PenaltyState, StoreError> {
        let (policy, key) = (&denied.policy, &denied.key);
        let Some(penalty_limits) = policy.punishing() else {
            return Ok(PenaltyState::DenialsLeft(u64::MAX));
        };
        let counting = DecisionRequest::counting(penalty_limits, key, 0);
        let counted = self.store.count_denials(&counting, denials);
        let left = within(policy.deadline(), counted).await?;
        if left > 0 {
            return Ok(PenaltyState::DenialsLeft(left));
        }
        // A denial cached before the block has too short a retry time.
        let request = LimitRequest::new(policy, Key::from(key)).cost(Amount::ZERO);
        let denied = DecisionRequest::new([request], Mode::Peek, true).ok();
        let _invalidation = denied.as_ref().map(|denied| self.denials.forget(denied));
        let blocking = DecisionRequest::blocking(penalty_limits, key);
        let blocked = within(policy.deadline(), self.store.decide(&blocking)).await?;
        if policy.on_store_failure() == OnStoreFailure::Local {
            self.fallback.on_verdict(&blocking, &blocked, self.clock.now());
        }
        // Counting starts again after the block. If the reset fails, earlier denials still count.
        let _ = within(policy.deadline(), self.store.reset(&counting)).await;
        Ok(PenaltyState::Blocked(blocked.blocked_for()))
    }
}
