//! What this process has borrowed of one limit, and how much it should borrow: pure, by a clock
//! that is read elsewhere.

use crate::algorithm::{LeaseGrant, LeaseRequest, UsageReport};

/// Permits of one limit that are in this process. Amounts are thousandths, times microseconds of
/// its own clock.
#[derive(Debug)]
pub(crate) struct LeasedTokens {
    /// Of the last two epochs, the older one first: it ends first, so it is spent first.
    purses: [EpochTokens; 2],
    /// The longest life of a loan.
    max_age: u64,
    /// What a loan should be: as much as lasts for a while.
    want: u64,
    /// When the last loan came, and how much was there then.
    filled_at: u64,
    filled: u64,
    /// Not before this moment is it worth asking for more …
    ask_at: u64,
    /// … and not before this one to give anything back.
    tell_at: u64,
    spent_at: u64,
    /// Until this moment somebody is asking, or was lost with his runtime.
    asking_until: u64,
}

/// What is left of one epoch's loans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EpochTokens {
    epoch: u32,
    left: u64,
    /// Since the last report.
    spent: u64,
    /// From this moment on it may count as spent.
    until: u64,
}

impl EpochTokens {
    fn is_alive(&self, now: u64) -> bool {
        self.left > 0 && now < self.until
    }

    fn is_empty(&self) -> bool {
        self.left == 0 && self.spent == 0
    }
}

impl LeasedTokens {
    /// A first loan is so many times what a call costs.
    const FIRST: u64 = 8;

    pub(crate) fn new(max_age: u64, cost: u64, now: u64) -> Self {
        Self {
            purses: [EpochTokens::default(); 2],
            max_age,
            want: cost.saturating_mul(Self::FIRST),
            filled_at: now,
            filled: 0,
            ask_at: now,
            tell_at: now,
            spent_at: now,
            asking_until: 0,
        }
    }

    /// Spends what a call costs, if it is there: what is left then.
    pub(crate) fn spend(&mut self, cost: u64, now: u64) -> Option<u64> {
        let held = self.held(now);
        let left = held.checked_sub(cost)?;
        let mut rest = cost;
        for purse in self.purses.iter_mut().filter(|purse| purse.is_alive(now)) {
            let part = rest.min(purse.left);
            purse.left -= part;
            purse.spent += part;
            rest -= part;
        }
        self.spent_at = now;
        Some(left)
    }

    /// Takes back up to `amount` of what was spent and not told yet, where its loan still runs: so
    /// much came back.
    pub(crate) fn take_back(&mut self, amount: u64, now: u64) -> u64 {
        let mut rest = amount;
        // What lasts longer is of more use.
        for purse in self.purses.iter_mut().rev().filter(|purse| now < purse.until) {
            let part = rest.min(purse.spent);
            purse.spent -= part;
            purse.left += part;
            rest -= part;
        }
        amount - rest
    }

    pub(crate) fn held(&self, now: u64) -> u64 {
        let alive = self.purses.iter().filter(|purse| purse.is_alive(now));
        alive.map(|purse| purse.left).sum()
    }

    /// Whether more should be asked for, since half of the last loan is gone or soon will be of no
    /// use.
    pub(crate) fn should_ask(&self, now: u64) -> bool {
        let lasting = self.purses.iter().filter(|purse| purse.is_alive(now));
        let lasting: u64 = lasting
            .filter(|purse| purse.until - now > self.max_age / 8)
            .map(|purse| purse.left)
            .sum();
        !self.is_asking(now) && now >= self.ask_at && lasting <= self.filled / 2
    }

    /// Whether a call that is not covered has to take what is here along: the store alone might
    /// deny it, though this process and the store have room for it together.
    pub(crate) fn must_ask(&self, cost: u64, now: u64) -> bool {
        !self.is_asking(now) && (1..cost).contains(&self.held(now))
    }

    fn is_asking(&self, now: u64) -> bool {
        now < self.asking_until
    }

    /// The question for more, beside a charge that is not covered by what is here. What is here
    /// goes back with it then, so that a call is not denied that this process and the store have
    /// room for together.
    pub(crate) fn refill_request(&mut self, cost: u64, quota: u64, now: u64) -> LeaseRequest {
        let lasted = now.saturating_sub(self.filled_at);
        // Loans are whole permits, and one that covers no call is of no use.
        let least = cost.max(1).next_multiple_of(1_000);
        if self.filled > 0 && lasted < self.max_age / 16 {
            self.want = self.want.saturating_mul(2).min(quota);
        } else if lasted > self.max_age / 4 {
            self.want = (self.want / 2).max(least);
        }
        self.asking_until = now + ASKED_FOR;
        if cost > 0 {
            self.spent_at = now;
        }
        LeaseRequest {
            cost,
            want: self.want.max(cost),
            epoch: self.epoch(),
            report: self.report(cost > 0, now),
        }
    }

    /// A question that only gives back.
    pub(crate) fn final_report(&mut self, now: u64) -> Option<LeaseRequest> {
        let report = self.report(true, now);
        let says_something = report != UsageReport::default();
        if says_something {
            self.asking_until = now + ASKED_FOR;
        }
        says_something.then_some(LeaseRequest {
            epoch: self.epoch(),
            report,
            ..LeaseRequest::default()
        })
    }

    /// What came of a question that was submitted at that moment.
    pub(crate) fn filled(&mut self, loan: LeaseGrant, submitted: u64, now: u64) {
        self.asking_until = 0;
        // Of an epoch that another replica began it may live longer than this one wants to keep it.
        let life = loan.life.min(self.max_age);
        let until = (submitted + life).saturating_sub(life / 16 + MARGIN);
        if loan.amount == 0 || until <= now {
            // Nothing to be had: the next calls ask for themselves, and so do other replicas.
            self.ask_at = now + self.max_age / 16;
            return;
        }
        let [older, newer] = &mut self.purses;
        let purse = if newer.epoch == loan.epoch || newer.is_empty() {
            newer
        } else if older.epoch == loan.epoch {
            older
        } else {
            // What remains of the older one is of an epoch that has ended twice.
            *older = std::mem::take(newer);
            newer
        };
        let left = if purse.until <= now { 0 } else { purse.left };
        *purse = EpochTokens {
            epoch: loan.epoch,
            left: left + loan.amount,
            spent: if purse.epoch == loan.epoch { purse.spent } else { 0 },
            // What came before may end earlier; what is over says nothing of the life of this.
            until: if left > 0 { until.min(purse.until) } else { until },
        };
        self.filled_at = now;
        self.filled = self.held(now);
    }

    /// A question came to nothing, or only gave back.
    pub(crate) fn answered(&mut self, now: u64) {
        self.asking_until = 0;
        self.ask_at = now + self.max_age / 16;
    }

    /// What was told did not reach the store: it is here as before, as long as its loan runs.
    pub(crate) fn restore_report(&mut self, report: UsageReport, now: u64) {
        self.tell_at = now + self.max_age / 16;
        let purse = self
            .purses
            .iter_mut()
            .find(|purse| purse.epoch == report.epoch && now < purse.until);
        if let Some(purse) = purse {
            purse.left += report.returned;
            purse.spent += report.spent;
        }
    }

    /// Whether it holds what nobody has asked for lately, or what will soon be of no use.
    pub(crate) fn is_stale(&self, now: u64) -> bool {
        let idle = now.saturating_sub(self.spent_at) > self.max_age / 4;
        let old =
            |purse: &EpochTokens| !purse.is_empty() && purse.until.saturating_sub(now) < self.max_age / 16;
        // What could not be told a moment ago cannot be told now either.
        let may_tell = !self.is_asking(now) && now >= self.tell_at;
        may_tell && (idle && !self.is_empty() || self.purses.iter().any(old))
    }

    /// Whether it holds nothing, and has not been of use for a while.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        !self.is_asking(now) && self.is_empty() && now.saturating_sub(self.spent_at) > self.max_age
    }

    fn is_empty(&self) -> bool {
        self.purses.iter().all(EpochTokens::is_empty)
    }

    fn epoch(&self) -> u64 {
        (self.max_age / 2).max(1)
    }

    /// What became of the oldest purse of which there is something to say.
    fn report(&mut self, give_back: bool, now: u64) -> UsageReport {
        let worth_telling = |purse: &&mut EpochTokens| {
            let over = give_back || now >= purse.until;
            purse.spent > 0 || (over && purse.left > 0)
        };
        let told = self.purses.iter_mut().filter(worth_telling);
        // One epoch is told of at a time: of two, the one of which more is here.
        let told = told.reduce(|older, newer| {
            if give_back && newer.left > older.left {
                newer
            } else {
                older
            }
        });
        let Some(purse) = told else {
            return UsageReport::default();
        };
        let returned = if give_back || now >= purse.until {
            purse.left
        } else {
            0
        };
        purse.left -= returned;
        UsageReport {
            epoch: purse.epoch,
            spent: std::mem::take(&mut purse.spent),
            returned,
        }
    }
}

/// A question that has not come back by then was lost with the runtime in which it was asked:
/// microseconds.
const ASKED_FOR: u64 = 5_000_000;
/// By how much a loan ends earlier here than at the store, besides a sixteenth of its life for
/// clocks that go at another pace: microseconds.
const MARGIN: u64 = 500;

#[cfg(test)]
mod tests;
