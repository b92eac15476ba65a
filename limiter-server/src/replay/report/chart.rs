//! Charts as SVG: calls over time, and the capacities of a suggestion.
//!
//! A chart is part of the HTML report, where the labels are HTML and keep their size, or an image
//! of its own with the labels in it. Tests: `tests/replay/guide.rs`.

use std::fmt::Write as _;

use crate::replay::report::palette::palette;
use crate::replay::report::{PolicyReport, Series};
use crate::replay::suggest::Suggestion;
use crate::replay::text::{grouped, ratio, span, time};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 160.0;
/// The space around an image of its own, for labels.
const MARGIN: f64 = 28.0;
/// The style of an image of its own, after the colours.
const STYLE: &str = "svg{background:var(--bg)}text{font-family:system-ui,sans-serif;\
font-size:var(--size-small);fill:var(--muted)}";

/// A chart without its frame.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    /// The content in words.
    pub(super) title: String,
    shapes: String,
    /// The labels of the upper and lower end of the vertical axis.
    pub(super) vertical: [String; 2],
    /// The labels of the left and right end of the horizontal axis.
    pub(super) horizontal: [String; 2],
}

impl Chart {
    /// Returns the calls of a policy over time, the denied ones below.
    pub(super) fn over_time(policy: &PolicyReport) -> Self {
        let series = &policy.over_time;
        let calls = series.counts.iter().map(|counts| counts.admitted + counts.denied);
        let most = calls.max().unwrap_or(0);
        let (mut all, mut denied) = (String::new(), String::new());
        let width = WIDTH / as_float(series.counts.len().max(1) as u64);
        for (number, counts) in series.counts.iter().enumerate() {
            let left = width * as_float(number as u64);
            bar(
                &mut all,
                left,
                width,
                ratio(counts.admitted + counts.denied, most),
            );
            bar(&mut denied, left, width, ratio(counts.denied, most));
        }
        let shapes = format!(
            "<path fill=\"var(--muted)\" fill-opacity=\".5\" d=\"{all}\"/>\
             <path fill=\"var(--bad)\" d=\"{denied}\"/>\
             <path stroke=\"var(--line)\" fill=\"none\" d=\"M0 {HEIGHT}H{WIDTH}\"/>"
        );
        let interval = span(std::time::Duration::from_secs(series.interval));
        let (calls, of_denied) = (grouped(policy.admitted + policy.denied), grouped(policy.denied));
        Self {
            title: format!(
                "{}: {calls} calls in intervals of {interval}, {of_denied} of them denied",
                policy.name
            ),
            shapes,
            vertical: [grouped(most), "0".to_owned()],
            horizontal: [time(series.start * 1_000_000), time(end(series) * 1_000_000)],
        }
    }

    /// Returns the smallest capacity of each rate, both on a logarithmic scale; `None` for less
    /// than two rates.
    pub(super) fn capacities(suggestion: &Suggestion) -> Option<Self> {
        let buckets = &suggestion.buckets;
        let (first, last) = (buckets.first()?, buckets.last()?);
        let (low, high) = (first.rate.per_second().ln(), last.rate.per_second().ln());
        let most = buckets.iter().map(|bucket| bucket.capacity).max()?;
        let least = buckets.iter().map(|bucket| bucket.capacity).min()?;
        if high <= low {
            return None;
        }
        let (bottom, top) = (as_float(least).ln(), as_float(most.max(least + 1)).ln());
        // Points stay inside the frame.
        let (inner, edge) = (HEIGHT - 16.0, 8.0);
        let place = |rate: f64, capacity: f64| {
            let across = (rate.ln() - low) / (high - low) * (WIDTH - 16.0) + edge;
            (
                across,
                edge + inner - (capacity.ln() - bottom) / (top - bottom) * inner,
            )
        };
        let points = buckets
            .iter()
            .map(|bucket| place(bucket.rate.per_second(), as_float(bucket.capacity)));
        let (mut line, mut dots) = (String::new(), String::new());
        for (number, (x, y)) in points.enumerate() {
            let command = if number == 0 { 'M' } else { 'L' };
            let _ = write!(line, "{command}{x:.1} {y:.1}");
            let is_recommended = suggestion.recommended == Some(number);
            let (radius, colour) = if is_recommended {
                (7, "accent")
            } else {
                (3, "muted")
            };
            let _ = write!(
                dots,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"var(--{colour})\"/>"
            );
        }
        let shapes = format!(
            "<path stroke=\"var(--line)\" fill=\"none\" d=\"M0 0V{HEIGHT}H{WIDTH}\"/>\
             <path stroke=\"var(--muted)\" stroke-width=\"2\" fill=\"none\" d=\"{line}\"/>{dots}"
        );
        let recommended = suggestion.recommendation().map_or_else(String::new, |bucket| {
            format!("; recommended: {} at {}", grouped(bucket.capacity), bucket.rate)
        });
        Some(Self {
            title: format!(
                "smallest capacity of each rate with {}{recommended}",
                suggestion.target
            ),
            shapes,
            vertical: [grouped(most), grouped(least)],
            horizontal: [first.rate.to_string(), last.rate.to_string()],
        })
    }

    /// Returns the chart for a page. Its labels are outside of the image.
    pub(super) fn inline(&self, stretch: bool) -> String {
        let aspect = if stretch {
            " preserveAspectRatio=\"none\""
        } else {
            ""
        };
        let (title, shapes) = (escaped(&self.title), &self.shapes);
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\"{aspect} role=\"img\" aria-label=\"{title}\">{shapes}</svg>"
        )
    }

    /// Returns the chart as an image with its labels.
    pub(super) fn image(&self) -> String {
        let (width, height) = (WIDTH + 2.0 * MARGIN, HEIGHT + 3.0 * MARGIN);
        let right = WIDTH + MARGIN;
        let [top, bottom] = self.vertical.each_ref().map(|label| escaped(label));
        let [start, end] = self.horizontal.each_ref().map(|label| escaped(label));
        let below = HEIGHT + MARGIN * 2.6;
        let (title, shapes) = (escaped(&self.title), &self.shapes);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{title}\"><style>{colours}{STYLE}</style>\
             <text x=\"{MARGIN}\" y=\"20\">{title}</text>\
             <g transform=\"translate({MARGIN} {offset})\">{shapes}</g>\
             <text x=\"{MARGIN}\" y=\"{below:.0}\">{start}</text>\
             <text x=\"{right}\" y=\"{below:.0}\" text-anchor=\"end\">{end}</text>\
             <text x=\"{right}\" y=\"{upper}\" text-anchor=\"end\">{bottom} to {top}</text></svg>\n",
            colours = palette(),
            offset = MARGIN * 1.75,
            upper = 42,
        )
    }
}

/// Returns the end of the last interval, in seconds since 1970.
fn end(series: &Series) -> u64 {
    series.start + series.interval * series.counts.len() as u64
}

fn bar(path: &mut String, left: f64, width: f64, share: f64) {
    if share > 0.0 {
        // A bar of a few calls is still visible.
        let height = (share * HEIGHT).max(1.0);
        let _ = write!(path, "M{left:.1} {HEIGHT}v-{height:.1}h{width:.1}v{height:.1}z");
    }
}

#[expect(clippy::cast_precision_loss, reason = "a place in a chart")]
fn as_float(number: u64) -> f64 {
    number as f64
}

/// Returns text for HTML and SVG, in elements and in quoted attributes.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Control characters are not allowed in SVG.
            control if control.is_control() => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}
