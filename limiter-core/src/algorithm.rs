//! The algorithms as pure functions: no clock, no I/O, no locks, no floats.
//!
//! They are the model: the memory store runs them, and a differential test compares them with the
//! Lua scripts. A `step` interprets the stored state at the given time under the given policy,
//! computes the wait until the cost fits, charges it in mode `Charge`, and reports the outcome.

#![deny(clippy::float_arithmetic, clippy::float_cmp)]

mod counter_window;
pub(crate) mod fast_level;
mod fixed_window;
mod funnel;
#[cfg_attr(
    not(any(feature = "redis", test)),
    expect(dead_code, reason = "only Redis lends")
)]
pub(crate) mod leased_level;
mod level;
mod ratio;
mod scale;
mod sliding_window;
#[cfg(feature = "redis")]
pub(crate) mod stored;
mod token_bucket;

use smallvec::SmallVec;

pub(crate) use crate::algorithm::counter_window::WindowCounters;
pub(crate) use crate::algorithm::fast_level::{FastLevel, FastOutcome};
pub(crate) use crate::algorithm::fixed_window::PeriodCount;
use crate::algorithm::leased_level::LeasedLevel;
#[cfg(feature = "redis")]
pub(crate) use crate::algorithm::leased_level::StoredLoans;
#[cfg(all(feature = "redis", test))]
pub(crate) use crate::algorithm::leased_level::lent_at;
#[cfg(any(feature = "redis", test))]
pub(crate) use crate::algorithm::leased_level::{LeaseGrant, LeaseRequest, UsageReport};
use crate::algorithm::level::Level;
#[cfg(feature = "redis")]
pub(crate) use crate::algorithm::level::StoredLevel;
pub(crate) use crate::algorithm::ratio::ScaleChange;
pub(crate) use crate::algorithm::scale::{scale, scale_change};
use crate::algorithm::sliding_window::Ring;
#[cfg(feature = "redis")]
pub(crate) use crate::algorithm::stored::StoredState;
use crate::policy::{Algorithm, CounterWindow, Funnel, TokenBucket};

/// A permit of a level.
const THOUSANDTHS: u64 = 1_000;

/// What is stored for one key under one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum StepState {
    /// Nothing is stored: nothing was used.
    #[default]
    Absent,
    /// A bucket or a funnel that one policy alone has charged.
    Steady(FastLevel),
    TokenBucket(Level),
    Funnel(Level),
    /// Boxed, so that an entry of a table with buckets alone does not take a ring's room.
    SlidingWindow(Box<Ring>),
    /// A bucket or a funnel, some of which is lent.
    Lent(Box<LeasedLevel>),
    CounterWindow(WindowCounters),
    FixedWindow(PeriodCount),
}

impl StepState {
    /// Whether this state equals absence at `now`, so that a store may let go of it.
    pub(crate) fn is_expired(&self, now: u64) -> bool {
        match self {
            Self::Absent => true,
            Self::Steady(steady) => steady.is_expired(now),
            Self::TokenBucket(level) | Self::Funnel(level) => level.is_expired(now),
            Self::SlidingWindow(ring) => ring.is_expired(now),
            Self::Lent(lent) => lent.is_expired(now),
            Self::CounterWindow(counters) => counters.is_expired(now),
            Self::FixedWindow(count) => count.is_expired(now),
        }
    }

    /// The same in a store whose clock is not the calendar, by which the periods of that are over.
    pub(crate) fn is_expired_by(&self, now: u64, calendar: u64) -> bool {
        match self {
            Self::FixedWindow(count) if count.aligned => count.is_expired(calendar),
            _ => self.is_expired(now),
        }
    }

    /// Microseconds until this state equals absence, in a store whose clock is not the calendar.
    pub(crate) fn idle_after(&self, now: u64, calendar: u64) -> u64 {
        let (idle_at, now) = match self {
            Self::Absent => (now, now),
            Self::Steady(steady) => (steady.idle_at(), now),
            Self::TokenBucket(level) | Self::Funnel(level) => (level.keep_until, now),
            Self::SlidingWindow(ring) => (ring.idle_at(), now),
            Self::Lent(lent) => (lent.idle_at(), now),
            Self::CounterWindow(counters) => (counters.end(), now),
            Self::FixedWindow(count) if count.aligned => (count.until, calendar),
            Self::FixedWindow(count) => (count.until, now),
        };
        idle_at.saturating_sub(now)
    }
}

impl StepState {
    /// Puts the level in place of what stands for it.
    fn settle(&mut self, algorithm: &Algorithm) {
        if let Self::Steady(steady) = self {
            *self = Self::of_level(algorithm, steady.level(algorithm));
        }
    }

    fn of_level(algorithm: &Algorithm, level: Level) -> Self {
        match algorithm {
            Algorithm::TokenBucket(_) => Self::TokenBucket(level),
            _ => Self::Funnel(level),
        }
    }
}

/// What a step may do to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Charge the cost if it fits.
    Charge,
    /// Charge nothing, since another limit of the decision denies.
    Refuse,
    /// Say what `Charge` would answer; change nothing.
    Peek,
}

/// One limit's part in a decision, in the algorithm's own units (thousandths, or whole permits for
/// a window) and in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepOutcome {
    /// Whether this limit has room for the cost.
    pub(crate) fits: bool,
    /// What could be admitted right after this step.
    pub(crate) remaining: u64,
    /// Time until the cost fits, with nobody else asking; zero when it fits.
    pub(crate) retry_after: u64,
    /// Time until nothing is left of what was used.
    pub(crate) reset_after: u64,
    /// Time until a whole permit more remains, with nobody asking; zero when nothing is used. Never
    /// too short.
    pub(crate) next_after: u64,
    /// Time until the stored state equals absence; zero when nothing is stored.
    pub(crate) expires_after: u64,
    /// Time that a call which is admitted waits, so that calls leave evenly.
    pub(crate) delay: u64,
    /// When nothing is left of what was used, in the time in which the state is kept. 0 where that
    /// is the decision's, so that it follows from that and `reset_after`.
    pub(crate) whole_at: u64,
}

/// How a limit stands after a step: in numbers, or by what they are computed of. Most callers ask
/// for none of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StepResult {
    Left(FastOutcome),
    Told(StepOutcome),
}

impl StepResult {
    /// Whether this limit has room for the cost.
    #[inline]
    pub(crate) fn fits(&self) -> bool {
        match self {
            Self::Left(left) => left.fits(),
            Self::Told(outcome) => outcome.fits,
        }
    }

    /// Time that a call which is admitted waits. What stands for a level is never paced.
    #[inline]
    pub(crate) fn delay(&self) -> u64 {
        match self {
            Self::Left(_) => 0,
            Self::Told(outcome) => outcome.delay,
        }
    }

    /// The numbers, under the algorithm that was asked.
    pub(crate) fn outcome(&self, algorithm: &Algorithm) -> StepOutcome {
        match *self {
            Self::Left(left) => left.outcome(algorithm),
            Self::Told(outcome) => outcome,
        }
    }
}

/// The whole permit that a level does not hold yet, in thousandths.
pub(crate) fn next_permit(remaining: u64) -> u64 {
    remaining.saturating_add(THOUSANDTHS - remaining % THOUSANDTHS)
}

/// Takes one limit's step, and says how it stands. A cost of zero is a peek, always allowed.
pub(crate) fn step(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    match step_steadily(algorithm, state, cost, now, mode) {
        Some(left) => left.outcome(algorithm),
        None => begin_or_go_on(algorithm, state, cost, now, mode),
    }
}

/// The same step where it is one of a policy that alone has charged the limit, as nearly all are:
/// what it answers fits in registers.
#[inline]
pub(crate) fn step_steadily(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> Option<FastOutcome> {
    match state {
        StepState::Steady(steady) => steady.step(algorithm, cost, now, mode == Mode::Charge && cost > 0),
        _ => None,
    }
}

/// What is rarer: nothing was used before, or more than one policy has to be respected.
fn begin_or_go_on(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    let mode = if cost == 0 { Mode::Peek } else { mode };
    if state.is_expired(now) {
        if let Some(mut steady) = FastLevel::unused(algorithm, now) {
            if let Some(left) = steady.step(algorithm, cost, now, mode == Mode::Charge) {
                if mode == Mode::Charge && left.fits() {
                    *state = StepState::Steady(steady);
                }
                return left.outcome(algorithm);
            }
        }
    }
    state.settle(algorithm);
    step_on_level(algorithm, state, cost, now, mode)
}

fn step_on_level(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    let Algorithm::Funnel(Funnel { paced: true, .. }) = algorithm else {
        return step_at_once(algorithm, state, cost, now, mode);
    };
    // A paced call waits for all that was admitted before it.
    let before = step_at_once(algorithm, state, 0, now, Mode::Peek);
    let mut outcome = step_at_once(algorithm, state, cost, now, mode);
    if outcome.fits && cost > 0 {
        outcome.delay = before.reset_after;
    }
    outcome
}

fn step_at_once(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    if let StepState::Lent(_) = state {
        return crate::algorithm::leased_level::step(algorithm, state, cost, now, mode);
    }
    let stored = match (&*state, algorithm) {
        (StepState::TokenBucket(level), Algorithm::TokenBucket(_))
        | (StepState::Funnel(level), Algorithm::Funnel(_)) => Some(*level),
        _ => None,
    };
    let (level, outcome) = match algorithm {
        Algorithm::TokenBucket(limit) => level::step(limit, stored, cost, now, mode),
        Algorithm::Funnel(limit) => level::step(limit, stored, cost, now, mode),
        Algorithm::SlidingWindow(limit) => return sliding_window::step(limit, state, cost, now, mode),
        Algorithm::CounterWindow(limit) => return counter_window::step(limit, state, cost, now, mode),
        Algorithm::FixedWindow(limit) => return fixed_window::step(limit, state, cost, now, mode),
        // What is in flight has no state that time changes; no request is ever made of it.
        Algorithm::Concurrency(_) => return StepOutcome::default(),
    };
    if let Some(level) = level {
        *state = match FastLevel::of_level(algorithm, &level, now, outcome.reset_after) {
            Some(steady) => StepState::Steady(steady),
            None => StepState::of_level(algorithm, level),
        };
    }
    outcome
}

/// Gives up to `amount` back of what was used, and says how the limit stands now. Nothing is
/// minted: what was not used does not come back.
pub(crate) fn refund(algorithm: &Algorithm, state: &mut StepState, amount: u64, now: u64) -> StepOutcome {
    match algorithm {
        Algorithm::SlidingWindow(limit) => sliding_window::refund(limit, state, amount, now),
        Algorithm::CounterWindow(limit) => counter_window::refund(limit, state, amount, now),
        Algorithm::FixedWindow(limit) => fixed_window::refund(limit, state, amount, now),
        _ => {
            state.settle(algorithm);
            crate::algorithm::leased_level::refund(algorithm, state, amount, now);
        }
    }
    step(algorithm, state, 0, now, Mode::Peek)
}

/// Charges an amount whatever is left, and says how the limit stands now. What is charged beyond
/// what was left is a debt: nothing fits until it has come back.
pub(crate) fn owe(algorithm: &Algorithm, state: &mut StepState, amount: u64, now: u64) -> StepOutcome {
    match algorithm {
        Algorithm::SlidingWindow(limit) => sliding_window::owe(limit, state, amount, now),
        Algorithm::CounterWindow(limit) => counter_window::owe(limit, state, amount, now),
        Algorithm::FixedWindow(limit) => fixed_window::owe(limit, state, amount, now),
        _ => {
            state.settle(algorithm);
            crate::algorithm::leased_level::owe(algorithm, state, amount, now);
        }
    }
    step(algorithm, state, 0, now, Mode::Peek)
}

/// What is done to what a limit has used, beside its decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is given back, as far as it is used.
    Refund {
        /// When all would have come back that was used as this was taken, with nobody else asking;
        /// 0 if that is not known. What has come back by itself since then is not given back once
        /// more.
        whole_at: u64,
    },
    /// It is charged, whatever is left.
    Owe,
}

/// Makes a change, and says how the limit stands now.
pub(crate) fn change(
    algorithm: &Algorithm,
    state: &mut StepState,
    amount: u64,
    change: Change,
    now: u64,
) -> StepOutcome {
    match change {
        Change::Refund { whole_at: 0 } => refund(algorithm, state, amount, now),
        Change::Refund { whole_at } => {
            let missing = missing_until(algorithm, whole_at, amount, now);
            refund(algorithm, state, missing, now)
        }
        Change::Owe => owe(algorithm, state, amount, now),
    }
}

/// How much of an amount can be missing still that was used when the limit was to be whole at this
/// moment. Permits of a window leave it together, those of a level come back at its rate, and those
/// of two counters count less and less in their last window.
pub(crate) fn missing_until(algorithm: &Algorithm, whole_at: u64, amount: u64, now: u64) -> u64 {
    let left = whole_at.saturating_sub(now);
    match algorithm {
        Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
            rate.accrue(left, 0).0.min(amount)
        }
        Algorithm::CounterWindow(CounterWindow { window, .. }) => {
            counter_window::still_counts(amount, left, *window)
        }
        Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_) if left == 0 => 0,
        Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_) => amount,
        // What is in flight is given back by its permit alone.
        Algorithm::Concurrency(_) => 0,
    }
}

/// Lends some of a bucket or a funnel, to be spent elsewhere, beside an ordinary charge. Nothing is
/// lent of a window.
#[cfg(any(feature = "redis", test))]
pub(crate) fn grant_lease(
    algorithm: &Algorithm,
    state: &mut StepState,
    ask: &LeaseRequest,
    now: u64,
) -> (StepOutcome, LeaseGrant) {
    state.settle(algorithm);
    crate::algorithm::leased_level::grant_request(algorithm, state, ask, now)
}

/// One limit of a decision, and the state that it is about.
#[derive(Debug)]
pub(crate) struct StateSlot<'a> {
    pub(crate) algorithm: &'a Algorithm,
    pub(crate) cost: u64,
    pub(crate) state: &'a mut StepState,
    /// It is asked for its cost like the others, and never charged.
    pub(crate) blocks: bool,
    /// The moment, in microseconds of the time in which its state is kept.
    pub(crate) now: u64,
}

/// Decides several limits as one: all are charged, or none.
pub(crate) fn decide(slots: &mut [StateSlot<'_>], mode: Mode) -> SmallVec<[StepOutcome; 1]> {
    let alone = slots.len() == 1;
    let mut take = |mode| -> SmallVec<[StepOutcome; 1]> {
        slots
            .iter_mut()
            .map(|slot| {
                let mode = match mode {
                    Mode::Charge if slot.blocks => Mode::Refuse,
                    mode => mode,
                };
                step(slot.algorithm, slot.state, slot.cost, slot.now, mode)
            })
            .collect()
    };
    // A single limit needs no peek first: it charges nothing if it denies.
    if mode != Mode::Charge || alone {
        return take(mode);
    }
    let all_fit = take(Mode::Peek).iter().all(|outcome| outcome.fits);
    take(if all_fit { Mode::Charge } else { Mode::Refuse })
}

#[cfg(test)]
mod counted_tests;
