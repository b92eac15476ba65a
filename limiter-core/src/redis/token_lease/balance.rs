//! Leased tokens of one limit, and the amount of the next lease: pure functions of a clock that the
//! caller reads.
//!
//! Tokens belong to the epoch of their grant, and the older of two epochs is spent first. The usage
//! is reported with the next refill, and without one if no refill is due. The amount of a refill
//! follows the rate of use.
//!
//! Invariant: a token is spent only before the time from which the store may count it as used.
//! Tests: `balance/tests.rs`, `history_tests.rs`.

use crate::algorithm::{LeaseGrant, LeaseRequest, UsageReport};

/// Tokens of one limit in this process. Amounts are thousandths, times are microseconds of the
/// local clock.
#[derive(Debug)]
pub(crate) struct LeasedTokens {
    /// Tokens of the last two epochs. The older epoch ends first and is spent first.
    epoch_balances: [EpochTokens; 2],
    /// Maximum age of a grant.
    max_age: u64,
    /// Target amount of a grant, adapted to the rate of use.
    want: u64,
    /// Time of the last grant, and the balance right after it.
    filled_at: u64,
    filled: u64,
    /// Earliest time of the next refill.
    refill_at: u64,
    /// Earliest time of the next report without a refill.
    report_at: u64,
    spent_at: u64,
    /// Until this time a refill is pending, or was lost with its runtime.
    refill_pending_until: u64,
}

/// Tokens of one epoch's grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EpochTokens {
    epoch: u32,
    remaining: u64,
    /// Spent tokens that are not reported yet.
    spent: u64,
    /// From this time on, the store may count the tokens as used.
    until: u64,
}

/// The remaining tokens that a report returns to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReturnedTokens {
    /// Expired tokens.
    Expired,
    /// All tokens of the reported epoch.
    All,
}

impl EpochTokens {
    fn is_alive(&self, now: u64) -> bool {
        self.remaining > 0 && now < self.until
    }

    fn is_empty(&self) -> bool {
        self.remaining == 0 && self.spent == 0
    }
}

impl LeasedTokens {
    /// The first grant is this multiple of the cost of a call.
    const FIRST: u64 = 8;

    pub(crate) fn new(max_age: u64, cost: u64, now: u64) -> Self {
        Self {
            epoch_balances: [EpochTokens::default(); 2],
            max_age,
            want: cost.saturating_mul(Self::FIRST),
            filled_at: now,
            filled: 0,
            refill_at: now,
            report_at: now,
            spent_at: now,
            refill_pending_until: 0,
        }
    }

    /// Spends the cost of a call if the balance covers it. Returns the remaining balance.
    pub(crate) fn spend(&mut self, cost: u64, now: u64) -> Option<u64> {
        let held = self.held(now);
        let remaining = held.checked_sub(cost)?;
        let mut rest = cost;
        for epoch_balance in self
            .epoch_balances
            .iter_mut()
            .filter(|epoch_balance| epoch_balance.is_alive(now))
        {
            let part = rest.min(epoch_balance.remaining);
            epoch_balance.remaining -= part;
            epoch_balance.spent += part;
            rest -= part;
        }
        self.spent_at = now;
        Some(remaining)
    }

    /// Refunds up to `amount` of spent tokens that are not reported yet, if their grant is still
    /// valid. Returns the refunded amount.
    pub(crate) fn take_back(&mut self, amount: u64, now: u64) -> u64 {
        let mut rest = amount;
        // The newer epoch first, since its tokens stay valid for longer.
        for epoch_balance in self
            .epoch_balances
            .iter_mut()
            .rev()
            .filter(|epoch_balance| now < epoch_balance.until)
        {
            let part = rest.min(epoch_balance.spent);
            epoch_balance.spent -= part;
            epoch_balance.remaining += part;
            rest -= part;
        }
        amount - rest
    }

    pub(crate) fn held(&self, now: u64) -> u64 {
        let alive = self
            .epoch_balances
            .iter()
            .filter(|epoch_balance| epoch_balance.is_alive(now));
        alive.map(|epoch_balance| epoch_balance.remaining).sum()
    }

    /// Returns whether a refill is due: half of the last grant is spent or will soon expire.
    pub(crate) fn should_refill(&self, now: u64) -> bool {
        let lasting = self
            .epoch_balances
            .iter()
            .filter(|epoch_balance| epoch_balance.is_alive(now));
        let lasting: u64 = lasting
            .filter(|epoch_balance| epoch_balance.until - now > self.max_age / 8)
            .map(|epoch_balance| epoch_balance.remaining)
            .sum();
        !self.is_refill_pending(now) && now >= self.refill_at && lasting <= self.filled / 2
    }

    /// Returns whether an uncovered call has to return the balance together with its charge: the
    /// store alone may deny a call that store and balance cover together.
    pub(crate) fn must_refill(&self, cost: u64, now: u64) -> bool {
        !self.is_refill_pending(now) && (1..cost).contains(&self.held(now))
    }

    fn is_refill_pending(&self, now: u64) -> bool {
        now < self.refill_pending_until
    }

    /// Creates a refill request, beside the charge of an uncovered call. Such a call also returns
    /// the balance, so that it is not denied although store and balance cover it together.
    pub(crate) fn refill_request(&mut self, cost: u64, quota: u64, now: u64) -> LeaseRequest {
        let lasted = now.saturating_sub(self.filled_at);
        // Grants are whole permits, and a grant below one call's cost is useless.
        let least = cost.max(1).next_multiple_of(1_000);
        if self.filled > 0 && lasted < self.max_age / 16 {
            self.want = self.want.saturating_mul(2).min(quota);
        } else if lasted > self.max_age / 4 {
            self.want = (self.want / 2).max(least);
        }
        self.refill_pending_until = now + REFILL_TIMEOUT;
        let returned = if cost > 0 {
            self.spent_at = now;
            ReturnedTokens::All
        } else {
            ReturnedTokens::Expired
        };
        LeaseRequest {
            cost,
            want: self.want.max(cost),
            epoch: self.epoch(),
            report: self.report(returned, now),
        }
    }

    /// Creates a request that only reports and returns.
    pub(crate) fn final_report(&mut self, now: u64) -> Option<LeaseRequest> {
        let report = self.report(ReturnedTokens::All, now);
        let is_necessary = report != UsageReport::default();
        if is_necessary {
            self.refill_pending_until = now + REFILL_TIMEOUT;
        }
        is_necessary.then_some(LeaseRequest {
            epoch: self.epoch(),
            report,
            ..LeaseRequest::default()
        })
    }

    /// Records the result of a refill that was sent at `submitted`.
    pub(crate) fn filled(&mut self, grant: LeaseGrant, submitted: u64, now: u64) {
        self.refill_pending_until = 0;
        // An epoch that another replica started may last longer than this policy's lease.
        let life = grant.life.min(self.max_age);
        let until = (submitted + life).saturating_sub(life / 16 + MARGIN);
        if grant.amount == 0 || until <= now {
            // The store has no tokens to lease: the next calls and other replicas decide there.
            self.refill_at = now + self.max_age / 16;
            return;
        }
        let [older, newer] = &mut self.epoch_balances;
        let epoch_balance = if newer.epoch == grant.epoch || newer.is_empty() {
            newer
        } else if older.epoch == grant.epoch {
            older
        } else {
            // The older tokens belong to an epoch that has ended twice.
            *older = std::mem::take(newer);
            newer
        };
        let remaining = if epoch_balance.until <= now {
            0
        } else {
            epoch_balance.remaining
        };
        *epoch_balance = EpochTokens {
            epoch: grant.epoch,
            remaining: remaining + grant.amount,
            spent: if epoch_balance.epoch == grant.epoch {
                epoch_balance.spent
            } else {
                0
            },
            // Remaining tokens of an earlier grant may expire sooner; without remaining tokens,
            // only the new grant's end applies.
            until: if remaining > 0 {
                until.min(epoch_balance.until)
            } else {
                until
            },
        };
        self.filled_at = now;
        self.filled = self.held(now);
    }

    /// Records a refill without a grant.
    pub(crate) fn refill_ended(&mut self, now: u64) {
        self.refill_pending_until = 0;
        self.refill_at = now + self.max_age / 16;
    }

    /// Restores the balance after a report did not reach the store, while its grant is valid.
    pub(crate) fn restore_report(&mut self, report: UsageReport, now: u64) {
        self.report_at = now + self.max_age / 16;
        let epoch_balance = self
            .epoch_balances
            .iter_mut()
            .find(|epoch_balance| epoch_balance.epoch == report.epoch && now < epoch_balance.until);
        if let Some(epoch_balance) = epoch_balance {
            epoch_balance.remaining += report.returned;
            epoch_balance.spent += report.spent;
        }
    }

    /// Returns whether the balance holds tokens that are unused for a while or expire soon.
    pub(crate) fn is_stale(&self, now: u64) -> bool {
        let idle = now.saturating_sub(self.spent_at) > self.max_age / 4;
        let old = |epoch_balance: &EpochTokens| {
            !epoch_balance.is_empty() && epoch_balance.until.saturating_sub(now) < self.max_age / 16
        };
        // A report that failed just now would fail again.
        let may_report = !self.is_refill_pending(now) && now >= self.report_at;
        may_report && (idle && !self.is_empty() || self.epoch_balances.iter().any(old))
    }

    /// Returns whether the balance is empty and was unused for a while.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        !self.is_refill_pending(now) && self.is_empty() && now.saturating_sub(self.spent_at) > self.max_age
    }

    fn is_empty(&self) -> bool {
        self.epoch_balances.iter().all(EpochTokens::is_empty)
    }

    fn epoch(&self) -> u64 {
        (self.max_age / 2).max(1)
    }

    /// Takes the report of one epoch, if there is anything to report.
    fn report(&mut self, returned: ReturnedTokens, now: u64) -> UsageReport {
        let returns_all = returned == ReturnedTokens::All;
        let has_news = |epoch_balance: &&mut EpochTokens| {
            let over = returns_all || now >= epoch_balance.until;
            epoch_balance.spent > 0 || (over && epoch_balance.remaining > 0)
        };
        let reported = self.epoch_balances.iter_mut().filter(has_news);
        // A report covers one epoch: if it returns all tokens, the one with more of them.
        let reported = reported.reduce(|older, newer| {
            if returns_all && newer.remaining > older.remaining {
                newer
            } else {
                older
            }
        });
        let Some(epoch_balance) = reported else {
            return UsageReport::default();
        };
        let returned = if returns_all || now >= epoch_balance.until {
            epoch_balance.remaining
        } else {
            0
        };
        epoch_balance.remaining -= returned;
        UsageReport {
            epoch: epoch_balance.epoch,
            spent: std::mem::take(&mut epoch_balance.spent),
            returned,
        }
    }
}

/// Time after which a pending refill counts as lost with its runtime: microseconds.
const REFILL_TIMEOUT: u64 = 5_000_000;
/// Margin by which a grant expires here earlier than in the store, besides a sixteenth of its life
/// for clocks of another pace: microseconds.
const MARGIN: u64 = 500;

#[cfg(test)]
mod tests;
