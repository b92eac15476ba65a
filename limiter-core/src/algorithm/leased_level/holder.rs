//! The lease of a named holder, which the store records with an epoch of its own.
//!
//! A renewal ends the recorded lease and starts a new one in one step: the spent tokens count as
//! used, the others return, and the tokens of the new lease are subtracted. `held` tokens are
//! leased in any case, because the holder may have passed them on; without enough remaining tokens
//! they are a debt. `refilled` tokens were used at a steady rate since the last renewal. The level
//! would have been refilled meanwhile, but its capacity did not include the leased tokens, so
//! refill that was lost for this reason is added up to this amount.
//! Tests: `tests/holder_leases.rs`.

use crate::algorithm::StepState;
use crate::algorithm::leased_level::step::{LevelStep, stored_at};
use crate::algorithm::leased_level::{LeasedLevel, UsageReport};
use crate::algorithm::level::LevelKind;
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// The report of a holder, and the lease that the store recorded for it. Amounts are thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HolderReport {
    /// The recorded lease, and the number of the level's epoch in which it was granted.
    pub(crate) recorded: HolderGrant,
    /// The tokens that were used at any times since the last renewal.
    pub(crate) spent: u64,
    /// The tokens that were used at a steady rate, at most the policy's.
    pub(crate) refilled: u64,
    /// The tokens that are leased in any case.
    pub(crate) held: u64,
    /// The tokens to lease if enough remain; at least `held`.
    pub(crate) wanted: u64,
    /// The minimum time in microseconds for which they count as leased; not 0.
    pub(crate) lifetime: u64,
}

/// The leased tokens of a holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HolderGrant {
    pub(crate) leased: u64,
    pub(crate) number: u32,
}

/// Renews a lease.
pub(crate) fn renew(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    report: &HolderReport,
    now: u64,
) -> HolderGrant {
    let lost = lost_refill(meter, state, now);
    let mut step = LevelStep::view_at(meter, state, now);
    let used = report.spent + report.refilled;
    let spent = used.min(report.recorded.leased);
    let usage = UsageReport {
        epoch: report.recorded.number,
        spent,
        returned: report.recorded.leased - spent,
    };
    let returned = step.leased.apply_report(meter, usage);
    if let Some(returned) = returned {
        step.shorten_life(meter, returned);
    }
    let charged = (used - spent).min(step.leased.chargeable(meter));
    step.leased.level.amount = meter.charged(step.leased.level.amount, charged);
    let reduced = meter.without(step.leased.loans.total());
    let credit = lost.min(report.refilled);
    step.leased.level.amount = reduced.after_refill(step.leased.level.amount, credit);
    let remaining = step.leased.remaining(meter);
    let leased = report.wanted.min(remaining).max(report.held);
    let leased = leased.min(step.leased.chargeable(meter));
    if leased > 0 {
        step.leased.lengthen_epoch(report.lifetime);
    }
    let grant = step.leased.grant_lease(meter, leased, report.lifetime);
    let is_changed = returned.is_some() || charged > 0 || credit > 0 || leased > 0;
    step.settle(meter, algorithm, state, charged + leased, (is_changed, true));
    HolderGrant {
        leased,
        number: grant.epoch,
    }
}

/// Returns the refill since the last change of the level that its capacity did not admit.
fn lost_refill(meter: &impl LevelKind, state: &StepState, now: u64) -> u64 {
    let Some(mut leased) = stored_at(state, now).filter(|stored| stored.level.at < now) else {
        return 0;
    };
    let mut lost = 0_u64;
    while leased.level.at < now {
        let end = leased.loans.end().filter(|end| *end <= now);
        let to = end.unwrap_or(now);
        let level = &leased.level;
        let remainder = meter.rate().convert(level.remainder, level.parts);
        let (by, _) = meter.rate().accrue(to.saturating_sub(level.at), remainder);
        let room = meter.without(leased.loans.total()).used(level.amount);
        lost = lost.saturating_add(by.saturating_sub(room));
        leased.forward(meter, to);
        if end.is_some() {
            leased.end_epoch(meter);
        }
    }
    lost
}

impl LeasedLevel {
    /// Returns the amount that can be charged within the exact range.
    fn chargeable(&self, meter: &impl LevelKind) -> u64 {
        let leased = self.loans.total();
        MAX_EXACT.saturating_sub(meter.without(leased).used(self.level.amount) + leased)
    }

    /// Lengthens an epoch that other holders started. Their tokens may then return later than
    /// announced, never earlier.
    fn lengthen_epoch(&mut self, lifetime: u64) {
        if self.loans.total() > 0 {
            self.loans.epoch = self.loans.epoch.max(lifetime);
        }
    }
}
