//! The calls for suggestions: one log for all calls, or with rules one for each policy.
//!
//! All logs together store a bounded number of calls. At the bound, the largest log drops a part of
//! its calls, so a policy with few calls keeps all of them. Tests: below.

use crate::replay::source::Call;
use crate::replay::suggest::events::MAX_EVENTS;
use crate::replay::suggest::{DenialTarget, EventLog, Suggestion};

/// The logs of calls, each with the policy of its rule.
#[derive(Debug)]
pub(in crate::replay) struct EventStreams {
    target: DenialTarget,
    max_events: usize,
    stored: usize,
    streams: Vec<(Option<String>, EventLog)>,
}

impl EventStreams {
    pub(in crate::replay) fn new(target: DenialTarget) -> Self {
        Self::with_max_events(target, MAX_EVENTS)
    }

    fn with_max_events(target: DenialTarget, max_events: usize) -> Self {
        Self {
            target,
            max_events,
            stored: 0,
            streams: Vec::new(),
        }
    }

    /// Adds a call with the hash of its key.
    pub(in crate::replay) fn record(&mut self, policy: Option<&str>, hash: u64, call: &Call) {
        let cost = u64::try_from(call.cost.as_thousandths()).unwrap_or(u64::MAX);
        self.add(policy, hash, (call.at, cost));
    }

    fn add(&mut self, policy: Option<&str>, hash: u64, (at, cost): (u64, u64)) {
        let place = self.streams.iter().position(|(of, _)| of.as_deref() == policy);
        let place = place.unwrap_or_else(|| {
            let log = EventLog::with_max_events(self.max_events);
            self.streams.push((policy.map(str::to_owned), log));
            self.streams.len() - 1
        });
        if let Some((_, log)) = self.streams.get_mut(place) {
            let before = log.len();
            log.record(hash, at, cost);
            // A log drops calls at the bound.
            self.stored = self.stored + log.len() - before;
        }
        while self.stored > self.max_events {
            let logs = self.streams.iter_mut().map(|(_, log)| log);
            let Some(largest) = logs.max_by_key(|log| log.len()) else {
                break;
            };
            let before = largest.len();
            largest.shrink();
            self.stored = self.stored + largest.len() - before;
        }
    }

    pub(in crate::replay) fn suggestions(self) -> Vec<Suggestion> {
        let each = self.streams.into_iter();
        each.filter_map(|(policy, log)| Suggestion::compute(policy, log, self.target))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the used and the omitted calls of a policy.
    fn counts(suggestions: &[Suggestion], policy: &str) -> (u64, u64) {
        let mut all = suggestions.iter();
        let found = all.find(|of| of.policy.as_deref() == Some(policy)).unwrap();
        (found.calls, found.omitted_calls)
    }

    #[test]
    fn logs_of_all_policies_share_one_bound() {
        let mut streams = EventStreams::with_max_events(DenialTarget::default(), 1_000);
        for at in 0..100 {
            streams.add(Some("small"), hash(at % 7), (at, 1_000));
            for key in 0..200 {
                streams.add(Some("large"), hash(key), (at, 1_000));
                let stored: usize = streams.streams.iter().map(|(_, log)| log.len()).sum();
                assert_eq!(streams.stored, stored);
                assert!(stored <= 1_000, "{stored} calls");
            }
        }
        let suggestions = streams.suggestions();
        assert_eq!(
            counts(&suggestions, "small"),
            (100, 0),
            "the largest log drops its calls"
        );
        let (used, omitted) = counts(&suggestions, "large");
        assert!(used > 0 && used + omitted == 20_000, "{used} {omitted}");
    }

    #[test]
    fn logs_with_one_key_drop_their_last_calls() {
        let mut streams = EventStreams::with_max_events(DenialTarget::default(), 100);
        // No halving of the keys drops this one.
        let one_key = (1..).map(hash).find(|hash| hash >> 54 == 0).unwrap();
        for at in 0..90 {
            streams.add(Some("first"), one_key, (at, 1_000));
        }
        for at in 90..180 {
            streams.add(Some("second"), one_key, (at, 1_000));
            assert!(streams.stored <= 100, "{} calls", streams.stored);
        }
        let suggestions = streams.suggestions();
        for policy in ["first", "second"] {
            let (used, omitted) = counts(&suggestions, policy);
            assert!(used > 0 && used + omitted == 90, "{policy}: {used} {omitted}");
        }
    }
}
