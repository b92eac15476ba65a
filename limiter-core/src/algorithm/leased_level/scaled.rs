//! A level that becomes the same part of another quota, whatever is lent of it.

use crate::algorithm::State;
use crate::algorithm::leased_level::step::view;
use crate::algorithm::leased_level::{Lent, Loans};
use crate::algorithm::level::{Level, Meter};
use crate::algorithm::scale::{Part, Scaling};
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// The state as it stands now, if it was stored before the change.
///
/// What is lent stays what it is: it was taken under the policy before, and is spent or comes back as such. What holders
/// have and what is stored are together at most what the larger of the two policies gives.
pub(crate) fn scale(scaling: &Scaling<'_>, state: &State, part: Part, now: u64) -> Option<State> {
    match (scaling.before, scaling.after) {
        (Algorithm::TokenBucket(before), Algorithm::TokenBucket(after)) => {
            convert(before, after, scaling, state, part, now)
        }
        (Algorithm::Funnel(before), Algorithm::Funnel(after)) => {
            convert(before, after, scaling, state, part, now)
        }
        _ => None,
    }
}

fn convert<M: Meter>(
    before: &M,
    after: &M,
    scaling: &Scaling<'_>,
    state: &State,
    part: Part,
    now: u64,
) -> Option<State> {
    let stored = match state {
        State::TokenBucket(level) | State::Funnel(level) => Lent {
            level: *level,
            loans: Loans::default(),
        },
        State::Lent(lent) => **lent,
        _ => return None,
    };
    if stored.level.at >= scaling.at {
        return None;
    }
    let then = view(before, Some(stored), scaling.at);
    let scaled = Lent {
        level: Level {
            // Kept until it is looked at now, whatever becomes of it.
            keep_until: u64::MAX,
            ..then.level.scaled(before, after, part)
        },
        ..then
    };
    let mut lent = view(after, Some(scaled), now);
    // Those who have not heard of the change yet take it for absent no sooner than it is whole for them, too.
    let theirs = Lent {
        level: Level {
            remainder: 0,
            ..lent.level
        },
        ..lent
    };
    let longest = theirs.idle_after(before).max(lent.idle_after(after));
    lent.level.keep_until = now + longest.min(MAX_EXACT);
    Some(match lent.loans.total() {
        0 => State::of_level(scaling.after, lent.level),
        _ => State::Lent(Box::new(lent)),
    })
}
