//! What a penalty asks of a store, beside its limit: whether the key is blocked, with each
//! decision; and, for a denial, to count it and to block.

use smallvec::smallvec;

use crate::algorithm::{Mode, StepOutcome};
use crate::key::Key;
use crate::policy::{PenaltyLimits, Policy};
use crate::request::{DecisionRequest, RequestedLimit, Verdict, identity};

/// What a block costs: all that the funnel holds.
const WHOLE: u64 = 1_000;

impl<'a> DecisionRequest<'a> {
    /// Asks as well whether the keys are blocked by the penalties of their policies. A cost of
    /// nothing is allowed even then.
    pub(crate) fn add_blocks(&mut self) {
        for number in 0..self.limits.len() {
            if let Some(limit) = self.limits.get(number).filter(|limit| limit.cost > 0) {
                if let Some(punishing) = limit.policy.punishing() {
                    let block = RequestedLimit {
                        blocks: Some(number),
                        ..beside(&punishing.block, limit.key.clone(), WHOLE)
                    };
                    self.limits.push(block);
                }
            }
        }
    }

    /// Is about the blocks of its keys and the counts of their denials as well, so that these are
    /// forgotten with it.
    pub(crate) fn add_penalties(&mut self) {
        for number in 0..self.limits.len() {
            if let Some(limit) = self.limits.get(number) {
                if let Some(punishing) = limit.policy.punishing() {
                    let key = limit.key.clone();
                    let count = beside(&punishing.counter, key.clone(), 0);
                    self.limits.push(count);
                    self.limits.push(beside(&punishing.block, key, 0));
                }
            }
        }
    }

    /// Asks whether a key is blocked, and of nothing else.
    pub(crate) fn of_block(punishing: &'a PenaltyLimits, key: Key<'a>) -> Self {
        block_request(beside(&punishing.block, key.bounded(), WHOLE), Mode::Peek)
    }

    /// Counts so many denials of a key.
    pub(crate) fn counting(punishing: &'a PenaltyLimits, key: &'a Key<'_>, denials: u64) -> Self {
        let most = u64::from(punishing.penalty.denials());
        let count = beside(&punishing.counter, Key::from(key), denials.min(most));
        block_request(count, Mode::Charge)
    }

    /// Blocks a key.
    pub(crate) fn blocking(punishing: &'a PenaltyLimits, key: &'a Key<'_>) -> Self {
        block_request(beside(&punishing.block, Key::from(key), WHOLE), Mode::Charge)
    }
}

impl Verdict {
    /// How many denials more may come before the key is to be blocked, where these were counted.
    pub(crate) fn denials_left(&self) -> u64 {
        match self.outcomes.first() {
            Some(outcome) if outcome.fits => outcome.remaining,
            _ => 0,
        }
    }

    /// For how many microseconds a key is blocked that was to be blocked now.
    pub(crate) fn blocked_for(&self) -> u64 {
        self.outcomes.first().map_or(0, |outcome| {
            if outcome.fits {
                outcome.reset_after
            } else {
                // It was already.
                outcome.retry_after
            }
        })
    }
}

impl StepOutcome {
    /// The same where the key is blocked for so many microseconds.
    pub(crate) fn blocked_for(self, micros: u64) -> Self {
        Self {
            fits: false,
            remaining: 0,
            // None where the limit itself has room.
            retry_after: self.retry_after.max(micros),
            reset_after: self.reset_after.max(micros),
            next_after: self.next_after.max(micros),
            expires_after: self.expires_after.max(micros),
            delay: 0,
            ..self
        }
    }
}

fn block_request(limit: RequestedLimit<'_>, mode: Mode) -> DecisionRequest<'_> {
    let limits = smallvec![limit];
    DecisionRequest { limits, mode }
}

/// A limit that a penalty keeps under a key that is bounded.
fn beside<'a>(policy: &'a Policy, key: Key<'a>, cost: u64) -> RequestedLimit<'a> {
    RequestedLimit {
        identity: identity(policy, &key),
        policy,
        key,
        cost,
        blocks: None,
    }
}
