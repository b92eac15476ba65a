//! Searches an order that explains a history, as Wing and Gong did ("Testing and verifying
//! concurrent objects", 1993), and caches failed prefixes, as Lowe proposed ("Testing for
//! linearizability", 2017).

use std::collections::HashSet;

use fastrand::Rng;

use crate::model::{Answer, Question, Shape, State, step};

/// A call with its start and, if it completed, its end and its result.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) question: Question,
    /// Time of the limiter's clock.
    pub(crate) moment: u64,
    pub(crate) began: u64,
    pub(crate) ended: Option<(u64, Answer)>,
}

/// Returns whether a sequential order of these calls exists in which calls that ended before others
/// began precede them, and in which the model returns all recorded results. A call of unknown
/// outcome can take effect at any time after its start, or never.
pub(crate) fn explain(shape: Shape, keys: usize, history: &[Call]) -> bool {
    assert!(history.len() <= 64, "one bit for each call");
    let mut search = Search {
        shape,
        history,
        seen: HashSet::new(),
    };
    search.from(0, &vec![State::default(); keys])
}

struct Search<'a> {
    shape: Shape,
    history: &'a [Call],
    /// The placed calls with the stored state: no explanation continues from here.
    seen: HashSet<(u64, Vec<State>)>,
}

impl Search<'_> {
    fn from(&mut self, placed: u64, states: &[State]) -> bool {
        let open = |number: &usize| placed & (1 << number) == 0;
        let ends = (0..self.history.len())
            .filter(open)
            .filter_map(|number| Some(self.history[number].ended.as_ref()?.0));
        // No call can precede one that had ended before it started.
        let Some(first_end) = ends.min() else { return true };
        if !self.seen.insert((placed, states.to_vec())) {
            return false;
        }
        let candidates: Vec<_> = (0..self.history.len())
            .filter(open)
            .filter(|number| self.history[*number].began < first_end)
            .collect();
        candidates.into_iter().any(|number| {
            let call = &self.history[number];
            let (answer, after) = step(self.shape, states, &call.question, call.moment);
            let given = call.ended.as_ref().map(|(_, given)| given);
            given.is_none_or(|given| *given == answer) && self.from(placed | 1 << number, &after)
        })
    }
}

/// Number of pairs of calls that were in flight at the same time.
pub(crate) fn overlapping(history: &[Call]) -> usize {
    let end = |call: &Call| call.ended.as_ref().map_or(u64::MAX, |(end, _)| *end);
    let pairs = history
        .iter()
        .enumerate()
        .flat_map(|(number, one)| history[..number].iter().map(move |other| (one, other)));
    pairs
        .filter(|(one, other)| one.began < end(other) && other.began < end(one))
        .count()
}

/// The history with one impossible result: one more permit, and yet a longer reset time.
pub(crate) fn with_wrong_result(history: &[Call], rng: &mut Rng) -> Option<Vec<Call>> {
    let mut history = history.to_vec();
    let decided: Vec<_> = history
        .iter_mut()
        .filter_map(|call| match &mut call.ended {
            Some((_, Answer::Decided(_, facts))) => facts.first_mut(),
            _ => None,
        })
        .collect();
    let place = (!decided.is_empty()).then(|| rng.usize(..decided.len()))?;
    let facts = decided.into_iter().nth(place)?;
    facts.reset += 1;
    facts.remaining += 1;
    Some(history)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Algorithm, Facts};

    const SHAPE: Shape = Shape {
        algorithm: Algorithm::SlidingWindow,
        quota: 2,
        period: 1_000,
    };
    const MOMENT: u64 = 1_000_000;

    fn call(cost: u64, began: u64, ended: Option<(u64, Facts)>) -> Call {
        let question = if cost == 0 {
            Question::Peek(vec![(0, 1)])
        } else {
            Question::Check(vec![(0, cost)])
        };
        let ended = ended.map(|(end, facts)| (end, Answer::Decided(MOMENT, vec![facts])));
        Call {
            question,
            moment: MOMENT,
            began,
            ended,
        }
    }

    fn left(remaining: u64) -> Facts {
        Facts {
            fits: true,
            remaining,
            retry: 0,
            reset: if remaining == 2 { 0 } else { 1_000 },
        }
    }

    fn explained(calls: &[Call]) -> bool {
        explain(SHAPE, 1, calls)
    }

    #[test]
    fn permit_is_not_granted_twice() {
        let twice = [call(1, 0, Some((2, left(1)))), call(1, 1, Some((3, left(1))))];
        assert!(!explained(&twice));
        let once_each = [call(1, 0, Some((2, left(0)))), call(1, 1, Some((3, left(1))))];
        assert!(explained(&once_each));
    }

    #[test]
    fn completed_operation_is_visible_to_later_one() {
        let charged = call(1, 0, Some((1, left(1))));
        assert!(!explained(&[charged.clone(), call(0, 2, Some((3, left(2))))]));
        assert!(explained(&[charged.clone(), call(0, 2, Some((3, left(1))))]));
        let overlapping = call(1, 0, Some((3, left(1))));
        assert!(explained(&[overlapping, call(0, 1, Some((2, left(2))))]));
    }

    #[test]
    fn cancelled_call_is_charged_at_most_once() {
        let cancelled = call(1, 2, None);
        for (remaining, possible) in [(2, true), (1, true), (0, false)] {
            let seen = call(0, 3, Some((4, left(remaining))));
            assert_eq!(
                explained(&[cancelled.clone(), seen]),
                possible,
                "{remaining} left"
            );
        }
        assert!(!explained(&[cancelled.clone(), call(0, 0, Some((1, left(1))))]));
        // A charge is visible and later not visible.
        let seen_and_gone = [
            cancelled,
            call(0, 3, Some((4, left(1)))),
            call(0, 5, Some((6, left(2)))),
        ];
        assert!(!explained(&seen_and_gone));
    }
}
