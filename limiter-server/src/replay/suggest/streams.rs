//! The calls for suggestions: one log for all calls, or with rules one for each policy.

use crate::replay::source::Call;
use crate::replay::suggest::{DenialTarget, EventLog, Suggestion};

/// The logs of calls, each with the policy of its rule.
#[derive(Debug)]
pub(in crate::replay) struct EventStreams {
    target: DenialTarget,
    streams: Vec<(Option<String>, EventLog)>,
}

impl EventStreams {
    pub(in crate::replay) fn new(target: DenialTarget) -> Self {
        Self {
            target,
            streams: Vec::new(),
        }
    }

    /// Adds a call with the hash of its key.
    pub(in crate::replay) fn record(&mut self, policy: Option<&str>, hash: u64, call: &Call) {
        let place = self.streams.iter().position(|(of, _)| of.as_deref() == policy);
        let place = place.unwrap_or_else(|| {
            self.streams.push((policy.map(str::to_owned), EventLog::new()));
            self.streams.len() - 1
        });
        if let Some((_, log)) = self.streams.get_mut(place) {
            let cost = u64::try_from(call.cost.as_thousandths()).unwrap_or(u64::MAX);
            log.record(hash, call.at, cost);
        }
    }

    pub(in crate::replay) fn suggestions(self) -> Vec<Suggestion> {
        let each = self.streams.into_iter();
        each.filter_map(|(policy, log)| Suggestion::compute(policy, log, self.target))
            .collect()
    }
}
