//! The result of a replay: plain data, written as text, JSON or HTML. Tests: `tests/replay`.

mod chart;
mod page;
mod palette;
mod summary;

use serde::Serialize;

pub use crate::replay::keys::{MergedKeys, RankedKey};
pub use crate::replay::problems::{BrokenLines, ProblemKind};
pub use crate::replay::series::{IntervalCounts, Series};
use crate::replay::suggest::Suggestion;
pub use crate::replay::time::ZoneCount;
pub use crate::replay::timeline::ClockReport;
pub use crate::replay::waits::Waits;

/// The decisions of the policies for recorded traffic.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// The log files.
    pub logs: Vec<String>,
    /// The number of lines of all files.
    pub lines: u64,
    /// The number of lines that were decided.
    pub calls: u64,
    /// The time of the first call, in microseconds since 1970.
    pub first_at: u64,
    /// The time of the last call, in microseconds since 1970.
    pub last_at: u64,
    /// True if all times are whole seconds. Calls of one second are then decided at one time, so
    /// bursts look shorter than they were.
    pub whole_seconds: bool,
    /// The lines that cannot be replayed.
    pub broken: Vec<BrokenLines>,
    /// Times that step back.
    pub clock: ClockReport,
    /// The time zones of the lines.
    pub zones: Vec<ZoneCount>,
    /// The results of the policy file, then those of the file for comparison.
    pub results: Vec<PolicySetReport>,
    /// The calls whose result differs between both files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
    /// Suggested buckets: one for all calls, or with rules one for each policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<Suggestion>,
}

/// The results of one policy file. A line is denied if one policy denies it, or would deny it in
/// shadow mode.
#[derive(Clone, Debug, Serialize)]
pub struct PolicySetReport {
    /// The file.
    pub file: String,
    /// The number of lines that all policies admit.
    pub admitted: u64,
    /// The number of lines that a policy denies.
    pub denied: u64,
    /// The number of lines without a decision, because the table of keys is full or the policy
    /// cannot count the cost.
    pub undecided: u64,
    /// The number of lines that no rule matches; they are admitted.
    pub unmatched: u64,
    /// The number of lines whose rule names no policy; they are admitted.
    pub not_configured: u64,
    /// Policies that cannot be replayed: concurrency policies.
    pub skipped: Vec<String>,
    /// Policies that are not replayed, because they are for other apps than the one of the replay.
    pub other_apps: Vec<String>,
    /// The results of each policy.
    pub policies: Vec<PolicyReport>,
}

/// The results of one policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyReport {
    /// The name.
    pub name: String,
    /// The policy as a sentence.
    pub policy: String,
    /// `enforce`, `shadow` or `off`. In shadow mode, denied calls are those that it would deny.
    pub enforcement: String,
    /// The number of admitted calls.
    pub admitted: u64,
    /// The number of denied calls.
    pub denied: u64,
    /// The number of calls without a decision.
    pub undecided: u64,
    /// The number of keys.
    pub keys: u64,
    /// The number of keys with a denied call.
    pub denied_keys: u64,
    /// The calls of keys beyond the bound.
    pub merged_keys: MergedKeys,
    /// The waits.
    pub waits: Waits,
    /// The keys with the most denied calls.
    pub most_denied: Vec<RankedKey>,
    /// The keys with the longest waits.
    pub longest_waits: Vec<RankedKey>,
    /// The calls over time.
    pub over_time: Series,
}

/// The calls whose result differs between two policy files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// The number of lines that the first file admits and the second denies.
    pub newly_denied: u64,
    /// The number of lines that the first file denies and the second admits.
    pub newly_admitted: u64,
}

impl ReplayReport {
    /// Returns the number of lines that cannot be replayed.
    #[must_use]
    pub fn broken_lines(&self) -> u64 {
        self.broken.iter().map(|broken| broken.lines).sum()
    }

    /// Returns the report as one HTML file.
    #[must_use]
    pub fn to_html(&self) -> String {
        page::write(self)
    }

    /// Returns the report as text for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        summary::write(self)
    }
}

impl PolicyReport {
    /// Returns the calls over time as an SVG image.
    #[must_use]
    pub fn chart(&self) -> String {
        chart::Chart::over_time(self).image()
    }
}

impl Suggestion {
    /// Returns the smallest capacity of each rate as an SVG image; `None` for less than two rates.
    #[must_use]
    pub fn chart(&self) -> Option<String> {
        chart::Chart::capacities(self).map(|chart| chart.image())
    }
}
