//! The admissions above a bucket's quota, over all windows of time. Exact: integers only.

use std::collections::HashMap;

/// The maximum time between a decision and its entry.
const SETTLED_AFTER_MICROS: u64 = 2_000_000;

/// The quota of a token bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    pub(crate) capacity: u64,
    pub(crate) per_second: u64,
}

impl Quota {
    /// Returns the calls that faults may admit under one key beyond the quota: Q + n + r·A for
    /// outages, independent of their number, and a quota for each loss of data.
    pub(crate) fn bound(&self, outages: Outages, losses: u64, replicas: usize) -> u64 {
        let of_outages = outages.unreported_millis().map_or(0, |millis| {
            let late = self.per_second * millis;
            self.capacity + replicas as u64 + late.div_ceil(1_000)
        });
        of_outages + losses * self.capacity
    }
}

/// The calls that replicas decide by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outages {
    None,
    /// Outages much shorter than a second.
    Short,
    Any,
}

impl Outages {
    /// Returns the longest time for which permits that one replica admits locally stay unknown to
    /// Redis while another replica uses Redis: the pause between reports, or an outage of a second;
    /// plus the time to detect its end and to deliver a report.
    fn unreported_millis(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Short => Some(500),
            Self::Any => Some(1_500),
        }
    }
}

/// The admitted calls of all keys, in bounded memory.
#[derive(Debug)]
pub(crate) struct Ledger {
    quota: Quota,
    accounts: HashMap<u32, Account>,
    /// Key and moment in microseconds, of calls that an earlier one may still follow.
    pending: Vec<(u64, u32)>,
    latest: u64,
}

/// The calls of one key. For every pair of calls i ≤ j the quota is: (j − i + 1) ≤ capacity +
/// rate · (at(j) − at(i)). With S(k) the number of calls before k, and f(k) = S(k) − rate · at(k),
/// this is f(j) + 1 − capacity ≤ f(i), so the least f(i) decides. Units are millionths of a call.
#[derive(Clone, Copy, Debug)]
struct Account {
    calls: i128,
    least: i128,
    excess: i128,
}

/// Calls admitted beyond the quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    /// The extra admissions of the worst key.
    pub(crate) worst: u64,
    /// Under all keys together.
    pub(crate) total: u64,
}

impl Ledger {
    pub(crate) fn new(quota: Quota) -> Self {
        Self {
            quota,
            accounts: HashMap::new(),
            pending: Vec::new(),
            latest: 0,
        }
    }

    /// Writes a call down that was admitted at a moment in microseconds.
    pub(crate) fn admitted(&mut self, key: u32, at: u64) {
        self.pending.push((at, key));
        self.latest = self.latest.max(at);
    }

    /// Counts the entries that no later entry can precede.
    pub(crate) fn settle(&mut self) {
        self.settle_until(self.latest.saturating_sub(SETTLED_AFTER_MICROS));
    }

    /// Returns the admissions above the quota, in total.
    pub(crate) fn extra(&mut self) -> Extra {
        self.settle_until(u64::MAX);
        let excess = self.accounts.values().map(|account| account.excess);
        excess.fold(Extra::default(), |extra, excess| {
            let calls = u64::try_from((excess + 999_999) / 1_000_000).unwrap_or(0);
            Extra {
                worst: extra.worst.max(calls),
                total: extra.total + calls,
            }
        })
    }

    fn settle_until(&mut self, until: u64) {
        self.pending.sort_unstable();
        let settled = self.pending.partition_point(|(at, _)| *at <= until);
        for (at, key) in self.pending.drain(..settled) {
            let rate = i128::from(self.quota.per_second) * i128::from(at);
            let account = self.accounts.entry(key).or_insert(Account {
                calls: 0,
                least: i128::MAX,
                excess: 0,
            });
            let before = account.calls * 1_000_000 - rate;
            account.least = account.least.min(before);
            let allowed = i128::from(self.quota.capacity) * 1_000_000;
            account.excess = account.excess.max(before + 1_000_000 - allowed - account.least);
            account.calls += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra_of(moments: &[u64]) -> Extra {
        let quota = Quota {
            capacity: 2,
            per_second: 1,
        };
        let mut ledger = Ledger::new(quota);
        for moment in moments {
            ledger.admitted(7, *moment);
            ledger.settle();
        }
        ledger.extra()
    }

    #[test]
    fn admissions_within_quota_are_not_extra() {
        assert_eq!(extra_of(&[0, 0, 1_000_000, 2_000_000]).worst, 0);
    }

    #[test]
    fn one_microsecond_too_early_is_one_call_extra() {
        assert_eq!(extra_of(&[0, 0, 999_999]).worst, 1);
    }

    #[test]
    fn burst_after_quiet_hour_counts_from_its_start() {
        let hour = 3_600_000_000;
        assert_eq!(
            extra_of(&[0, hour, hour, hour, hour]),
            Extra { worst: 2, total: 2 }
        );
    }

    #[test]
    fn order_of_records_does_not_matter() {
        assert_eq!(extra_of(&[1_000_000, 0, 2_000_000, 0]).worst, 0);
    }
}
