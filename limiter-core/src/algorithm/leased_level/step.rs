//! One step on a level that may have leased tokens: a decision, a refund, a charge or a lease.
//!
//! A step brings the stored state forward to the time of the call, which ends the leases that have
//! expired, and changes it. It writes the state back if the step changed it, if the stored time is
//! ahead of the clock, or if the policy of the call needs the state for longer.
//!
//! Invariants: a step on a level without leases equals the step of the plain level, and a written
//! state is kept until it equals absence under the policy of the call. Tests:
//! `leased_level/tests.rs`, `leased_level/tests/holders.rs`.

#[cfg(any(feature = "redis", test))]
use crate::algorithm::leased_level::{LeaseGrant, LeaseRequest, PERMIT};
use crate::algorithm::leased_level::{LeaseGrants, LeasedLevel};
use crate::algorithm::level::LevelKind;
use crate::algorithm::{Mode, StepOutcome, StepState, level, next_permit};
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// A level at `now` under the policy of a call, and the relation to its stored form.
#[derive(Debug)]
pub(super) struct LevelStep {
    is_stored: bool,
    /// The stored time is later than `now`: the clock stepped back.
    is_ahead: bool,
    pub(super) leased: LeasedLevel,
    /// A larger or slower policy keeps the state longer than this one would.
    for_others: bool,
}

impl LevelStep {
    pub(super) fn view_at(meter: &impl LevelKind, state: &StepState, now: u64) -> Self {
        let stored = stored_at(state, now);
        let leased = view(meter, stored, now);
        Self {
            is_stored: stored.is_some(),
            is_ahead: stored.is_some_and(|stored| now < stored.level.at),
            leased,
            for_others: leased.level.keep_until > now + leased.idle_after(meter),
        }
    }

    /// Shortens the life of the state after a report: no later end of the lease delays the refill,
    /// and no policy is missing the returned tokens any more.
    pub(super) fn shorten_life(&mut self, meter: &impl LevelKind, returned: u64) {
        let idle_at = self.leased.level.at + self.leased.idle_after(meter);
        let level = &mut self.leased.level;
        level.keep_until = if self.for_others {
            let sooner = level
                .keep_until
                .saturating_sub(meter.rate().time_for(returned, 0));
            sooner.max(idle_at)
        } else {
            idle_at
        };
        self.for_others = level.keep_until > idle_at;
    }

    /// Returns the outcome after a change. The state is stored if it `changed` or has to be
    /// repaired; `taken` is the charged amount.
    pub(super) fn settle(
        mut self,
        meter: &impl LevelKind,
        algorithm: &Algorithm,
        state: &mut StepState,
        taken: u64,
        (changed, may_repair): (bool, bool),
    ) -> StepOutcome {
        let LeasedLevel { level, loans } = self.leased;
        let (now, kept) = (level.at, level.keep_until);
        let reset_after = self.leased.idle_after(meter);
        let mut keep_until = kept;
        if taken > 0 && self.for_others {
            // The charge also counts under the other policy, where it is refilled from the end of
            // the last lease.
            let from = kept.max(if loans.total() > 0 { loans.last_end() } else { 0 });
            keep_until = (from + meter.rate().time_for(taken, 0)).min(now + MAX_EXACT);
        }
        keep_until = keep_until.max(now + reset_after);
        let repaired = may_repair && self.is_stored && (self.is_ahead || keep_until > kept);
        if changed || repaired {
            self.leased.level.keep_until = keep_until;
            *state = self.leased.into_state(algorithm);
        }
        let remaining = self.leased.remaining(meter);
        let next_after = self.leased.retry_after(meter, next_permit(remaining));
        StepOutcome {
            fits: true,
            remaining,
            retry_after: 0,
            reset_after,
            next_after: next_after.min(reset_after),
            expires_after: self.leased.level.keep_until.saturating_sub(now),
            ..StepOutcome::default()
        }
    }
}

impl LeasedLevel {
    fn into_state(self, algorithm: &Algorithm) -> StepState {
        match algorithm {
            _ if self.is_expired(self.level.at) => StepState::Absent,
            _ if self.loans.total() > 0 => StepState::Leased(Box::new(self)),
            _ => StepState::from_level(algorithm, self.level),
        }
    }
}

/// Returns the stored level, unless it equals absence at `now`.
pub(super) fn stored_at(state: &StepState, now: u64) -> Option<LeasedLevel> {
    let stored = match state {
        StepState::TokenBucket(level) | StepState::Funnel(level) => Some(LeasedLevel {
            level: *level,
            loans: LeaseGrants::default(),
        }),
        StepState::Leased(leased) => Some(**leased),
        // The caller has expanded the fast form.
        StepState::Absent
        | StepState::Fast(_)
        | StepState::SlidingWindow(_)
        | StepState::CounterWindow(_)
        | StepState::FixedWindow(_) => None,
    };
    stored.filter(|leased| !leased.is_expired(now))
}

/// Executes a step.
pub(crate) fn decide(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    let mut step = LevelStep::view_at(meter, state, now);
    let fits = step.leased.fits(meter, cost);
    let retry_after = if fits {
        0
    } else {
        step.leased.retry_after(meter, cost)
    };
    let charged = fits && mode == Mode::Charge;
    let taken = if charged { cost } else { 0 };
    step.leased.level.amount = meter.charged(step.leased.level.amount, taken);
    let settled = step.settle(meter, algorithm, state, taken, (charged, mode != Mode::Peek));
    StepOutcome {
        fits,
        retry_after,
        ..settled
    }
}

/// Refunds usage without the leased tokens.
pub(crate) fn refund_level(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    amount: u64,
    now: u64,
) {
    let mut step = LevelStep::view_at(meter, state, now);
    let level = &mut step.leased.level;
    let reduced = meter.without(step.leased.loans.total());
    let used = reduced.used(level.amount);
    let refunded = amount.min(used);
    if refunded == 0 {
        return;
    }
    level.amount = reduced.after_refill(level.amount, refunded);
    if refunded == used {
        level.remainder = 0;
    }
    if !step.for_others {
        level.keep_until = now;
    }
    step.settle(meter, algorithm, state, 0, (true, false));
}

/// Charges an amount unconditionally. The usage stays within the exact range.
pub(crate) fn charge(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    amount: u64,
    now: u64,
) {
    let mut step = LevelStep::view_at(meter, state, now);
    let (level, leased) = (&mut step.leased.level, step.leased.loans.total());
    // Leased tokens may still be spent.
    let used = meter.without(leased).used(level.amount) + leased;
    let charged = amount.min(MAX_EXACT.saturating_sub(used));
    if charged == 0 {
        return;
    }
    level.amount = meter.charged(level.amount, charged);
    step.settle(meter, algorithm, state, charged, (true, false));
}

/// Applies a report, a charge and a lease, in this order.
#[cfg(any(feature = "redis", test))]
pub(crate) fn lease(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    request: &LeaseRequest,
    now: u64,
) -> (StepOutcome, LeaseGrant) {
    let mut step = LevelStep::view_at(meter, state, now);
    let returned = step.leased.apply_report(meter, request.report);
    if let Some(returned) = returned {
        step.shorten_life(meter, returned);
    }
    let fits = step.leased.fits(meter, request.cost);
    let retry_after = if fits {
        0
    } else {
        step.leased.retry_after(meter, request.cost)
    };
    let charged = if fits { request.cost } else { 0 };
    step.leased.level.amount = meter.charged(step.leased.level.amount, charged);
    // Half of the remaining tokens stays for other calls and holders; fractions of a permit are not
    // leased.
    let wanted = if fits {
        request.want.min(step.leased.remaining(meter) / 2)
    } else {
        0
    };
    let loan = step
        .leased
        .grant_lease(meter, wanted - wanted % PERMIT, request.epoch);
    let taken = charged + loan.amount;
    let settled = step.settle(
        meter,
        algorithm,
        state,
        taken,
        (returned.is_some() || taken > 0, true),
    );
    let outcome = StepOutcome {
        fits,
        retry_after,
        ..settled
    };
    (outcome, loan)
}

/// Returns the level and the leased tokens at `now` under the policy of this call.
pub(crate) fn view(meter: &impl LevelKind, stored: Option<LeasedLevel>, now: u64) -> LeasedLevel {
    let Some(mut leased) = stored else {
        return LeasedLevel {
            level: level::view(meter, None, now),
            loans: LeaseGrants::default(),
        };
    };
    // If the clock stepped back, the whole state moves back.
    let back = leased.level.at.saturating_sub(now);
    leased.loans.since = leased.loans.since.saturating_sub(back);
    if back > 0 {
        leased.forward(meter, now);
    }
    while let Some(end) = leased.loans.end().filter(|end| *end <= now) {
        leased.forward(meter, end);
        leased.end_epoch(meter);
    }
    leased.forward(meter, now);
    leased
}
