//! Sequential models of limits: counters, a few lines each, that can be copied and compared.

use fastrand::Rng;
use limiter_core::{LimitOutcome, Policy, Rate};

use crate::support::{PATIENT, micros};

/// Numbers of a policy: the permits, and one (a level) or all (a window) refilled per period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) algorithm: Algorithm,
    pub(crate) quota: u64,
    /// Microseconds.
    pub(crate) period: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    TokenBucket,
    Funnel,
    SlidingWindow,
}

/// A request: permits of each of these keys, all or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Check(Vec<(usize, u64)>),
    Peek(Vec<(usize, u64)>),
    Reset(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The time, and the result of each limit.
    Decided(u64, Vec<Facts>),
    Done,
}

/// Fits, whole permits that remain, microseconds until it fits and until all is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) fits: bool,
    pub(crate) remaining: u64,
    pub(crate) retry: u128,
    pub(crate) reset: u128,
}

pub(crate) fn facts(outcome: &LimitOutcome) -> Facts {
    Facts {
        fits: outcome.is_allowed(),
        remaining: outcome.remaining().whole(),
        retry: outcome.retry_after().as_micros(),
        reset: outcome.reset_after().as_micros(),
    }
}

impl Shape {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let algorithms = [
            Algorithm::TokenBucket,
            Algorithm::Funnel,
            Algorithm::SlidingWindow,
        ];
        Self {
            algorithm: algorithms[rng.usize(..3)],
            quota: rng.u64(1..=8),
            period: rng.u64(1_000..1_000_000),
        }
    }

    pub(crate) fn policy(self, name: &str) -> Policy {
        let rate = Rate::per(1, micros(self.period)).unwrap();
        let new = match self.algorithm {
            Algorithm::TokenBucket => Policy::token_bucket,
            Algorithm::Funnel => Policy::funnel,
            Algorithm::SlidingWindow => {
                let window = Policy::sliding_window(name)
                    .limit(self.quota)
                    .window(micros(self.period));
                return window.deadline(PATIENT).build().unwrap();
            }
        };
        new(name.to_owned())
            .capacity(self.quota)
            .rate(rate)
            .deadline(PATIENT)
            .build()
            .unwrap()
    }
}

/// The usage of one key. Times are those of the store's clock; a cancelled call may arrive with an
/// earlier one, which moves a later state back as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// A window's: when each permit was granted, oldest first.
    granted: Vec<u64>,
    /// A level's: microseconds until all that was used is back.
    debt: u64,
    /// The moment of the last charge.
    at: u64,
}

impl State {
    /// Returns the result of a call with this cost, and the state after a charge, a denial or a
    /// peek.
    fn answer(&self, shape: Shape, cost: u64, moment: u64) -> LimitView {
        let mut now = self.clone();
        if now.at > moment {
            let step = now.at - moment;
            now.granted.iter_mut().for_each(|at| *at -= step);
            now.at = moment;
        }
        let moved = now.clone();
        let wait = if shape.algorithm == Algorithm::SlidingWindow {
            now.granted.retain(|at| at + shape.period > moment);
            let used = now.granted.len() as u64;
            let leaving = usize::try_from((used + cost).saturating_sub(shape.quota)).unwrap();
            leaving
                .checked_sub(1)
                .map_or(0, |last| now.granted[last] + shape.period - moment)
        } else {
            now.debt = now.debt.saturating_sub(moment - now.at);
            (now.debt + cost * shape.period).saturating_sub(shape.quota * shape.period)
        };
        now.at = moment;
        LimitView {
            fits: wait == 0,
            wait,
            before: now,
            refused: if moved.at == self.at { self.clone() } else { moved },
        }
    }

    fn charge(mut self, shape: Shape, cost: u64) -> Self {
        if shape.algorithm == Algorithm::SlidingWindow {
            self.granted.extend((0..cost).map(|_| self.at));
        } else {
            self.debt += cost * shape.period;
        }
        self
    }

    fn facts(&self, shape: Shape, fits: bool, wait: u64) -> Facts {
        let (used, reset) = if shape.algorithm == Algorithm::SlidingWindow {
            let newest = self.granted.last();
            (
                self.granted.len() as u64,
                newest.map_or(0, |newest| newest + shape.period - self.at),
            )
        } else {
            (self.debt.div_ceil(shape.period), self.debt)
        };
        Facts {
            fits,
            remaining: shape.quota - used,
            retry: wait.into(),
            reset: reset.into(),
        }
    }
}

struct LimitView {
    fits: bool,
    wait: u64,
    /// The state at the time of the call.
    before: State,
    /// The state that is stored when the call is denied.
    refused: State,
}

/// Returns the result of a request at a time, and the stored state afterwards.
pub(crate) fn step(shape: Shape, states: &[State], question: &Question, moment: u64) -> (Answer, Vec<State>) {
    let mut after = states.to_vec();
    let (limits, charge) = match question {
        Question::Reset(key) => {
            after[*key] = State::default();
            return (Answer::Done, after);
        }
        Question::Check(limits) => (limits, true),
        Question::Peek(limits) => (limits, false),
    };
    let looked: Vec<_> = limits
        .iter()
        .map(|(key, cost)| states[*key].answer(shape, *cost, moment))
        .collect();
    let charged = charge && looked.iter().all(|looked| looked.fits);
    let facts = limits.iter().zip(looked).map(|((key, cost), looked)| {
        if charged {
            after[*key] = looked.before.charge(shape, *cost);
            after[*key].facts(shape, true, 0)
        } else {
            let facts = looked.before.facts(shape, looked.fits, looked.wait);
            if charge {
                after[*key] = looked.refused;
            }
            facts
        }
    });
    let facts = facts.collect();
    (Answer::Decided(moment, facts), after)
}
