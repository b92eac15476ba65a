//! A look at a level of which some may be lent, and what is done to it then.

#[cfg(any(feature = "redis", test))]
use crate::algorithm::leased_level::{LeaseGrant, LeaseRequest, PERMIT};
use crate::algorithm::leased_level::{LeaseGrants, LeasedLevel};
use crate::algorithm::level::LevelKind;
use crate::algorithm::{Mode, StepOutcome, StepState, level, next_permit};
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// A level as it is stored, and as it stands at `now` under the policy of a call.
#[derive(Debug)]
struct LevelStep {
    is_stored: bool,
    /// It is stored as of a later moment.
    is_ahead: bool,
    lent: LeasedLevel,
    /// A larger or slower policy keeps it for longer than this one would.
    for_others: bool,
}

impl LevelStep {
    fn view_at(meter: &impl LevelKind, state: &StepState, now: u64) -> Self {
        let stored = match state {
            StepState::TokenBucket(level) | StepState::Funnel(level) => Some(LeasedLevel {
                level: *level,
                loans: LeaseGrants::default(),
            }),
            StepState::Lent(lent) => Some(**lent),
            // What stands for a level was settled before.
            StepState::Absent
            | StepState::Steady(_)
            | StepState::SlidingWindow(_)
            | StepState::CounterWindow(_)
            | StepState::FixedWindow(_) => None,
        };
        let stored = stored.filter(|lent| !lent.is_expired(now));
        let lent = view(meter, stored, now);
        Self {
            is_stored: stored.is_some(),
            is_ahead: stored.is_some_and(|stored| now < stored.level.at),
            lent,
            for_others: lent.level.keep_until > now + lent.idle_after(meter),
        }
    }

    /// What was lent came back: it is not missing from any policy any more.
    fn notify_refund(&mut self, meter: &impl LevelKind, returned: u64) {
        let level = &mut self.lent.level;
        let sooner = level
            .keep_until
            .saturating_sub(meter.rate().time_for(returned, 0));
        let idle_at = self.lent.level.at + self.lent.idle_after(meter);
        self.lent.level.keep_until = sooner.max(idle_at);
        self.for_others = sooner > idle_at;
    }

    /// The outcome after what was done to the level, which is stored if that `changed` it or if it
    /// has to be mended. `taken` was taken from it.
    fn settle(
        mut self,
        meter: &impl LevelKind,
        algorithm: &Algorithm,
        state: &mut StepState,
        taken: u64,
        (changed, may_mend): (bool, bool),
    ) -> StepOutcome {
        let LeasedLevel { level, loans } = self.lent;
        let (now, kept) = (level.at, level.keep_until);
        let reset_after = self.lent.idle_after(meter);
        let mut keep_until = kept;
        if taken > 0 && self.for_others {
            // It is missing from the other policy too, and begins to come back when the last loan
            // ends.
            let from = kept.max(if loans.total() > 0 { loans.last_end() } else { 0 });
            keep_until = (from + meter.rate().time_for(taken, 0)).min(now + MAX_EXACT);
        }
        keep_until = keep_until.max(now + reset_after);
        let mended = may_mend && self.is_stored && (self.is_ahead || keep_until > kept);
        if changed || mended {
            self.lent.level.keep_until = keep_until;
            *state = self.lent.into_state(algorithm);
        }
        let remaining = self.lent.remaining(meter);
        let next_after = self.lent.retry_after(meter, next_permit(remaining));
        StepOutcome {
            fits: true,
            remaining,
            retry_after: 0,
            reset_after,
            next_after: next_after.min(reset_after),
            expires_after: self.lent.level.keep_until.saturating_sub(now),
            ..StepOutcome::default()
        }
    }
}

impl LeasedLevel {
    fn into_state(self, algorithm: &Algorithm) -> StepState {
        match algorithm {
            _ if self.is_expired(self.level.at) => StepState::Absent,
            _ if self.loans.total() > 0 => StepState::Lent(Box::new(self)),
            _ => StepState::of_level(algorithm, self.level),
        }
    }
}

/// Takes a step.
pub(crate) fn decide(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    let mut look = LevelStep::view_at(meter, state, now);
    let fits = look.lent.fits(meter, cost);
    let retry_after = if fits {
        0
    } else {
        look.lent.retry_after(meter, cost)
    };
    let charged = fits && mode == Mode::Charge;
    let taken = if charged { cost } else { 0 };
    look.lent.level.amount = meter.charged(look.lent.level.amount, taken);
    let settled = look.settle(meter, algorithm, state, taken, (charged, mode != Mode::Peek));
    StepOutcome {
        fits,
        retry_after,
        ..settled
    }
}

/// Gives back what was used and is not lent.
pub(crate) fn refund_level(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    amount: u64,
    now: u64,
) {
    let mut look = LevelStep::view_at(meter, state, now);
    let level = &mut look.lent.level;
    let left = meter.without(look.lent.loans.total());
    let used = left.used(level.amount);
    let refunded = amount.min(used);
    if refunded == 0 {
        return;
    }
    level.amount = left.recovered(level.amount, refunded);
    if refunded == used {
        level.remainder = 0;
    }
    if !look.for_others {
        level.keep_until = now;
    }
    look.settle(meter, algorithm, state, 0, (true, false));
}

/// Charges an amount, whatever is left. What is used is at most what is exact.
pub(crate) fn charge(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    amount: u64,
    now: u64,
) {
    let mut look = LevelStep::view_at(meter, state, now);
    let (level, lent) = (&mut look.lent.level, look.lent.loans.total());
    // What is lent may be spent yet.
    let used = meter.without(lent).used(level.amount) + lent;
    let owed = amount.min(MAX_EXACT.saturating_sub(used));
    if owed == 0 {
        return;
    }
    level.amount = meter.charged(level.amount, owed);
    look.settle(meter, algorithm, state, owed, (true, false));
}

/// Heeds a report, charges and lends, in this order.
#[cfg(any(feature = "redis", test))]
pub(crate) fn borrow(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    ask: &LeaseRequest,
    now: u64,
) -> (StepOutcome, LeaseGrant) {
    let mut look = LevelStep::view_at(meter, state, now);
    let heard = look.lent.heed(meter, ask.report);
    if let Some(returned) = heard {
        look.notify_refund(meter, returned);
    }
    let fits = look.lent.fits(meter, ask.cost);
    let retry_after = if fits {
        0
    } else {
        look.lent.retry_after(meter, ask.cost)
    };
    let charged = if fits { ask.cost } else { 0 };
    look.lent.level.amount = meter.charged(look.lent.level.amount, charged);
    // Some is left for those who ask for themselves, and for other holders; and fractions of a
    // permit would lie about.
    let some = if fits {
        ask.want.min(look.lent.remaining(meter) / 2)
    } else {
        0
    };
    let loan = look.lent.grant_lease(meter, some - some % PERMIT, ask.epoch);
    let taken = charged + loan.amount;
    let settled = look.settle(
        meter,
        algorithm,
        state,
        taken,
        (heard.is_some() || taken > 0, true),
    );
    let outcome = StepOutcome {
        fits,
        retry_after,
        ..settled
    };
    (outcome, loan)
}

/// The level and the loans at `now`, read under the policy of this call.
pub(crate) fn view(meter: &impl LevelKind, stored: Option<LeasedLevel>, now: u64) -> LeasedLevel {
    let Some(mut lent) = stored else {
        return LeasedLevel {
            level: level::view(meter, None, now),
            loans: LeaseGrants::default(),
        };
    };
    // Time that ran back moves the whole state back.
    let back = lent.level.at.saturating_sub(now);
    lent.loans.since = lent.loans.since.saturating_sub(back);
    if back > 0 {
        lent.forward(meter, now);
    }
    while let Some(end) = lent.loans.end().filter(|end| *end <= now) {
        lent.forward(meter, end);
        lent.end_epoch(meter);
    }
    lent.forward(meter, now);
    lent
}
