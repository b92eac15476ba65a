//! Denials under policies with a penalty that the store has not received yet.
//!
//! Most denials are answered in this process, so the store does not see them. Each is recorded here
//! with the moment at which it occurred, and the records of a limit are reported together: after
//! [`REPORT_WITHIN`], or at once if they may complete the number that blocks the key. The store
//! counts each denial from its recorded moment, so a late report does not extend the window of the
//! penalty.
//!
//! Memory is bounded by `MAX_KEYS` limits and `MAX_MOMENTS` moments for each. Verified by the tests
//! below and by `tests/penalties.rs`, which compares both stores.

use std::collections::HashMap;
use std::time::Duration;

use crate::identity::Identity;
use crate::key::Key;
use crate::policy::Policy;
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::{Timestamp, micros_ceil};

/// The longest delay of a report.
pub(crate) const REPORT_WITHIN: Duration = Duration::from_secs(1);
/// The maximum number of limits whose denials are kept; further denials are reported one by one.
const MAX_KEYS: usize = 10_000;
/// The maximum number of timestamps kept for one limit; with one more they are reported at once.
const MAX_MOMENTS: usize = 128;
/// Number of limits from which expired ones are removed …
const MANY_KEYS: usize = 64;
/// … and the minimum time between two removals, because each visits all limits.
const CLEANUP_INTERVAL: Duration = Duration::from_millis(100);

/// Denials that occurred at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatedDenials {
    pub(crate) at: Timestamp,
    pub(crate) number: u32,
}

/// The unreported denials of all limits.
#[derive(Debug, Default)]
pub(crate) struct DenialCounts {
    counts: Mutex<KeyCounts>,
}

#[derive(Debug, Default)]
struct KeyCounts {
    by_limit: HashMap<Identity, KeyCount>,
    /// The number of limits at which expired ones are removed next …
    cleanup_at: usize,
    /// … and the moment of the last removal.
    cleaned_at: Timestamp,
}

/// A limit with a penalty that denied a call.
#[derive(Clone, Debug)]
pub(crate) struct DeniedLimit {
    pub(crate) identity: Identity,
    pub(crate) policy: Policy,
    /// Bounded in length.
    pub(crate) key: Key<'static>,
}

#[derive(Debug)]
struct KeyCount {
    limit: DeniedLimit,
    /// Oldest first.
    unreported: Vec<DatedDenials>,
    /// The number of further denials after which the key may have to be blocked, by the last reply
    /// and the reports since.
    left: u64,
    /// The moment of the last report or reply.
    reported_at: Timestamp,
}

/// The next step after a denial.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PenaltyAction {
    /// The caller schedules a report within [`REPORT_WITHIN`].
    ScheduleReport,
    /// A report is scheduled already.
    None,
    /// The caller reports these denials now.
    Report(Vec<DatedDenials>),
}

impl DenialCounts {
    /// Records a denial.
    pub(crate) fn record(&self, limit: &DeniedLimit, now: Timestamp) -> PenaltyAction {
        let Some(penalty) = limit.policy.penalty() else {
            return PenaltyAction::None;
        };
        let max = u64::from(penalty.denials());
        let mut counts = self.lock();
        if !counts.by_limit.contains_key(&limit.identity) && !counts.has_capacity(now) {
            return PenaltyAction::Report(vec![DatedDenials { at: now, number: 1 }]);
        }
        let count = counts.by_limit.entry(limit.identity).or_insert_with(|| KeyCount {
            limit: limit.clone(),
            unreported: Vec::new(),
            left: max,
            reported_at: now,
        });
        if count.limit.policy.penalty() != Some(penalty) {
            // The last reply was about another version of the policy.
            (count.limit, count.left) = (limit.clone(), max);
        }
        count.drop_expired(now);
        count.push(now);
        let first = count.unreported.first().map_or(now, |first| first.at);
        // A scheduled report that is this late was lost with its runtime.
        let is_overdue = now.since(first) > 2 * REPORT_WITHIN;
        if count.number() >= count.left || count.unreported.len() >= MAX_MOMENTS || is_overdue {
            PenaltyAction::Report(count.take(now))
        } else if count.number() == 1 {
            PenaltyAction::ScheduleReport
        } else {
            PenaltyAction::None
        }
    }

    /// Takes the unreported denials of a limit, to report them.
    pub(crate) fn take_unreported(
        &self,
        identity: Identity,
        now: Timestamp,
    ) -> Option<(DeniedLimit, Vec<DatedDenials>)> {
        let mut counts = self.lock();
        let count = counts.by_limit.get_mut(&identity)?;
        count.drop_expired(now);
        let denials = count.take(now);
        (!denials.is_empty()).then(|| (count.limit.clone(), denials))
    }

    /// Returns the limits that have unreported denials.
    pub(crate) fn unreported(&self) -> Vec<Identity> {
        let counts = self.lock();
        let unreported = counts
            .by_limit
            .iter()
            .filter(|(_, count)| !count.unreported.is_empty());
        unreported.map(|(identity, _)| *identity).collect()
    }

    /// Records a report: the store blocks the key after `left` more denials. Returns the denials
    /// recorded meanwhile if they have to be reported now.
    pub(crate) fn mark_reported(
        &self,
        identity: Identity,
        left: u64,
        now: Timestamp,
    ) -> Option<Vec<DatedDenials>> {
        let mut counts = self.lock();
        let count = counts.by_limit.get_mut(&identity)?;
        count.left = left.clamp(1, count.max());
        count.reported_at = now;
        (count.number() >= count.left).then(|| count.take(now))
    }

    /// Restores the denials of a failed report.
    pub(crate) fn restore(&self, identity: Identity, mut denials: Vec<DatedDenials>) {
        if let Some(count) = self.lock().by_limit.get_mut(&identity) {
            count.left = (count.left + number_of(&denials)).min(count.max());
            denials.append(&mut count.unreported);
            denials.drain(..denials.len().saturating_sub(MAX_MOMENTS));
            count.unreported = denials;
        }
    }

    /// Removes the denials of a limit.
    pub(crate) fn forget(&self, identity: Identity) {
        self.lock().by_limit.remove(&identity);
    }

    fn lock(&self) -> MutexGuard<'_, KeyCounts> {
        self.counts.lock()
    }
}

impl KeyCounts {
    /// Returns true if another limit fits, after the removal of expired ones.
    fn has_capacity(&mut self, now: Timestamp) -> bool {
        let is_due = now >= self.cleaned_at.after(CLEANUP_INTERVAL) || now < self.cleaned_at;
        if self.by_limit.len() >= self.cleanup_at.max(MANY_KEYS) && is_due {
            self.by_limit.retain(|_, count| {
                count.drop_expired(now);
                !count.unreported.is_empty() || !count.is_expired(count.reported_at, now)
            });
            self.cleanup_at = (2 * self.by_limit.len()).min(MAX_KEYS);
            self.cleaned_at = now;
        }
        self.by_limit.len() < MAX_KEYS
    }
}

impl KeyCount {
    fn push(&mut self, now: Timestamp) {
        match self.unreported.last_mut() {
            // A clock that was set back does not change the order.
            Some(last) if last.at >= now => last.number = last.number.saturating_add(1),
            _ => self.unreported.push(DatedDenials { at: now, number: 1 }),
        }
    }

    /// Takes all unreported denials: until the reply, the store counts as having received them.
    fn take(&mut self, now: Timestamp) -> Vec<DatedDenials> {
        let denials = std::mem::take(&mut self.unreported);
        if !denials.is_empty() {
            self.left = self.left.saturating_sub(number_of(&denials)).max(1);
            self.reported_at = now;
        }
        denials
    }

    fn number(&self) -> u64 {
        number_of(&self.unreported)
    }

    /// Returns the number of denials that blocks the key.
    fn max(&self) -> u64 {
        let penalty = self.limit.policy.penalty();
        penalty.map_or(1, |penalty| penalty.denials().into())
    }

    /// True if a denial of this time no longer counts.
    fn is_expired(&self, at: Timestamp, now: Timestamp) -> bool {
        let penalty = self.limit.policy.penalty();
        let window = penalty.map_or(0, |penalty| micros_ceil(penalty.within()));
        micros_ceil(now.since(at)) >= window
    }

    /// Drops unreported denials that no longer count, and the last reply if it covers only such
    /// denials.
    fn drop_expired(&mut self, now: Timestamp) {
        let expired = self
            .unreported
            .iter()
            .take_while(|denials| self.is_expired(denials.at, now));
        let expired = expired.count();
        self.unreported.drain(..expired);
        if self.is_expired(self.reported_at, now) {
            self.left = self.max();
        }
    }
}

fn number_of(denials: &[DatedDenials]) -> u64 {
    denials.iter().map(|denials| u64::from(denials.number)).sum()
}

#[cfg(test)]
mod tests;
