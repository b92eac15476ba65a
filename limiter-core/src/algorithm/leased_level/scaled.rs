//! A level that becomes the same part of another quota, whatever is lent of it.

use crate::algorithm::StepState;
use crate::algorithm::leased_level::step::view;
use crate::algorithm::leased_level::{LeaseGrants, LeasedLevel};
use crate::algorithm::level::{Level, LevelKind};
use crate::algorithm::ratio::{QuotaRatio, ScaleChange};
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// The state as it stands now, if it was stored before the change.
///
/// What is lent stays what it is: it was taken under the policy before, and is spent or comes back
/// as such. What holders have and what is stored are together at most what the larger of the two
/// policies gives.
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
        StepState::Lent(lent) => **lent,
        _ => return None,
    };
    if stored.level.at >= scaling.at {
        return None;
    }
    let then = view(before, Some(stored), scaling.at);
    let scaled = LeasedLevel {
        level: Level {
            // Kept until it is looked at now, whatever becomes of it.
            keep_until: u64::MAX,
            ..then.level.scaled(before, after, ratio)
        },
        ..then
    };
    let mut lent = view(after, Some(scaled), now);
    // Those who have not heard of the change yet take it for absent no sooner than it is whole for
    // them, too.
    let theirs = LeasedLevel {
        level: Level {
            remainder: 0,
            ..lent.level
        },
        ..lent
    };
    let longest = theirs.idle_after(before).max(lent.idle_after(after));
    lent.level.keep_until = now + longest.min(MAX_EXACT);
    Some(match lent.loans.total() {
        0 => StepState::of_level(scaling.after, lent.level),
        _ => StepState::Lent(Box::new(lent)),
    })
}
