//! A level with leased tokens: holders spend them without a call to the store and report the usage
//! later.
//!
//! Leased tokens are subtracted from the capacity until they are reported as spent or returned, so
//! the stored level and the leased tokens never exceed the capacity together. Over any time T, all
//! holders and the store admit at most capacity + rate·T.
//!
//! Two sums are kept, independent of the number of holders: the tokens leased in the current epoch
//! and in the previous one. An epoch lasts half of a lease, and tokens leased in one epoch count as
//! spent when the next epoch ends: after half of the maximum lease at the earliest and all of it at
//! the latest. A report names its epoch; a report of an epoch that counts as spent is ignored.
//! Buckets of holders can be refilled at a part of the rate (`leased_level/pace.rs`).
//! Tests: `leased_level/tests.rs`.

pub(crate) mod holder;
pub(crate) mod pace;
mod scaled;
pub(crate) mod step;
#[cfg(feature = "redis")]
mod stored;

use crate::algorithm::leased_level::holder::{HolderGrant, HolderReport, renew};
pub(super) use crate::algorithm::leased_level::scaled::scale;
#[cfg(any(feature = "redis", test))]
use crate::algorithm::leased_level::step::lease;
#[cfg(test)]
use crate::algorithm::leased_level::step::view;
use crate::algorithm::leased_level::step::{charge, decide, refund_level};
#[cfg(feature = "redis")]
pub(crate) use crate::algorithm::leased_level::stored::StoredLoans;
use crate::algorithm::level::{Level, LevelKind};
use crate::algorithm::{Mode, StepOutcome, StepState, level};
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// Leases are whole permits.
const PERMIT: u64 = 1_000;

/// A level and its leased tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeasedLevel {
    /// The tokens of a bucket without the leased ones, or the usage of a funnel without them.
    level: Level,
    loans: LeaseGrants,
}

/// Leased tokens by epoch. Amounts are thousandths, times microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeaseGrants {
    current: u64,
    previous: u64,
    /// Start of the current epoch …
    since: u64,
    /// … and its length.
    epoch: u64,
    /// Number of the current epoch, which reports name: it does not depend on the clock.
    number: u32,
    /// Parts of the rate at which buckets of holders are refilled, in millionths, by the epoch of
    /// their leases: the current and the previous one.
    steady: [u32; 2],
    /// Millionths of a microsecond in which the level is not refilled yet.
    fraction: u32,
}

/// The request of a holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    not(any(feature = "redis", test)),
    expect(dead_code, reason = "only Redis leases tokens")
)]
pub(crate) struct LeaseRequest {
    /// An ordinary charge, applied if it fits. May be 0.
    pub(crate) cost: u64,
    /// Number of tokens to lease in addition.
    pub(crate) want: u64,
    /// Minimum length of an epoch that starts now; in microseconds, not 0.
    pub(crate) epoch: u64,
    /// Usage of tokens leased earlier, under the same policy.
    pub(crate) report: UsageReport,
}

/// Usage of tokens leased in one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageReport {
    pub(crate) epoch: u32,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
}

/// Leased tokens; none if the amount is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseGrant {
    pub(crate) amount: u64,
    pub(crate) epoch: u32,
    /// Time until they count as spent.
    pub(crate) life: u64,
}

impl LeasedLevel {
    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.level.is_expired(now)
    }

    /// Returns the time from which the state equals absence.
    pub(super) fn idle_at(&self) -> u64 {
        self.level.keep_until
    }

    /// Moves the level to a time within the current epoch, or back if the clock stepped back.
    fn forward(&mut self, meter: &impl LevelKind, to: u64) {
        let keep_until = self.level.keep_until - self.level.at.saturating_sub(to);
        // Changes since the last read may not be included in `keep_until` yet.
        let stored = Level {
            keep_until: u64::MAX,
            ..self.level
        };
        let reduced = meter.without(self.loans.total());
        let slowed = self.loans.effective_elapsed(to.saturating_sub(stored.at));
        let level = level::view(&reduced, Some(stored), to.min(stored.at) + slowed);
        if level.amount == reduced.idle() {
            self.loans.fraction = 0;
        }
        self.level = Level {
            at: to,
            keep_until,
            ..level
        };
    }

    /// Ends the current epoch, which the level has reached: tokens leased in the previous epoch
    /// count as spent.
    fn end_epoch(&mut self, meter: &impl LevelKind) {
        self.level.amount = meter.after_spend(self.level.amount, self.loans.previous);
        let [steady, _] = self.loans.steady;
        self.loans = LeaseGrants {
            current: 0,
            previous: self.loans.current,
            since: self.loans.since + self.loans.epoch,
            number: self.loans.number.wrapping_add(1),
            steady: [0, steady],
            ..self.loans
        };
    }

    /// Returns the time until the amount that `need` computes from the level and the leased tokens
    /// is refilled.
    fn time_until<M: LevelKind>(mut self, meter: &M, need: impl Fn(&M, i64, u64) -> u64) -> u64 {
        let from = self.level.at;
        loop {
            let leased = self.loans.total();
            let reduced = meter.without(leased);
            let need = need(&reduced, self.level.amount, leased);
            let time = meter.rate().time_for(need, self.level.remainder);
            let elapsed = self.loans.elapsed(time, self.level.at);
            match (self.loans.end(), elapsed) {
                // More than the capacity without the leased tokens, or than the refill beside
                // steady rates: the rest is refilled only after the end of the epoch.
                (Some(end), elapsed) if elapsed.is_none() || need > reduced.used(self.level.amount) => {
                    self.forward(meter, end);
                    self.end_epoch(meter);
                }
                (_, elapsed) => {
                    return (self.level.at - from + elapsed.unwrap_or(time)).min(MAX_EXACT);
                }
            }
        }
    }

    fn retry_after(self, meter: &impl LevelKind, cost: u64) -> u64 {
        self.time_until(meter, |reduced, amount, _| reduced.shortfall(amount, cost))
    }

    /// Returns the time until nothing is used or leased.
    fn idle_after(self, meter: &impl LevelKind) -> u64 {
        self.time_until(meter, |reduced, amount, leased| reduced.used(amount) + leased)
    }

    fn fits(&self, meter: &impl LevelKind, cost: u64) -> bool {
        cost == 0
            || meter
                .without(self.loans.total())
                .shortfall(self.level.amount, cost)
                == 0
    }

    fn remaining(&self, meter: &impl LevelKind) -> u64 {
        meter.without(self.loans.total()).remaining(self.level.amount)
    }

    /// Applies a report. Returns the number of returned tokens if the report contained new usage.
    fn apply_report(&mut self, meter: &impl LevelKind, report: UsageReport) -> Option<u64> {
        let loans = &mut self.loans;
        let leased = match loans.number.wrapping_sub(report.epoch) {
            0 => &mut loans.current,
            1 => &mut loans.previous,
            _ => return None,
        };
        let returned = report.returned.min(*leased);
        let spent = report.spent.min(*leased - returned);
        *leased -= returned + spent;
        let amount = meter.after_spend(self.level.amount, spent);
        self.level.amount = meter.after_return(amount, returned);
        // After a reduction of the capacity, the leased tokens may exceed it.
        self.forward(meter, self.level.at);
        (returned + spent > 0).then_some(returned)
    }

    fn grant_lease(&mut self, meter: &impl LevelKind, amount: u64, epoch: u64) -> LeaseGrant {
        if amount == 0 {
            return LeaseGrant::default();
        }
        if self.loans.total() == 0 {
            self.loans = LeaseGrants::start(self.level.at, epoch);
        } else if self.loans.current == 0 {
            // Use the longer lease. Tokens leased before may then return later than announced,
            // never earlier.
            self.loans.epoch = self.loans.epoch.max(epoch);
        }
        self.level.amount = meter.after_lease(self.level.amount, amount);
        self.loans.current += amount;
        LeaseGrant {
            amount,
            epoch: self.loans.number,
            life: self.loans.last_end() - self.level.at,
        }
    }
}

impl LeaseGrants {
    /// Starts the first epoch. Its number differs from those of earlier states of the key within
    /// the last hour.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half of the time")]
    fn start(now: u64, epoch: u64) -> Self {
        Self {
            since: now,
            epoch,
            number: now as u32,
            ..Self::default()
        }
    }

    fn total(&self) -> u64 {
        self.current + self.previous
    }

    /// Returns the end of the current epoch while any token is leased.
    fn end(&self) -> Option<u64> {
        (self.total() > 0).then_some(self.since + self.epoch)
    }

    /// Returns the time at which tokens leased now count as spent.
    fn last_end(&self) -> u64 {
        self.since + 2 * self.epoch
    }
}

/// Dispatches on the algorithms that use a level.
macro_rules! on_meter {
    ($algorithm:expr, $meter:ident => $then:expr, else $other:expr) => {
        match $algorithm {
            Algorithm::TokenBucket($meter) => $then,
            Algorithm::Funnel($meter) => $then,
            _ => $other,
        }
    };
}

/// Executes a step on a level with leased tokens.
pub(super) fn step(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    on_meter!(algorithm, meter => decide(meter, algorithm, state, cost, now, mode), else StepOutcome::default())
}

/// Refunds up to `amount` of the usage without the leased tokens.
pub(super) fn refund(algorithm: &Algorithm, state: &mut StepState, amount: u64, now: u64) {
    on_meter!(algorithm, meter => refund_level(meter, algorithm, state, amount, now), else ());
}

/// Charges an amount unconditionally.
pub(super) fn force_charge(algorithm: &Algorithm, state: &mut StepState, amount: u64, now: u64) {
    on_meter!(algorithm, meter => charge(meter, algorithm, state, amount, now), else ());
}

/// Leases tokens of a level.
#[cfg(any(feature = "redis", test))]
pub(super) fn grant_request(
    algorithm: &Algorithm,
    state: &mut StepState,
    request: &LeaseRequest,
    now: u64,
) -> (StepOutcome, LeaseGrant) {
    on_meter!(algorithm, meter => lease(meter, algorithm, state, request, now), else Default::default())
}

/// Renews the lease of a named holder.
pub(super) fn renew_holder(
    algorithm: &Algorithm,
    state: &mut StepState,
    report: &HolderReport,
    now: u64,
) -> HolderGrant {
    on_meter!(algorithm, meter => renew(meter, algorithm, state, report, now), else HolderGrant::default())
}

/// Returns the leased tokens at `now`.
#[cfg(test)]
pub(crate) fn leased_at(algorithm: &Algorithm, state: &StepState, now: u64) -> u64 {
    let StepState::Leased(leased) = state else {
        return 0;
    };
    let stored = Some(**leased).filter(|leased| !leased.is_expired(now));
    on_meter!(algorithm, meter => view(meter, stored, now).loans.total(), else 0)
}

#[cfg(test)]
mod tests;
