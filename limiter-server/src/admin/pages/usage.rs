//! Counts of decisions, as pages read and show them.
//!
//! The types of the answers of `GET usage` and `GET policies/{name}/usage`. A share is rounded such
//! that a small one is not shown as zero, and a large one not as all. Tests: below, and
//! `tests/pages/numbers.rs`.

use serde::Deserialize;

use crate::admin::numbers::grouped;
use crate::admin::pages::time::PageTime;

/// The decisions of a policy.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct CountsView {
    pub(super) allowed: i64,
    pub(super) denied: i64,
    pub(super) would_deny: i64,
    pub(super) failed: i64,
}

/// The counts have methods with their texts.
impl CountsView {
    /// Returns the number of calls.
    pub(super) fn calls(self) -> i64 {
        self.allowed + self.denied + self.would_deny + self.failed
    }

    pub(super) fn allowed(self) -> String {
        grouped(self.allowed)
    }

    pub(super) fn denied(self) -> String {
        grouped(self.denied)
    }

    pub(super) fn would_deny(self) -> String {
        grouped(self.would_deny)
    }

    pub(super) fn failed(self) -> String {
        grouped(self.failed)
    }

    pub(super) fn add(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.would_deny += other.would_deny;
        self.failed += other.failed;
    }

    /// Returns whether no decision was recorded.
    pub(super) fn is_empty(self) -> bool {
        self.calls() == 0
    }

    /// Returns the share of denied calls, such as `0.4 %`.
    pub(super) fn denied_share(self) -> String {
        share(self.denied, self.calls())
    }
}

/// Returns a part of a whole in percent, rounded. A small part does not appear as none, and a large
/// part not as all.
pub(super) fn share(part: i64, whole: i64) -> String {
    if whole <= 0 {
        return "not known".to_owned();
    }
    let (numerator, denominator) = (i128::from(part), i128::from(whole));
    match (numerator * 1_000 + denominator / 2) / denominator {
        0 if part > 0 => "< 0.1 %".to_owned(),
        1_000 if part < whole => "> 99.9 %".to_owned(),
        thousandths => format!("{}.{} %", thousandths / 10, thousandths % 10),
    }
}

/// The decisions of a policy in a time.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct UsageView {
    pub(super) policy: String,
    /// The apps of library processes among the calls.
    pub(super) apps: Vec<String>,
    #[serde(flatten)]
    pub(super) counts: CountsView,
}

impl UsageView {
    /// Returns the apps of library processes, such as `library in shop, web`.
    pub(super) fn apps_text(&self) -> String {
        let apps = self.apps.iter().filter(|app| !app.is_empty());
        let apps: Vec<&str> = apps.map(String::as_str).collect();
        match apps.is_empty() {
            true => "library".to_owned(),
            false => format!("library in {}", apps.join(", ")),
        }
    }
}

/// The decisions of the library processes of an app.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AppUsageView {
    /// Empty for processes without an app.
    pub(super) app: String,
    #[serde(flatten)]
    pub(super) counts: CountsView,
}

/// The decisions of all policies in a time.
#[derive(Debug, Deserialize)]
pub(super) struct UsageListView {
    pub(super) policies: Vec<UsageView>,
}

/// The decisions of one span.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct PointView {
    pub(super) at: PageTime,
    #[serde(flatten)]
    pub(super) counts: CountsView,
}

/// The decisions of a policy over time.
#[derive(Debug, Deserialize)]
pub(super) struct PointListView {
    pub(super) now: i64,
    pub(super) apps: Vec<AppUsageView>,
    pub(super) points: Vec<PointView>,
    /// The decisions of gateways that the store did not make, which the points include.
    pub(super) without_store: CountsView,
    /// The invalid requests to gateways, which are among the failed calls.
    pub(super) invalid: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_and_small_ones_are_not_zero() {
        for (part, whole, expected) in [
            (0, 0, "not known"),
            (0, 10_000, "0.0 %"),
            (4, 10_000, "< 0.1 %"),
            (5, 10_000, "0.1 %"),
            (2, 3, "66.7 %"),
            (9_999, 10_000, "> 99.9 %"),
            (i64::MAX, i64::MAX, "100.0 %"),
        ] {
            assert_eq!(share(part, whole), expected, "{part} of {whole}");
        }
    }
}
