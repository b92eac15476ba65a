//! The two additional limits of a penalty: the block of a key, and the count of its denials.
//!
//! The block is a funnel that one cost fills. It is added to each request with a cost above zero
//! and checked like the other limits, but the decision never charges it. The store charges the
//! count after a denial, and the block when the count is full.
//!
//! Tests: `tests/contract/penalties.rs`, `tests/penalties.rs`, `tests/penalty_agreement.rs`.

use smallvec::smallvec;

use crate::algorithm::Mode;
use crate::key::Key;
use crate::policy::{PenaltyLimits, Policy};
use crate::request::{DecisionRequest, ValidatedLimit, Verdict, identity};

/// Cost of a block: the whole capacity of the funnel.
const FULL_BLOCK: u64 = 1_000;

impl<'a> DecisionRequest<'a> {
    /// Adds the blocks of the limits' penalties to the request. A cost of zero is allowed even
    /// while the key is blocked.
    pub(crate) fn add_blocks(&mut self) {
        for number in 0..self.limits.len() {
            if let Some(limit) = self.limits.get(number).filter(|limit| limit.cost > 0) {
                if let Some(penalty_limits) = limit.policy.penalty_limits() {
                    let block = ValidatedLimit {
                        blocks: Some(number),
                        ..penalty_limit(&penalty_limits.block, limit.key.clone(), FULL_BLOCK)
                    };
                    self.limits.push(block);
                }
            }
        }
    }

    /// Adds the blocks and denial counts of the limits, so that a reset removes them too.
    pub(crate) fn add_penalties(&mut self) {
        for number in 0..self.limits.len() {
            if let Some(limit) = self.limits.get(number) {
                if let Some(penalty_limits) = limit.policy.penalty_limits() {
                    let key = limit.key.clone();
                    let count = penalty_limit(&penalty_limits.counter, key.clone(), 0);
                    self.limits.push(count);
                    self.limits.push(penalty_limit(&penalty_limits.block, key, 0));
                }
            }
        }
    }

    /// Queries only whether a key is blocked.
    pub(crate) fn of_block(penalty_limits: &'a PenaltyLimits, key: Key<'a>) -> Self {
        block_request(
            penalty_limit(&penalty_limits.block, key.bounded(), FULL_BLOCK),
            Mode::Peek,
        )
    }

    /// Counts `denials` denials of a key.
    pub(crate) fn counting(penalty_limits: &'a PenaltyLimits, key: &'a Key<'_>, denials: u64) -> Self {
        let max = u64::from(penalty_limits.penalty.denials());
        let count = penalty_limit(&penalty_limits.counter, Key::from(key), denials.min(max));
        block_request(count, Mode::Charge)
    }

    /// Blocks a key.
    pub(crate) fn blocking(penalty_limits: &'a PenaltyLimits, key: &'a Key<'_>) -> Self {
        block_request(
            penalty_limit(&penalty_limits.block, Key::from(key), FULL_BLOCK),
            Mode::Charge,
        )
    }
}

impl Verdict {
    /// Returns the number of further denials before the key is blocked.
    pub(crate) fn denials_left(&self) -> u64 {
        match self.outcomes.first() {
            Some(outcome) if outcome.fits => outcome.remaining,
            _ => 0,
        }
    }

    /// Returns the microseconds for which the key is blocked after an attempt to block it.
    pub(crate) fn blocked_for(&self) -> u64 {
        self.outcomes.first().map_or(0, |outcome| {
            if outcome.fits {
                outcome.reset_after
            } else {
                // The key was already blocked.
                outcome.retry_after
            }
        })
    }
}

fn block_request(limit: ValidatedLimit<'_>, mode: Mode) -> DecisionRequest<'_> {
    let limits = smallvec![limit];
    DecisionRequest { limits, mode }
}

/// Builds a limit of a penalty. The length of the key is already bounded.
fn penalty_limit<'a>(policy: &'a Policy, key: Key<'a>, cost: u64) -> ValidatedLimit<'a> {
    ValidatedLimit {
        identity: identity(policy, &key),
        policy,
        key,
        cost,
        blocks: None,
    }
}
