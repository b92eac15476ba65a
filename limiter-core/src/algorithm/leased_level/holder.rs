//! The lease of a named holder, which the store records with an epoch of its own.
//!
//! A renewal ends the recorded lease and starts a new one in one step: the spent tokens count as
//! used, the others return, and the tokens of the new lease are subtracted. `held` tokens are
//! leased in any case, because the holder may have passed them on; without enough remaining tokens
//! they are a debt. The buckets of the holder may be refilled at a `steady` rate until the next
//! renewal; the level is then refilled at the rest of the rate (`pace.rs`).
//! Tests: `tests/holder_leases.rs`.

use crate::algorithm::StepState;
use crate::algorithm::leased_level::step::LevelStep;
use crate::algorithm::leased_level::{LeasedLevel, PERMIT, UsageReport};
use crate::algorithm::level::LevelKind;
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// The part of the remaining permits that stays for other calls: one of this number.
const UNLEASED: u64 = 8;

/// The report of a holder, and the lease that the store recorded for it. Amounts are thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HolderReport {
    /// The recorded lease, and the number of the level's epoch in which it was granted.
    pub(crate) recorded: HolderGrant,
    /// The tokens that were used since the last renewal, without the refill at the steady rate.
    pub(crate) spent: u64,
    /// The rate of the holder's buckets from now on, in millionths of the policy's rate.
    pub(crate) steady: u32,
    /// The tokens that are leased in any case.
    pub(crate) held: u64,
    /// The tokens to lease if enough remain, including `held`.
    pub(crate) wanted: u64,
    /// The minimum time in microseconds for which they count as leased; not 0.
    pub(crate) lifetime: u64,
}

/// The leased tokens of a holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HolderGrant {
    pub(crate) leased: u64,
    pub(crate) number: u32,
    /// The steady rate that the level counts for this lease.
    pub(crate) steady: u32,
}

/// Renews a lease.
pub(crate) fn renew(
    meter: &impl LevelKind,
    algorithm: &Algorithm,
    state: &mut StepState,
    report: &HolderReport,
    now: u64,
) -> HolderGrant {
    let mut step = LevelStep::view_at(meter, state, now);
    let spent = report.spent.min(report.recorded.leased);
    let usage = UsageReport {
        epoch: report.recorded.number,
        spent,
        returned: report.recorded.leased - spent,
    };
    let returned = step.leased.apply_report(meter, usage);
    step.leased.loans.end_steady(report.recorded);
    if let Some(returned) = returned {
        step.shorten_life(meter, returned);
    }
    let charged = (report.spent - spent).min(step.leased.chargeable(meter));
    step.leased.level.amount = meter.charged(step.leased.level.amount, charged);
    let rest = step.leased.remaining(meter).saturating_sub(report.held);
    let leasable = rest - rest / (UNLEASED * PERMIT) * PERMIT;
    let leased = report.held + report.wanted.saturating_sub(report.held).min(leasable);
    let leased = leased.min(step.leased.chargeable(meter));
    let steady = if leased > 0 { report.steady } else { 0 };
    if leased > 0 {
        step.leased.lengthen_epoch(report.lifetime);
    }
    let grant = step.leased.grant_lease(meter, leased, report.lifetime);
    step.leased.loans.start_steady(steady);
    let is_changed = returned.is_some() || charged > 0 || leased > 0;
    step.settle(meter, algorithm, state, charged + leased, (is_changed, true));
    HolderGrant {
        leased,
        number: grant.epoch,
        steady,
    }
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
