//! A level, some of which is lent: holders spend it elsewhere, without asking, and tell later.
//!
//! What is lent is missing from the capacity until it is known to be spent or to have come back, so
//! that what is stored and what is lent are together never above the capacity, whoever holds how
//! much. Over any time T, then, all holders and the store admit at most capacity + rate·T.
//!
//! Two sums are kept, whatever the number of holders: what was lent in the current epoch and in the
//! one before. An epoch lasts half of what a loan may, and what was lent in one counts as spent
//! when the next is over: after half of a loan's longest life at the earliest, after all of it at
//! the latest. A report names the epoch that it is about; when that has ended twice over it says
//! nothing new.

mod scaled;
pub(crate) mod step;
#[cfg(feature = "redis")]
mod stored;

pub(super) use crate::algorithm::leased_level::scaled::scale;
#[cfg(any(feature = "redis", test))]
use crate::algorithm::leased_level::step::borrow;
#[cfg(test)]
use crate::algorithm::leased_level::step::view;
use crate::algorithm::leased_level::step::{charge, decide, refund_level};
#[cfg(feature = "redis")]
pub(crate) use crate::algorithm::leased_level::stored::StoredLoans;
use crate::algorithm::level::{Level, LevelKind};
use crate::algorithm::{Mode, StepOutcome, StepState, level};
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// Loans are whole permits.
const PERMIT: u64 = 1_000;

/// A level, and what is lent of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeasedLevel {
    /// A bucket's tokens without those that are lent; what has been used of a funnel, likewise.
    level: Level,
    loans: LeaseGrants,
}

/// What is lent, by epochs. Amounts are thousandths, times microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeaseGrants {
    current: u64,
    previous: u64,
    /// When the current epoch began …
    since: u64,
    /// … and how long it lasts.
    epoch: u64,
    /// The number of the current epoch, by which reports name it: times move with the clock, this
    /// does not.
    number: u32,
}

/// What a holder asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseRequest {
    /// An ordinary charge, made if it fits. It may be 0.
    pub(crate) cost: u64,
    /// What the holder would borrow beside it.
    pub(crate) want: u64,
    /// How long an epoch lasts in which nothing is lent yet, at least; in microseconds, not 0.
    pub(crate) epoch: u64,
    /// What became of what it has borrowed, under the same policy.
    pub(crate) report: UsageReport,
}

/// What became of some of what was lent in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageReport {
    pub(crate) epoch: u32,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
}

/// What was lent. Nothing, if the amount is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseGrant {
    pub(crate) amount: u64,
    pub(crate) epoch: u32,
    /// Time until it counts as spent.
    pub(crate) life: u64,
}

impl LeasedLevel {
    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.level.is_expired(now)
    }

    /// From when on it is spent.
    pub(super) fn idle_at(&self) -> u64 {
        self.level.keep_until
    }

    /// Brings the level forward to a moment within the current epoch, or back with a clock that
    /// stepped back.
    fn forward(&mut self, meter: &impl LevelKind, to: u64) {
        let keep_until = self.level.keep_until - self.level.at.saturating_sub(to);
        // What was done to it since it was looked at may not be in the moment until which it is
        // kept yet.
        let stored = Level {
            keep_until: u64::MAX,
            ..self.level
        };
        let level = level::view(&meter.without(self.loans.total()), Some(stored), to);
        self.level = Level { keep_until, ..level };
    }

    /// Ends the current epoch, at whose end the level stands: what was lent in the one before is
    /// spent.
    fn end_epoch(&mut self, meter: &impl LevelKind) {
        self.level.amount = meter.spent(self.level.amount, self.loans.previous);
        self.loans = LeaseGrants {
            current: 0,
            previous: self.loans.current,
            since: self.loans.since + self.loans.epoch,
            epoch: self.loans.epoch,
            number: self.loans.number.wrapping_add(1),
        };
    }

    /// Time until so much as `need` says, of the level and of what is lent, has come back.
    fn time_until<M: LevelKind>(mut self, meter: &M, need: impl Fn(&M, i64, u64) -> u64) -> u64 {
        let from = self.level.at;
        loop {
            let lent = self.loans.total();
            let left = meter.without(lent);
            let need = need(&left, self.level.amount, lent);
            match self.loans.end() {
                // More than what is lent leaves room for: nothing comes back beyond that before the
                // epoch ends.
                Some(end) if need > left.used(self.level.amount) => {
                    self.forward(meter, end);
                    self.end_epoch(meter);
                }
                _ => {
                    let time = meter.rate().time_for(need, self.level.remainder);
                    return (self.level.at - from + time).min(MAX_EXACT);
                }
            }
        }
    }

    fn retry_after(self, meter: &impl LevelKind, cost: u64) -> u64 {
        self.time_until(meter, |left, amount, _| left.shortfall(amount, cost))
    }

    /// Time until nothing is used and nothing lent.
    fn idle_after(self, meter: &impl LevelKind) -> u64 {
        self.time_until(meter, |left, amount, lent| left.used(amount) + lent)
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

    /// Takes a report into account: how much came back, if it said anything new.
    fn heed(&mut self, meter: &impl LevelKind, report: UsageReport) -> Option<u64> {
        let loans = &mut self.loans;
        let lent = match loans.number.wrapping_sub(report.epoch) {
            0 => &mut loans.current,
            1 => &mut loans.previous,
            _ => return None,
        };
        let returned = report.returned.min(*lent);
        let spent = report.spent.min(*lent - returned);
        *lent -= returned + spent;
        let amount = meter.spent(self.level.amount, spent);
        self.level.amount = meter.given_back(amount, returned);
        // A policy that shrank has less room than what was lent under the one before.
        self.forward(meter, self.level.at);
        (returned + spent > 0).then_some(returned)
    }

    fn grant_lease(&mut self, meter: &impl LevelKind, amount: u64, epoch: u64) -> LeaseGrant {
        if amount == 0 {
            return LeaseGrant::default();
        }
        if self.loans.total() == 0 {
            self.loans = LeaseGrants::beginning(self.level.at, epoch);
        } else if self.loans.current == 0 {
            // A longer lease than when the key was last at rest. What was lent before may then come
            // back later than was said, never earlier.
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
    /// The first epoch. Its number is not one that an earlier state of the same key has had within
    /// the last hour.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half of the moment")]
    fn beginning(now: u64, epoch: u64) -> Self {
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

    /// When the current epoch ends, as long as anything is lent.
    fn end(&self) -> Option<u64> {
        (self.total() > 0).then_some(self.since + self.epoch)
    }

    /// When what is lent now counts as spent.
    fn last_end(&self) -> u64 {
        self.since + 2 * self.epoch
    }
}

/// A limit that runs on a level, with what a store holds of it.
macro_rules! on_meter {
    ($algorithm:expr, $meter:ident => $then:expr, else $other:expr) => {
        match $algorithm {
            Algorithm::TokenBucket($meter) => $then,
            Algorithm::Funnel($meter) => $then,
            _ => $other,
        }
    };
}

/// Takes a step on a level of which something is lent.
pub(super) fn step(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> StepOutcome {
    on_meter!(algorithm, meter => decide(meter, algorithm, state, cost, now, mode), else StepOutcome::default())
}

/// Gives back up to `amount` of what was used and is not lent.
pub(super) fn refund(algorithm: &Algorithm, state: &mut StepState, amount: u64, now: u64) {
    on_meter!(algorithm, meter => refund_level(meter, algorithm, state, amount, now), else ());
}

/// Charges an amount, whatever is left.
pub(super) fn owe(algorithm: &Algorithm, state: &mut StepState, amount: u64, now: u64) {
    on_meter!(algorithm, meter => charge(meter, algorithm, state, amount, now), else ());
}

/// Lends some of a level.
#[cfg(any(feature = "redis", test))]
pub(super) fn grant_request(
    algorithm: &Algorithm,
    state: &mut StepState,
    ask: &LeaseRequest,
    now: u64,
) -> (StepOutcome, LeaseGrant) {
    on_meter!(algorithm, meter => borrow(meter, algorithm, state, ask, now), else Default::default())
}

/// How much is lent at a moment.
#[cfg(test)]
pub(crate) fn lent_at(algorithm: &Algorithm, state: &StepState, now: u64) -> u64 {
    let StepState::Lent(lent) = state else { return 0 };
    let stored = Some(**lent).filter(|lent| !lent.is_expired(now));
    on_meter!(algorithm, meter => view(meter, stored, now).loans.total(), else 0)
}

#[cfg(test)]
mod tests;
