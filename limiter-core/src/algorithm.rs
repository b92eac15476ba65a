//! The algorithms as pure functions: no clock, no I/O, no locks, no floats.
//!
//! These functions are the reference model: the memory store runs them, and a differential test
//! compares them with the Lua scripts. A `step` reads the stored state at the given time under the
//! given policy, computes the wait until the cost fits, charges it in mode `Charge`, and returns
//! the outcome. Tests: `tests/differential.rs`, `tests/properties.rs`, and the unit tests of the
//! submodules.

#![deny(clippy::float_arithmetic, clippy::float_cmp)]

mod change;
mod counter_window;
pub(crate) mod fast_level;
mod fixed_window;
pub(crate) mod leased_level;
mod level;
mod ratio;
mod scale;
mod sliding_window;
#[cfg(feature = "redis")]
pub(crate) mod stored;

use smallvec::SmallVec;

#[cfg(any(feature = "redis", test))]
pub(crate) use crate::algorithm::change::force_charge;
#[cfg(test)]
pub(crate) use crate::algorithm::change::refund;
pub(crate) use crate::algorithm::change::{PastUsage, UsageCorrection, change, missing_until};
pub(crate) use crate::algorithm::counter_window::WindowCounters;
pub(crate) use crate::algorithm::fast_level::{FastLevel, FastOutcome, has_fast_level, step_fast};
pub(crate) use crate::algorithm::fixed_window::PeriodCount;
use crate::algorithm::leased_level::LeasedLevel;
#[cfg(feature = "redis")]
pub(crate) use crate::algorithm::leased_level::StoredLoans;
pub(crate) use crate::algorithm::leased_level::holder::{HolderGrant, HolderReport};
#[cfg(all(feature = "redis", test))]
pub(crate) use crate::algorithm::leased_level::leased_at;
pub(crate) use crate::algorithm::leased_level::pace::WHOLE_RATE;
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
use crate::policy::{Algorithm, Funnel};

/// Thousandths per permit.
const THOUSANDTHS: u64 = 1_000;

/// The stored state of one key under one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum StepState {
    /// No usage is stored.
    #[default]
    Absent,
    /// A bucket or a funnel that was charged under one policy only.
    Fast(FastLevel),
    TokenBucket(Level),
    Funnel(Level),
    /// Boxed to keep the entries of tables small.
    SlidingWindow(Box<Ring>),
    /// A bucket or a funnel with leased tokens.
    Leased(Box<LeasedLevel>),
    CounterWindow(WindowCounters),
    FixedWindow(PeriodCount),
}

impl StepState {
    /// True if this state equals absence at `now`, so that a store may delete it.
    pub(crate) fn is_expired(&self, now: u64) -> bool {
        match self {
            Self::Absent => true,
            Self::Fast(fast) => fast.is_expired(now),
            Self::TokenBucket(level) | Self::Funnel(level) => level.is_expired(now),
            Self::SlidingWindow(ring) => ring.is_expired(now),
            Self::Leased(leased) => leased.is_expired(now),
            Self::CounterWindow(counters) => counters.is_expired(now),
            Self::FixedWindow(count) => count.is_expired(now),
        }
    }

    /// As [`is_expired`](Self::is_expired), for a store whose clock differs from the calendar,
    /// which ends calendar periods. They are kept for a small step back of the calendar, at most
    /// for `max_kept` microseconds.
    pub(crate) fn is_expired_by(&self, now: u64, calendar: u64, max_kept: u64) -> bool {
        match self {
            Self::FixedWindow(count) if count.is_aligned() => count.is_expired_after(max_kept, calendar),
            _ => self.is_expired(now),
        }
    }

    /// Returns the microseconds until this state equals absence, in a store whose clock differs
    /// from the calendar.
    pub(crate) fn idle_after(&self, now: u64, calendar: u64) -> u64 {
        let (idle_at, now) = match self {
            Self::Absent => (now, now),
            Self::Fast(fast) => (fast.idle_at(), now),
            Self::TokenBucket(level) | Self::Funnel(level) => (level.keep_until, now),
            Self::SlidingWindow(ring) => (ring.idle_at(), now),
            Self::Leased(leased) => (leased.idle_at(), now),
            Self::CounterWindow(counters) => (counters.end(), now),
            Self::FixedWindow(count) if count.is_aligned() => (count.until, calendar),
            Self::FixedWindow(count) => (count.until, now),
        };
        idle_at.saturating_sub(now)
    }
}

impl StepState {
    /// Replaces the fast form by the level that it represents.
    pub(crate) fn expand_fast_form(&mut self, algorithm: &Algorithm) {
        if let Self::Fast(fast) = self {
            *self = Self::from_level(algorithm, fast.level(algorithm));
        }
    }

    fn from_level(algorithm: &Algorithm, level: Level) -> Self {
        match algorithm {
            Algorithm::TokenBucket(_) => Self::TokenBucket(level),
            _ => Self::Funnel(level),
        }
    }
}

/// Effect of a step on the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Charge the cost if it fits.
    Charge,
    /// Charge nothing, because another limit of the decision denies.
    Refuse,
    /// Return the result of `Charge` without changing the state.
    Peek,
}

/// Result of one limit in a decision, in the algorithm's own units (thousandths, or whole permits
/// for a window) and in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepOutcome {
    /// True if the cost fits.
    pub(crate) fits: bool,
    /// Permits that could be admitted right after this step.
    pub(crate) remaining: u64,
    /// Time until the cost fits if no other call is made; zero if it fits.
    pub(crate) retry_after: u64,
    /// Time until the usage is zero.
    pub(crate) reset_after: u64,
    /// Time until one more whole permit remains if no other call is made; zero without usage. Never
    /// too short.
    pub(crate) next_after: u64,
    /// Time until the stored state equals absence; zero when nothing is stored.
    pub(crate) expires_after: u64,
    /// Delay of an admitted call under a paced funnel.
    pub(crate) delay: u64,
    /// Time at which the usage at this decision is fully refilled, in the clock of the stored
    /// state. Zero if it is the decision time plus `reset_after`.
    pub(crate) whole_at: u64,
}

/// The state of a limit after a step: computed numbers, or the level from which they can be
/// computed. Most callers need no numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StepResult {
    Level(FastOutcome),
    Computed(StepOutcome),
}

impl StepResult {
    /// True if the cost fits.
    #[inline]
    pub(crate) fn fits(&self) -> bool {
        match self {
            Self::Level(outcome) => outcome.fits(),
            Self::Computed(outcome) => outcome.fits,
        }
    }

    /// Returns the delay of an admitted call. A fast level is never paced.
    #[inline]
    pub(crate) fn delay(&self) -> u64 {
        match self {
            Self::Level(_) => 0,
            Self::Computed(outcome) => outcome.delay,
        }
    }

    /// Computes the numbers under the algorithm of the step.
    pub(crate) fn outcome(&self, algorithm: &Algorithm) -> StepOutcome {
        match *self {
            Self::Level(outcome) => outcome.outcome(algorithm),
            Self::Computed(outcome) => outcome,
        }
    }
}

/// Returns the level at which one more whole permit remains, in thousandths.
pub(crate) fn next_permit(remaining: u64) -> u64 {
    remaining.saturating_add(THOUSANDTHS - remaining % THOUSANDTHS)
}

/// Executes the step of one limit and returns the outcome. A cost of zero is a peek and always
/// fits.
pub(crate) fn step(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    match step_fast(algorithm, state, cost, now, mode) {
        Some(outcome) => outcome.outcome(algorithm),
        None => step_slow(algorithm, state, cost, now, mode),
    }
}

/// Executes the step for an empty state or a state of several policies.
fn step_slow(algorithm: &Algorithm, state: &mut StepState, cost: u64, now: u64, mode: Mode) -> StepOutcome {
    let mode = if cost == 0 { Mode::Peek } else { mode };
    if state.is_expired(now) {
        if let Some(mut fast) = FastLevel::unused(algorithm, now) {
            if let Some(outcome) = fast.step(algorithm, cost, now, mode == Mode::Charge) {
                if mode == Mode::Charge && outcome.fits() {
                    *state = StepState::Fast(fast);
                }
                return outcome.outcome(algorithm);
            }
        }
    }
    state.expand_fast_form(algorithm);
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
        return step_unpaced(algorithm, state, cost, now, mode);
    };
    // A paced call waits until all earlier calls have drained.
    let before = step_unpaced(algorithm, state, 0, now, Mode::Peek);
    let mut outcome = step_unpaced(algorithm, state, cost, now, mode);
    if outcome.fits && cost > 0 {
        outcome.delay = before.reset_after;
    }
    outcome
}

fn step_unpaced(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    if let StepState::Leased(_) = state {
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
        // A concurrency limit has no state that changes with time; no request contains one.
        Algorithm::Concurrency(_) => return StepOutcome::default(),
    };
    if let Some(level) = level {
        *state = match FastLevel::from_level(algorithm, &level, now, outcome.reset_after) {
            Some(fast) => StepState::Fast(fast),
            None => StepState::from_level(algorithm, level),
        };
    }
    outcome
}

/// Leases tokens of a bucket or a funnel, together with an ordinary charge. Windows lease no
/// tokens.
#[cfg(any(feature = "redis", test))]
pub(crate) fn grant_lease(
    algorithm: &Algorithm,
    state: &mut StepState,
    request: &LeaseRequest,
    now: u64,
) -> (StepOutcome, LeaseGrant) {
    state.expand_fast_form(algorithm);
    crate::algorithm::leased_level::grant_request(algorithm, state, request, now)
}

/// Renews the lease of a named holder on a bucket or a funnel. Windows lease no tokens.
pub(crate) fn renew_holder(
    algorithm: &Algorithm,
    state: &mut StepState,
    report: &HolderReport,
    now: u64,
) -> HolderGrant {
    state.expand_fast_form(algorithm);
    crate::algorithm::leased_level::renew_holder(algorithm, state, report, now)
}

/// One limit of a decision and its state.
#[derive(Debug)]
pub(crate) struct StateSlot<'a> {
    pub(crate) algorithm: &'a Algorithm,
    pub(crate) cost: u64,
    pub(crate) state: &'a mut StepState,
    /// A block of a penalty: its cost is checked and never charged.
    pub(crate) blocks: bool,
    /// Current time in microseconds, in the clock of the stored state.
    pub(crate) now: u64,
}

/// Decides several limits together: all are charged or none.
pub(crate) fn decide(slots: &mut [StateSlot<'_>], mode: Mode) -> SmallVec<[StepOutcome; 1]> {
    let is_single = slots.len() == 1;
    let mut step_all = |mode| -> SmallVec<[StepOutcome; 1]> {
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
    // A single limit needs no peek before the charge: it charges nothing if it denies.
    if mode != Mode::Charge || is_single {
        return step_all(mode);
    }
    let all_fit = step_all(Mode::Peek).iter().all(|outcome| outcome.fits);
    step_all(if all_fit { Mode::Charge } else { Mode::Refuse })
}

#[cfg(test)]
mod counter_window_tests;
