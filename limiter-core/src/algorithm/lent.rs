//! A level, some of which is lent: holders spend it elsewhere, without asking, and tell later.
//!
//! What is lent is missing from the capacity until it is known to be spent or to have come back, so that what is stored and
//! what is lent are together never above the capacity, whoever holds how much. Over any time T, then, all holders and the
//! store admit at most capacity + rate·T.
//!
//! Two sums are kept, whatever the number of holders: what was lent in the current epoch and in the one before. An epoch
//! lasts half of what a loan may, and what was lent in one counts as spent when the next is over: after half of a loan's
//! longest life at the earliest, after all of it at the latest. A report names the epoch that it is about; when that has
//! ended twice over it says nothing new.

use super::level::{self, Level, Meter};
use super::{Mode, Outcome, State};
use crate::policy::Algorithm;
use crate::units::MAX_EXACT;

/// Loans are whole permits.
const PERMIT: u64 = 1_000;

/// A level, and what is lent of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    /// A bucket's tokens without those that are lent; what has been used of a funnel, likewise.
    level: Level,
    loans: Loans,
}

/// What is lent, by epochs. Amounts are thousandths, times microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Loans {
    current: u64,
    previous: u64,
    /// When the current epoch began …
    since: u64,
    /// … and how long it lasts.
    epoch: u64,
    /// The number of the current epoch, by which reports name it: times move with the clock, this does not.
    number: u32,
}

/// What a holder asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Borrowing {
    /// An ordinary charge, made if it fits. It may be 0.
    pub(crate) cost: u64,
    /// What the holder would borrow beside it.
    pub(crate) want: u64,
    /// How long an epoch lasts where nothing is lent yet; in microseconds, not 0.
    pub(crate) epoch: u64,
    /// What became of what it has borrowed, under the same policy.
    pub(crate) report: Report,
}

/// What became of some of what was lent in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) epoch: u32,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
}

/// What was lent. Nothing, if the amount is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loan {
    pub(crate) amount: u64,
    pub(crate) epoch: u32,
    /// Time until it counts as spent.
    pub(crate) life: u64,
}

impl Lent {
    pub(super) fn is_spent(&self, now: u64) -> bool {
        self.level.is_spent(now)
    }

    /// Brings the level forward to a moment within the current epoch, or back with a clock that stepped back.
    fn forward(&mut self, meter: &impl Meter, to: u64) {
        let keep_until = self.level.keep_until - self.level.at.saturating_sub(to);
        // What was done to it since it was looked at may not be in the moment until which it is kept yet.
        let stored = Level {
            keep_until: u64::MAX,
            ..self.level
        };
        let level = level::view(&meter.without(self.loans.total()), Some(stored), to);
        self.level = Level { keep_until, ..level };
    }

    /// Ends the current epoch, at whose end the level stands: what was lent in the one before is spent.
    fn turn(&mut self, meter: &impl Meter) {
        self.level.amount = meter.spent(self.level.amount, self.loans.previous);
        self.loans = Loans {
            current: 0,
            previous: self.loans.current,
            since: self.loans.since + self.loans.epoch,
            epoch: self.loans.epoch,
            number: self.loans.number.wrapping_add(1),
        };
    }

    /// Time until so much as `need` says, of the level and of what is lent, has come back.
    fn time_until<M: Meter>(mut self, meter: &M, need: impl Fn(&M, u64, u64) -> u64) -> u64 {
        let from = self.level.at;
        loop {
            let lent = self.loans.total();
            let left = meter.without(lent);
            let need = need(&left, self.level.amount, lent);
            match self.loans.end() {
                // More than what is lent leaves room for: nothing comes back beyond that before the epoch ends.
                Some(end) if need > left.used(self.level.amount) => {
                    self.forward(meter, end);
                    self.turn(meter);
                }
                _ => {
                    let time = meter.rate().time_for(need, self.level.remainder);
                    return (self.level.at - from + time).min(MAX_EXACT);
                }
            }
        }
    }

    fn retry_after(self, meter: &impl Meter, cost: u64) -> u64 {
        self.time_until(meter, |left, amount, _| left.missing(amount, cost))
    }

    /// Time until nothing is used and nothing lent.
    fn idle_after(self, meter: &impl Meter) -> u64 {
        self.time_until(meter, |left, amount, lent| left.used(amount) + lent)
    }

    fn fits(&self, meter: &impl Meter, cost: u64) -> bool {
        cost == 0 || meter.without(self.loans.total()).missing(self.level.amount, cost) == 0
    }

    fn remaining(&self, meter: &impl Meter) -> u64 {
        meter.without(self.loans.total()).remaining(self.level.amount)
    }

    /// Takes a report into account: how much came back, if it said anything new.
    fn heed(&mut self, meter: &impl Meter, report: Report) -> Option<u64> {
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

    fn lend(&mut self, meter: &impl Meter, amount: u64, epoch: u64) -> Loan {
        if amount == 0 {
            return Loan::default();
        }
        if self.loans.total() == 0 {
            self.loans = Loans::beginning(self.level.at, epoch);
        }
        self.level.amount = meter.lent(self.level.amount, amount);
        self.loans.current += amount;
        Loan {
            amount,
            epoch: self.loans.number,
            life: self.loans.last_end() - self.level.at,
        }
    }
}

impl Loans {
    /// The first epoch. Its number is not one that an earlier state of the same key has had within the last hour.
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

/// What is lent of a level, as a store outside of this process keeps it.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredLoans {
    pub(crate) current: u64,
    pub(crate) previous: u64,
    pub(crate) since: u64,
    pub(crate) epoch: u32,
    pub(crate) number: u32,
}

#[cfg(feature = "redis")]
impl StoredLoans {
    /// The state of a level of which so much is lent, if these are numbers of loans.
    pub(crate) fn state(self, level: &State) -> Option<State> {
        let (State::TokenBucket(level) | State::Funnel(level)) = *level else {
            return None;
        };
        let is_sound = self.current <= MAX_EXACT
            && self.previous <= MAX_EXACT
            && self.since <= level.at
            && self.epoch > 0;
        let loans = Loans {
            current: self.current,
            previous: self.previous,
            since: self.since,
            epoch: self.epoch.into(),
            number: self.number,
        };
        is_sound.then(|| State::Lent(Box::new(Lent { level, loans })))
    }
}

/// A limit that runs on a level, with what a store holds of it.
macro_rules! on_meter {
    ($algorithm:expr, $meter:ident => $then:expr, else $other:expr) => {
        match $algorithm {
            Algorithm::TokenBucket($meter) => $then,
            Algorithm::Funnel($meter) => $then,
            Algorithm::SlidingWindow(_) => $other,
        }
    };
}

/// Takes a step on a level of which something is lent.
pub(super) fn step(algorithm: &Algorithm, state: &mut State, cost: u64, now: u64, mode: Mode) -> Outcome {
    on_meter!(algorithm, meter => decide(meter, algorithm, state, cost, now, mode), else Outcome::default())
}

/// Gives back up to `amount` of what was used and is not lent.
pub(super) fn refund(algorithm: &Algorithm, state: &mut State, amount: u64, now: u64) {
    on_meter!(algorithm, meter => give_back(meter, algorithm, state, amount, now), else ());
}

/// Lends some of a level.
#[cfg(any(feature = "redis", test))]
pub(super) fn lend(algorithm: &Algorithm, state: &mut State, ask: &Borrowing, now: u64) -> (Outcome, Loan) {
    on_meter!(algorithm, meter => borrow(meter, algorithm, state, ask, now), else Default::default())
}

/// A level as it is stored, and as it stands at `now` under the policy of a call.
#[derive(Debug)]
struct Look {
    is_stored: bool,
    /// It is stored as of a later moment.
    is_ahead: bool,
    lent: Lent,
    /// A larger or slower policy keeps it for longer than this one would.
    for_others: bool,
}

impl Look {
    fn at(meter: &impl Meter, state: &State, now: u64) -> Self {
        let stored = match state {
            State::TokenBucket(level) | State::Funnel(level) => Some(Lent {
                level: *level,
                loans: Loans::default(),
            }),
            State::Lent(lent) => Some(**lent),
            // What stands for a level was settled before.
            State::Absent | State::Steady(_) | State::SlidingWindow(_) => None,
        };
        let stored = stored.filter(|lent| !lent.is_spent(now));
        let lent = view(meter, stored, now);
        Self {
            is_stored: stored.is_some(),
            is_ahead: stored.is_some_and(|stored| now < stored.level.at),
            lent,
            for_others: lent.level.keep_until > now + lent.idle_after(meter),
        }
    }

    /// What was lent came back: it is not missing from any policy any more.
    fn came_back(&mut self, meter: &impl Meter, returned: u64) {
        let level = &mut self.lent.level;
        let sooner = level
            .keep_until
            .saturating_sub(meter.rate().time_for(returned, 0));
        let idle_at = self.lent.level.at + self.lent.idle_after(meter);
        self.lent.level.keep_until = sooner.max(idle_at);
        self.for_others = sooner > idle_at;
    }

    /// The outcome after what was done to the level, which is stored if that `changed` it or if it has to be mended. `taken`
    /// was taken from it.
    fn settle(
        mut self,
        meter: &impl Meter,
        algorithm: &Algorithm,
        state: &mut State,
        taken: u64,
        (changed, may_mend): (bool, bool),
    ) -> Outcome {
        let Lent { level, loans } = self.lent;
        let (now, kept) = (level.at, level.keep_until);
        let reset_after = self.lent.idle_after(meter);
        let mut keep_until = kept;
        if taken > 0 && self.for_others {
            // It is missing from the other policy too, and begins to come back when the last loan ends.
            let from = kept.max(if loans.total() > 0 { loans.last_end() } else { 0 });
            keep_until = (from + meter.rate().time_for(taken, 0)).min(now + MAX_EXACT);
        }
        keep_until = keep_until.max(now + reset_after);
        let mended = may_mend && self.is_stored && (self.is_ahead || keep_until > kept);
        if changed || mended {
            self.lent.level.keep_until = keep_until;
            *state = self.lent.into_state(algorithm);
        }
        Outcome {
            fits: true,
            remaining: self.lent.remaining(meter),
            retry_after: 0,
            reset_after,
            expires_after: self.lent.level.keep_until.saturating_sub(now),
        }
    }
}

impl Lent {
    fn into_state(self, algorithm: &Algorithm) -> State {
        match algorithm {
            _ if self.is_spent(self.level.at) => State::Absent,
            _ if self.loans.total() > 0 => State::Lent(Box::new(self)),
            _ => State::of_level(algorithm, self.level),
        }
    }
}

fn decide(
    meter: &impl Meter,
    algorithm: &Algorithm,
    state: &mut State,
    cost: u64,
    now: u64,
    mode: Mode,
) -> Outcome {
    let mut look = Look::at(meter, state, now);
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
    Outcome {
        fits,
        retry_after,
        ..settled
    }
}

fn give_back(meter: &impl Meter, algorithm: &Algorithm, state: &mut State, amount: u64, now: u64) {
    let mut look = Look::at(meter, state, now);
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

#[cfg(any(feature = "redis", test))]
fn borrow(
    meter: &impl Meter,
    algorithm: &Algorithm,
    state: &mut State,
    ask: &Borrowing,
    now: u64,
) -> (Outcome, Loan) {
    let mut look = Look::at(meter, state, now);
    let heard = look.lent.heed(meter, ask.report);
    if let Some(returned) = heard {
        look.came_back(meter, returned);
    }
    let fits = look.lent.fits(meter, ask.cost);
    let retry_after = if fits {
        0
    } else {
        look.lent.retry_after(meter, ask.cost)
    };
    let charged = if fits { ask.cost } else { 0 };
    look.lent.level.amount = meter.charged(look.lent.level.amount, charged);
    // Some is left for those who ask for themselves, and for other holders; and fractions of a permit would lie about.
    let some = if fits {
        ask.want.min(look.lent.remaining(meter) / 2)
    } else {
        0
    };
    let loan = look.lent.lend(meter, some - some % PERMIT, ask.epoch);
    let taken = charged + loan.amount;
    let settled = look.settle(
        meter,
        algorithm,
        state,
        taken,
        (heard.is_some() || taken > 0, true),
    );
    let outcome = Outcome {
        fits,
        retry_after,
        ..settled
    };
    (outcome, loan)
}

/// The level and the loans at `now`, read under the policy of this call.
fn view(meter: &impl Meter, stored: Option<Lent>, now: u64) -> Lent {
    let Some(mut lent) = stored else {
        return Lent {
            level: level::view(meter, None, now),
            loans: Loans::default(),
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
        lent.turn(meter);
    }
    lent.forward(meter, now);
    lent
}

#[cfg(test)]
mod tests;
