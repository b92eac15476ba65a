//! Counts of decisions, as pages read and show them.

use serde::Deserialize;

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::grouped;
use crate::admin::pages::links;
use crate::admin::pages::time::PageTime;
use crate::store::now_micros;

const HOUR: i64 = 3_600_000_000;
/// The hours of the plot, unless the URL states others.
pub(super) const HOURS: i64 = 24;
/// The ranges that the page of a policy offers: hours, name.
pub(super) const RANGES: [(i64, &str); 4] = [(1, "1 h"), (6, "6 h"), (24, "24 h"), (168, "7 d")];
/// Ranges up to this number of hours are shown by minute.
const MAX_MINUTE_HOURS: i64 = 24;

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
    /// The number of calls.
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

    fn add(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.would_deny += other.would_deny;
        self.failed += other.failed;
    }

    /// Returns whether no decision was recorded.
    pub(super) fn is_empty(self) -> bool {
        self.calls() == 0
    }

    /// The share of denied calls, such as `0.4 %`.
    pub(super) fn denied_share(self) -> String {
        share(self.denied, self.calls())
    }
}

/// A part of a whole in percent.
pub(super) fn share(part: i64, whole: i64) -> String {
    match whole {
        0 => "not known".to_owned(),
        whole => {
            let thousandths = part.saturating_mul(1_000) / whole;
            format!("{}.{} %", thousandths / 10, thousandths % 10)
        }
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
    /// The apps of library processes, such as `library in shop, web`.
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

/// The decisions of an hour.
#[derive(Clone, Copy, Debug)]
pub(super) struct HourView {
    pub(super) at: PageTime,
    pub(super) counts: CountsView,
    /// The minute with the most denied calls, or else with the most calls, as far as minutes are
    /// known.
    pub(super) evidence_at: PageTime,
}

/// The decisions of a policy over time.
#[derive(Debug, Deserialize)]
pub(super) struct PointListView {
    pub(super) now: i64,
    pub(super) apps: Vec<AppUsageView>,
    pub(super) points: Vec<PointView>,
}

/// An edit of a policy, which the plot marks.
#[derive(Clone, Debug)]
pub(super) struct PlotMark {
    pub(super) at: i64,
    pub(super) revision: i64,
    pub(super) href: String,
}

/// The plot of a policy over the last 24 hours, with a table for browsers without scripts.
#[derive(Debug)]
pub(super) struct PlotView {
    /// The route of the points.
    pub(super) source: String,
    /// The page that explains a minute, without the time.
    pub(super) explain: String,
    /// The marks as JSON.
    pub(super) marks: String,
    pub(super) hours: i64,
    /// The length of a point: `minute` or `hour`.
    pub(super) span: &'static str,
    /// The counts by hour, the newest first.
    pub(super) rows: Vec<HourView>,
    pub(super) total: CountsView,
    /// The decisions of library processes, which the other numbers include.
    pub(super) apps: Vec<AppUsageView>,
}

impl PlotView {
    /// Reads the counts of a policy.
    pub(super) async fn read(
        caller: &PageCaller,
        environment: &str,
        policy: &str,
        marks: &[PlotMark],
        hours: i64,
    ) -> Result<Self, PageFailure> {
        let route = links::api(environment, &["policies", policy, "usage"]);
        let span = match hours <= MAX_MINUTE_HOURS {
            true => "minute",
            false => "hour",
        };
        let from = now_micros() - hours * HOUR;
        let range = format!("{route}?from={from}&span={span}");
        let usage: PointListView = caller.api.get(&range).await?;
        let marks: Vec<serde_json::Value> = marks
            .iter()
            .map(|mark| serde_json::json!({ "at": mark.at, "revision": mark.revision, "href": mark.href }))
            .collect();
        let explain = links::page(environment, &["explain"]);
        let (rows, total) = by_hour(&usage, hours);
        Ok(Self {
            source: format!("/admin/v1{route}"),
            explain: format!("{explain}?policy={}", links::encode(policy)),
            marks: serde_json::Value::Array(marks).to_string(),
            hours,
            span,
            rows,
            total,
            apps: usage.apps,
        })
    }
}

/// The counts by hour, the newest first, and their sum.
fn by_hour(usage: &PointListView, hours: i64) -> (Vec<HourView>, CountsView) {
    let newest = usage.now - usage.now.rem_euclid(HOUR);
    let mut rows: Vec<HourView> = Vec::new();
    let mut total = CountsView::default();
    let first = usage.points.first().map_or(newest, |point| point.at.0);
    for ago in 0..hours {
        let start = newest - ago * HOUR;
        // Hours before the first decision are not known.
        if start + HOUR <= first {
            break;
        }
        let mut counts = CountsView::default();
        let mut evidence = (start, (0, 0, 0));
        let of_hour = |point: &&PointView| (start..start + HOUR).contains(&point.at.0);
        for point in usage.points.iter().filter(of_hour) {
            counts.add(point.counts);
            let weight = (point.counts.denied, point.counts.would_deny, point.counts.calls());
            if weight > evidence.1 {
                evidence = (point.at.0, weight);
            }
        }
        total.add(counts);
        rows.push(HourView {
            at: PageTime(start),
            counts,
            evidence_at: PageTime(evidence.0),
        });
    }
    (rows, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_before_the_first_decision_are_absent() {
        let point = |at, denied| PointView {
            at: PageTime(at),
            counts: CountsView {
                denied,
                ..CountsView::default()
            },
        };
        let usage = PointListView {
            now: 10 * HOUR + 5,
            apps: Vec::new(),
            points: vec![
                point(8 * HOUR + 1, 2),
                point(8 * HOUR + 60_000_000, 1),
                point(10 * HOUR, 4),
            ],
        };
        let (rows, total) = by_hour(&usage, HOURS);
        let shown: Vec<(i64, i64)> = rows
            .iter()
            .map(|row| (row.at.0 / HOUR, row.counts.denied))
            .collect();
        assert_eq!(shown, [(10, 4), (9, 0), (8, 3)]);
        let evidence: Vec<i64> = rows.iter().map(|row| row.evidence_at.0).collect();
        assert_eq!(evidence, [10 * HOUR, 9 * HOUR, 8 * HOUR + 1]);
        assert_eq!((total.denied, total.denied_share().as_str()), (7, "100.0 %"));
        assert_eq!(CountsView::default().denied_share(), "not known");
    }
}
