//! Counts that the database has not accepted yet, in the minute of their decisions.
//!
//! An outage of more than [`MAX_MINUTES`] drops the counts of the oldest minutes and counts the
//! dropped decisions in a metric, so the memory is bounded. Decisions never wait. Tests: below.

use std::collections::BTreeMap;

use crate::store::{UsageKind, UsageSpan, UsageTotals};

/// The number of minutes that wait at most, per kind.
pub(super) const MAX_MINUTES: usize = 60;
/// The counter of dropped decisions.
const DROPPED: &str = "limiter_server_usage_dropped_total";

/// The waiting counts of one kind, by minute and policy.
#[derive(Debug)]
pub(super) struct UsageBacklog {
    pub(super) kind: UsageKind,
    minutes: BTreeMap<i64, BTreeMap<String, UsageTotals>>,
}

impl UsageBacklog {
    pub(super) fn new(kind: UsageKind) -> Self {
        Self {
            kind,
            minutes: BTreeMap::new(),
        }
    }

    /// Adds the counts of a time.
    pub(super) fn add(&mut self, at: i64, counts: Vec<(String, UsageTotals)>) {
        if counts.is_empty() {
            return;
        }
        let minute = self.minutes.entry(UsageSpan::Minute.start(at)).or_default();
        for (policy, totals) in counts {
            let waiting = minute.entry(policy).or_default();
            *waiting = waiting.plus(totals);
        }
        while self.minutes.len() > MAX_MINUTES {
            let dropped = self.minutes.pop_first().map(|(_, counts)| counts);
            let calls = dropped.iter().flatten().map(|(_, totals)| totals.calls());
            let calls = u64::try_from(calls.sum::<i64>()).unwrap_or_default();
            metrics::counter!(DROPPED).increment(calls);
        }
    }

    /// Returns the oldest minute with its counts.
    pub(super) fn oldest(&self) -> Option<(i64, Vec<(String, UsageTotals)>)> {
        let (minute, counts) = self.minutes.first_key_value()?;
        let counts = counts.iter().map(|(policy, totals)| (policy.clone(), *totals));
        Some((*minute, counts.collect()))
    }

    /// Removes the oldest minute, which the database has accepted.
    pub(super) fn remove_oldest(&mut self) {
        self.minutes.pop_first();
    }
}

/// Makes the counter of dropped decisions visible before the first one.
pub(super) fn describe() {
    metrics::counter!(DROPPED).increment(0);
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    const MINUTE: i64 = 60_000_000;

    fn counts(allowed: i64) -> Vec<(String, UsageTotals)> {
        let totals = UsageTotals {
            allowed,
            ..UsageTotals::default()
        };
        vec![("search".to_owned(), totals)]
    }

    #[test]
    fn counts_wait_in_their_minute() {
        let mut backlog = UsageBacklog::new(UsageKind::Policy);
        for (at, allowed) in [(MINUTE + 1, 1), (2 * MINUTE - 1, 2), (2 * MINUTE, 4)] {
            backlog.add(at, counts(allowed));
        }
        backlog.add(9 * MINUTE, Vec::new());
        assert_eq!(backlog.oldest(), Some((MINUTE, counts(3))));
        backlog.remove_oldest();
        assert_eq!(backlog.oldest(), Some((2 * MINUTE, counts(4))));
        backlog.remove_oldest();
        assert_eq!(backlog.oldest(), None);
    }

    #[test]
    fn oldest_counts_above_the_bound_are_dropped_and_counted() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let mut backlog = UsageBacklog::new(UsageKind::Policy);
        metrics::with_local_recorder(&recorder, || {
            describe();
            assert!(
                handle.render().contains(&format!("{DROPPED} 0")),
                "{}",
                handle.render()
            );
            for minute in (0_i64..).take(MAX_MINUTES + 2) {
                backlog.add(minute * MINUTE, counts(5));
            }
        });
        assert!(
            handle.render().contains(&format!("{DROPPED} 10")),
            "{}",
            handle.render()
        );
        assert_eq!(backlog.oldest(), Some((2 * MINUTE, counts(5))));
    }
}
