//! Proportional policy changes of a level with leased tokens.
//!
//! The level is evaluated at the time of the change under the previous policy, converted by the
//! ratio of the quotas, and continued under the new policy. Leased tokens keep their number, since
//! holders may have spent them. The converted state is kept until it equals absence under both
//! policies.
//!
//! Invariant: leased tokens and the stored level together stay within the larger of the two quotas.
//! Tests: `redis/compare_and_set/tests.rs`, `algorithm/scale.rs` (levels without leases).

use crate::algorithm::StepState;
use crate::algorithm::leased_level::step::view;
use crate::algorithm::leased_level::{LeaseGrants, LeasedLevel};
use crate::algorithm::level::{Level, LevelKind};
use crate::algorithm::ratio::{QuotaRatio, ScaleChange};
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// Returns the converted state if it was stored before the change.
///
/// Leased tokens are not converted: they were leased under the previous policy and are spent or
/// returned as such. The tokens of the holders and the stored level together stay within the larger
/// of the two quotas.
pub(crate) fn scale(
    scaling: &ScaleChange<'_>,
    state: &StepState,
    ratio: QuotaRatio,
    now: u64,
) -> Option<StepState> {
    match (scaling.before, scaling.after) {
        (Algorithm::TokenBucket(before), Algorithm::TokenBucket(after)) => {
            convert(before, after, scaling, state, ratio, now)
        }
        (Algorithm::Funnel(before), Algorithm::Funnel(after)) => {
            convert(before, after, scaling, state, ratio, now)
        }
        _ => None,
    }
}

fn convert<M: LevelKind>(
    before: &M,
    after: &M,
    scaling: &ScaleChange<'_>,
    state: &StepState,
    ratio: QuotaRatio,
    now: u64,
) -> Option<StepState> {
    let stored = match state {
        StepState::TokenBucket(level) | StepState::Funnel(level) => LeasedLevel {
            level: *level,
            loans: LeaseGrants::default(),
        },
        StepState::Leased(leased) => **leased,
        _ => return None,
    };
    if stored.level.at >= scaling.at {
        return None;
    }
    let then = view(before, Some(stored), scaling.at);
    let scaled = LeasedLevel {
        level: Level {
            // Kept until the conversion is complete.
            keep_until: u64::MAX,
            ..then.level.scaled(before, after, ratio)
        },
        ..then
    };
    let mut leased = view(after, Some(scaled), now);
    // Replicas with the previous policy must not treat the state as absent before it is full under
    // their policy.
    let under_previous = LeasedLevel {
        level: Level {
            remainder: 0,
            ..leased.level
        },
        ..leased
    };
    let expires_after = under_previous.idle_after(before).max(leased.idle_after(after));
    leased.level.keep_until = now + expires_after.min(MAX_EXACT);
    Some(match leased.loans.total() {
        0 => StepState::from_level(scaling.after, leased.level),
        _ => StepState::Leased(Box::new(leased)),
    })
}
