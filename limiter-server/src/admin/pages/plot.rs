//! The plot of a policy: its range, its points by hour, and its marks.
//!
//! API route below the namespace: `GET policies/{name}/usage`, by minute up to `MAX_MINUTE_HOURS`,
//! and by hour for older times whose minutes are removed. The script reads the route again; the
//! table by hour is for browsers without scripts. Tests: below, and `tests/browser/plots.rs`.

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::usage::{AppUsageView, CountsView, PointListView, PointView};
use crate::store::{UsageSpan, now_micros};

const HOUR: i64 = 3_600_000_000;
/// The hours of the plot, unless the URL states others.
pub(super) const HOURS: i64 = 24;
/// The ranges that the page of a policy offers: hours, name.
pub(super) const RANGES: [(i64, &str); 4] = [(1, "1 h"), (6, "6 h"), (24, "24 h"), (168, "7 d")];
/// Ranges up to this number of hours are shown by minute.
const MAX_MINUTE_HOURS: i64 = 24;

/// The decisions of an hour.
#[derive(Clone, Copy, Debug)]
pub(super) struct HourView {
    pub(super) at: PageTime,
    pub(super) counts: CountsView,
    /// The minute with the most denied calls, or else with the most calls, as far as minutes are
    /// known.
    pub(super) evidence_at: PageTime,
}

/// The time that a plot shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlotRange {
    pub(super) hours: i64,
    /// The end; `None` for a plot that ends now.
    end: Option<PageTime>,
}

impl PlotRange {
    /// Returns the last hours.
    pub(super) fn last(hours: i64) -> Self {
        Self { hours, end: None }
    }

    /// Returns the last hours if the time is in their second half, or else hours with the time in
    /// their middle.
    pub(super) fn around(at: i64, hours: i64, now: i64) -> Self {
        let end = at.saturating_add(hours * HOUR / 2);
        Self {
            hours,
            end: (end < now).then_some(PageTime(end)),
        }
    }

    /// Returns the start and the end. The first span is whole.
    fn ends(self, now: i64, span: UsageSpan) -> (i64, i64) {
        let end = self.end.map_or(now, |end| end.0);
        (span.start(end.saturating_sub(self.hours * HOUR)), end)
    }

    async fn read(
        self,
        caller: &PageCaller,
        route: &str,
        span: UsageSpan,
    ) -> Result<PointListView, PageFailure> {
        let (from, to) = self.ends(now_micros(), span);
        let name = span.name();
        caller
            .api
            .get(&match self.end {
                Some(_) => format!("{route}?from={from}&to={to}&span={name}"),
                None => format!("{route}?from={from}&span={name}"),
            })
            .await
    }
}

/// An edit of a policy, which the plot marks.
#[derive(Clone, Debug)]
pub(super) struct PlotMark {
    pub(super) at: i64,
    pub(super) revision: i64,
    pub(super) href: String,
}

/// The plot of a policy, with a table for browsers without scripts.
#[derive(Debug)]
pub(super) struct PlotView {
    /// The route of the points.
    pub(super) source: String,
    /// The page that explains a minute, without the time.
    pub(super) explain: String,
    /// The marks as JSON.
    pub(super) marks: String,
    pub(super) hours: i64,
    /// The end; `None` for a plot that ends now.
    pub(super) end: Option<PageTime>,
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
        range: PlotRange,
    ) -> Result<Self, PageFailure> {
        let route = links::api(environment, &["policies", policy, "usage"]);
        let mut span = match range.hours <= MAX_MINUTE_HOURS {
            true => UsageSpan::Minute,
            false => UsageSpan::Hour,
        };
        let mut usage = range.read(caller, &route, span).await?;
        // Minutes are kept for a shorter time than hours.
        if let Some(end) = range.end
            && usage
                .points
                .first()
                .is_none_or(|first| first.at > end.before(range.hours / 2))
        {
            span = UsageSpan::Hour;
            usage = range.read(caller, &route, span).await?;
        }
        let marks: Vec<serde_json::Value> = marks
            .iter()
            .map(|mark| serde_json::json!({ "at": mark.at, "revision": mark.revision, "href": mark.href }))
            .collect();
        let explain = links::page(environment, &["explain"]);
        Ok(Self {
            source: format!("/admin/v1{route}"),
            explain: format!("{explain}?policy={}", links::encode(policy)),
            marks: serde_json::Value::Array(marks).to_string(),
            hours: range.hours,
            end: range.end,
            span: span.name(),
            rows: by_hour(&usage.points, range.end.map_or(usage.now, |end| end.0)),
            total: sum(&usage.points),
            apps: usage.apps,
        })
    }

    /// Returns the times of the plot, such as `in the last 24 h`.
    pub(super) fn range_text(&self) -> String {
        let hours = self.hours;
        match self.end {
            Some(_) => format!("in {hours} h"),
            None => format!("in the last {hours} h"),
        }
    }

    /// Returns the start of a plot with an end.
    pub(super) fn start(&self) -> PageTime {
        self.end.unwrap_or_default().before(self.hours)
    }

    /// Returns the end in seconds, for the script.
    pub(super) fn end_seconds(&self) -> i64 {
        self.end.map_or(0, |end| end.0 / 1_000_000)
    }
}

impl PageTime {
    fn before(self, hours: i64) -> Self {
        Self(self.0.saturating_sub(hours * HOUR))
    }
}

fn sum(points: &[PointView]) -> CountsView {
    let mut total = CountsView::default();
    for point in points {
        total.add(point.counts);
    }
    total
}

/// Returns the counts by hour until a time, the newest first. Each point is in one row.
fn by_hour(points: &[PointView], end: i64) -> Vec<HourView> {
    let hour = |at: i64| UsageSpan::Hour.start(at);
    // The clock of another node can be ahead.
    let newest = points.last().map_or(end, |point| point.at.0.max(end));
    // Hours before the first decision are not known.
    let first = points.first().map_or(newest, |point| point.at.0.min(newest));
    let mut rows = Vec::new();
    let mut start = hour(newest);
    while start >= hour(first) {
        let of_hour = points.iter().filter(|point| hour(point.at.0) == start);
        let mut counts = CountsView::default();
        let mut evidence = (start, (0, 0, 0));
        for point in of_hour {
            counts.add(point.counts);
            let weight = (point.counts.denied, point.counts.would_deny, point.counts.calls());
            if weight > evidence.1 {
                evidence = (point.at.0, weight);
            }
        }
        rows.push(HourView {
            at: PageTime(start),
            counts,
            evidence_at: PageTime(evidence.0),
        });
        start -= HOUR;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000;

    fn point(at: i64, denied: i64) -> PointView {
        PointView {
            at: PageTime(at),
            counts: CountsView {
                denied,
                ..CountsView::default()
            },
        }
    }

    fn shown(rows: &[HourView]) -> Vec<(i64, i64)> {
        rows.iter()
            .map(|row| (row.at.0 / HOUR, row.counts.denied))
            .collect()
    }

    #[test]
    fn hours_before_the_first_decision_are_absent() {
        let points = [
            point(8 * HOUR + 1, 2),
            point(8 * HOUR + MINUTE, 1),
            point(10 * HOUR, 4),
        ];
        let rows = by_hour(&points, 10 * HOUR + 5);
        assert_eq!(shown(&rows), [(10, 4), (9, 0), (8, 3)]);
        let evidence: Vec<i64> = rows.iter().map(|row| row.evidence_at.0).collect();
        assert_eq!(evidence, [10 * HOUR, 9 * HOUR, 8 * HOUR + 1]);
        let total = sum(&points);
        assert_eq!((total.denied, total.denied_share().as_str()), (7, "100.0 %"));
        assert_eq!(shown(&by_hour(&[], 10 * HOUR + 5)), [(10, 0)]);
    }

    #[test]
    fn calls_of_the_oldest_partial_hour_are_counted() {
        let now = 10 * HOUR + 2 * MINUTE;
        let points = [point(9 * HOUR + 50 * MINUTE, 1)];
        assert_eq!(shown(&by_hour(&points, now)), [(10, 0), (9, 1)]);
        assert_eq!(sum(&points).denied, 1);
        // A node whose clock is ahead has counted.
        let points = [point(11 * HOUR, 2)];
        assert_eq!(shown(&by_hour(&points, now)), [(11, 2)]);
    }

    #[test]
    fn range_contains_the_whole_first_span() {
        let now = 100 * HOUR + 2 * MINUTE + 5;
        let last = PlotRange::last(1);
        assert_eq!(last.ends(now, UsageSpan::Minute), (99 * HOUR + 2 * MINUTE, now));
        assert_eq!(last.ends(now, UsageSpan::Hour).0, 99 * HOUR);
    }

    #[test]
    fn range_of_an_old_time_has_it_in_the_middle() {
        let now = 100 * HOUR;
        assert_eq!(PlotRange::around(now - 2 * HOUR, 24, now), PlotRange::last(24));
        let old = PlotRange::around(50 * HOUR, 24, now);
        assert_eq!(old.ends(now, UsageSpan::Minute), (38 * HOUR, 62 * HOUR));
    }
}
