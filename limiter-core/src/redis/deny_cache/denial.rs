//! One denial, and the answers to later calls for the same limits that follow from it.
//!
//! A client that is denied repeats its call, and Redis would deny it again. A [`Denial`] contains
//! the state or the numbers that Redis reported, and the local time at which its request started.
//! [`Denial::answer`] computes the numbers of a later call from them with the pure step of the
//! algorithm, without I/O.
//!
//! Invariants: an answer is a denial that Redis would also make at that moment; any doubt (a cost
//! that may fit, a reset, a clock that stepped back) leaves the call to Redis. A denial never
//! outlives its limits, and it ends early rather than late, because it counts from the start of the
//! request.
//!
//! Tests: `deny_cache/tests`, `deny_cache/model.rs`, `tests/denials.rs`.

use crate::algorithm::{FastLevel, Mode, StepOutcome, StepResult, StepState, step};
use crate::identity::Identity;
use crate::policy::Algorithm;
use crate::redis::deny_cache::LimitCost;
use crate::request::{DecisionRequest, ReportedState, Verdict};
use crate::support::one_or_many::OneOrMany;
use crate::units::Timestamp;

/// A denial with the reported state of its limits.
#[derive(Debug)]
pub(crate) struct Denial {
    limits: OneOrMany<DeniedRequest>,
    started: StartedAt,
    /// The end of the denial in local time.
    until: u64,
    /// The moment of the decision in store time.
    decided_at: Timestamp,
}

/// One limit of the denied request.
#[derive(Debug)]
struct DeniedRequest {
    identity: Identity,
    algorithm: Algorithm,
    /// In the algorithm's own unit.
    cost: u64,
    report: DenialReport,
}

/// The reported state of a limit.
#[derive(Debug)]
enum DenialReport {
    /// Its state, from which the answer to any cost at any moment follows.
    StepState(StepState),
    /// The fast form of its state, which gives the same answers without divisions and copies.
    FastLevel(FastLevel),
    /// The numbers of a sliding window; its moments stay in the store. Only answers to the same
    /// cost follow, until a permit comes back.
    Window {
        /// `None` if the verdict reports no state.
        used: Option<u64>,
        remaining: u64,
        /// Zero if the cost fits.
        retry_after: u64,
        reset_after: u64,
        next_after: u64,
        expires_after: u64,
    },
}

impl DenialReport {
    /// Creates the state if the store reported it, or else the numbers.
    fn new(algorithm: &Algorithm, state: Option<&ReportedState>, outcome: &StepOutcome) -> Self {
        let window = |used| Self::Window {
            used,
            remaining: outcome.remaining,
            retry_after: outcome.retry_after,
            reset_after: outcome.reset_after,
            next_after: outcome.next_after,
            expires_after: outcome.expires_after,
        };
        let state = match state {
            None => return window(None),
            Some(ReportedState::WindowUsage(used)) => return window(Some(*used)),
            Some(ReportedState::Stored(state)) => state,
        };
        match FastLevel::from_state(algorithm, state) {
            Some(level) => Self::FastLevel(level),
            None => Self::StepState(state.clone()),
        }
    }
}

/// The result of a report for a later call.
enum LimitDenial {
    StepResult(StepResult),
    /// Denied, with unknown numbers.
    Denial,
    Unknown,
}

/// The start of the denied request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartedAt {
    /// In microseconds of the local clock.
    pub(crate) at: u64,
    pub(crate) generation: u64,
}

/// Returns the microseconds until all limits of a verdict fit; `None` if all of them fit.
pub(crate) fn denied_for(verdict: &Verdict) -> Option<u64> {
    let denying = verdict.outcomes.iter().filter(|outcome| !outcome.fits);
    denying.map(|outcome| outcome.retry_after).max()
}

/// The result of a cached denial for a request.
#[derive(Debug)]
pub(crate) enum DenialAnswer {
    /// The store would deny the request; the moment is in store time.
    Denied(Timestamp),
    /// The store would deny the request, with unknown numbers.
    Unknown,
    /// The store may charge the limits or change their state, so the denial is dropped.
    Superseded,
}

impl Denial {
    /// Creates the cached form of a verdict. `lasts` bounds its life in microseconds.
    pub(crate) fn new(
        request: &DecisionRequest<'_>,
        verdict: &Verdict,
        started: StartedAt,
        lasts: u64,
    ) -> Self {
        let states = verdict.states.as_deref().unwrap_or_default();
        let limits = request.limits.iter().zip(&verdict.outcomes).enumerate();
        let limits: OneOrMany<DeniedRequest> = limits
            .map(|(number, (limit, outcome))| {
                let algorithm = *limit.policy.algorithm();
                let state = states.get(number);
                DeniedRequest {
                    identity: limit.identity,
                    algorithm,
                    cost: limit.cost,
                    report: DenialReport::new(&algorithm, state, outcome),
                }
            })
            .collect();
        let lasts = limits.iter().map(DeniedRequest::lasts).fold(lasts, u64::min);
        Self {
            limits,
            started,
            until: started.at.saturating_add(lasts),
            decided_at: verdict.decided_at,
        }
    }

    /// Returns the number of limits.
    pub(crate) fn len(&self) -> usize {
        self.limits.len()
    }

    /// Returns whether the denial concerns these limits in this order.
    pub(crate) fn concerns<'a>(&self, charges: impl Iterator<Item = LimitCost<'a>>) -> bool {
        let requested = charges.map(|charge| charge.identity);
        self.limits.iter().map(|denied| denied.identity).eq(requested)
    }

    /// Returns whether two denials concern the same limits.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let others = other.limits.iter().map(|denied| denied.identity);
        self.limits.iter().map(|denied| denied.identity).eq(others)
    }

    /// Decides a request for the same limits; `report` receives the outcome of each limit.
    pub(crate) fn decide<'a>(
        &self,
        charges: impl Iterator<Item = LimitCost<'a>>,
        generation: u64,
        now: u64,
        mut report: impl FnMut(&Algorithm, StepResult),
    ) -> DenialAnswer {
        // After its end or a backward step of the clock, the store decides and may charge the
        // limits.
        if !self.holds(generation, now) {
            return DenialAnswer::Superseded;
        }
        let passed = now - self.started.at;
        let decided_at = self.decided_at.as_micros().saturating_add(passed);
        let (mut denies, mut is_known) = (false, true);
        for (denied, charge) in self.limits.iter().zip(charges) {
            match denied.at(charge, passed, decided_at) {
                LimitDenial::StepResult(result) => {
                    denies |= !result.fits();
                    report(&denied.algorithm, result);
                }
                LimitDenial::Denial => (denies, is_known) = (true, false),
                LimitDenial::Unknown => return DenialAnswer::Superseded,
            }
        }
        match (denies, is_known) {
            (false, _) => DenialAnswer::Superseded,
            (true, false) => DenialAnswer::Unknown,
            (true, true) => DenialAnswer::Denied(Timestamp::from_micros(decided_at)),
        }
    }

    /// Returns whether this denial answers more calls than a later denial: it was submitted later,
    /// or it concerns only windows and smaller costs.
    pub(crate) fn outweighs(&self, other: &Self, now: u64) -> bool {
        let pairs = || self.limits.iter().zip(other.limits.iter());
        let denied_less = pairs().all(|(own, other)| own.is_window_with(other.algorithm, other.cost))
            && pairs().any(|(own, other)| own.cost < other.cost);
        self.holds(other.started.generation, now) && (denied_less || self.started.at > other.started.at)
    }

    fn holds(&self, generation: u64, now: u64) -> bool {
        self.started.generation == generation && (self.started.at..self.until).contains(&now)
    }
}

impl DeniedRequest {
    /// Returns whether the denial is of a window under this algorithm, with a cost of at most this
    /// one.
    fn is_window_with(&self, algorithm: Algorithm, cost: u64) -> bool {
        matches!(self.report, DenialReport::Window { .. }) && self.algorithm == algorithm && self.cost <= cost
    }

    /// Returns the microseconds for which the report has an answer.
    ///
    /// Returns 0 for a peek of a window whose newest permit is later than the store's clock. After
    /// a backward step, only a charge moves the window back, so its times are not valid before
    /// that. Returns 0 as well for a window whose usage exceeds its limit, as after a policy
    /// change: the reply does not contain the time at which the usage has fallen to the limit, and
    /// `next_after` changes then.
    fn lasts(&self) -> u64 {
        match (&self.report, &self.algorithm) {
            (DenialReport::StepState(_) | DenialReport::FastLevel(_), _) => u64::MAX,
            (DenialReport::Window { reset_after, .. }, Algorithm::SlidingWindow(limit))
                if self.cost == 0 && *reset_after >= limit.window =>
            {
                0
            }
            (DenialReport::Window { used: Some(used), .. }, Algorithm::SlidingWindow(limit))
                if *used > limit.limit =>
            {
                0
            }
            // Nothing is used, so no permit returns.
            (DenialReport::Window { next_after: 0, .. }, _) => u64::MAX,
            (DenialReport::Window { next_after, .. }, _) => *next_after,
        }
    }

    /// Returns the report that the store would send `passed` microseconds after the denial, at
    /// `now` of its own clock.
    fn at(&self, charge: LimitCost<'_>, passed: u64, now: u64) -> LimitDenial {
        if self.algorithm != *charge.algorithm {
            return LimitDenial::Unknown;
        }
        match &self.report {
            DenialReport::FastLevel(level) => match level.peek(&self.algorithm, charge.cost, now) {
                Some(outcome) => LimitDenial::StepResult(StepResult::Level(outcome)),
                // The clock of the store is before the last charge: a denial changes the state.
                None => LimitDenial::Unknown,
            },
            DenialReport::StepState(before) => {
                let mut after = before.clone();
                let outcome = step(&self.algorithm, &mut after, charge.cost, now, Mode::Refuse);
                // A denial that changes the state is left to the store: later answers depend on the
                // change.
                if after == *before {
                    LimitDenial::StepResult(StepResult::Computed(outcome))
                } else {
                    LimitDenial::Unknown
                }
            }
            DenialReport::Window {
                used: _,
                remaining,
                retry_after,
                reset_after,
                next_after,
                expires_after,
            } => {
                let fits = *retry_after == 0;
                let fits_as_well = fits && self.cost > 0 && charge.cost <= *remaining;
                if charge.cost != self.cost && !fits_as_well {
                    return if !fits && charge.cost > self.cost {
                        LimitDenial::Denial
                    } else {
                        LimitDenial::Unknown
                    };
                }
                let left = |span: &u64| span.saturating_sub(passed);
                LimitDenial::StepResult(StepResult::Computed(StepOutcome {
                    fits,
                    remaining: *remaining,
                    retry_after: left(retry_after),
                    reset_after: left(reset_after),
                    next_after: left(next_after),
                    expires_after: left(expires_after),
                    ..StepOutcome::default()
                }))
            }
        }
    }
}
