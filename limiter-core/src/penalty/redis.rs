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
    /// The number of further denials before it is.
    DenialsLeft(u64),
}

impl RedisBackend {
    /// The denials that Redis has not received.
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
        let Some(punishing) = policy.punishing() else {
            return Ok(PenaltyState::DenialsLeft(u64::MAX));
        };
        let counting = DecisionRequest::counting(punishing, key, 0);
        let counted = self.store.count_denials(&counting, denials);
        let left = within(policy.deadline(), counted).await?;
        if left > 0 {
            return Ok(PenaltyState::DenialsLeft(left));
        }
        // A denial from before the block has too short a retry time.
        let ask = LimitRequest::new(policy, Key::from(key)).cost(Amount::ZERO);
        let denied = DecisionRequest::new([ask], Mode::Peek, true).ok();
        let _forgetting = denied.as_ref().map(|denied| self.denials.forget(denied));
        let blocking = DecisionRequest::blocking(punishing, key);
        let blocked = within(policy.deadline(), self.store.decide(&blocking)).await?;
        if policy.on_store_failure() == OnStoreFailure::Local {
            self.fallback.on_verdict(&blocking, &blocked, self.clock.now());
        }
        // Counting starts again after the block. If this fails, it starts with the denials of
        // before.
        let _ = within(policy.deadline(), self.store.reset(&counting)).await;
        Ok(PenaltyState::Blocked(blocked.blocked_for()))
    }
}
