//! Bars, drawn as SVG by hand: a plot of some kilobytes needs no library.

use std::fmt::Write as _;

use crate::contender::Contender;
use crate::series::Series;
use crate::workload::Kind;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 300.0;
const BAR: f64 = 14.0;
const GAP: f64 = 10.0;
const TOP: f64 = 34.0;

/// Returns the plots with their names, without empty ones.
pub(super) fn all(series: &[Series]) -> Vec<(&'static str, String)> {
    let rate = |series: &Series| series.median(|sample| sample.decisions_per_second);
    let nanos = |series: &Series| 1e9 / rate(series);
    let remote = |series: &&Series| matches!(series.workload.kind, Kind::Remote(_));
    let plots = [
        (
            "redis.svg",
            "Thousand decisions a second, in Redis (more is better; each group of bars has its own scale)",
            bars(series.iter().filter(remote), |series| rate(series) / 1e3),
        ),
        (
            "in-process.svg",
            "Nanoseconds a decision, in process (less is better; each group of bars has its own scale)",
            bars(series.iter().filter(|series| !remote(series)), nanos),
        ),
    ];
    let drawn = plots.into_iter().filter(|(_, _, bars)| !bars.is_empty());
    drawn
        .map(|(name, title, bars)| (name, draw(title, &bars)))
        .collect()
}

struct Bar {
    workload: &'static str,
    contender: Contender,
    figure: f64,
}

fn bars<'a>(series: impl Iterator<Item = &'a Series>, figure: impl Fn(&Series) -> f64) -> Vec<Bar> {
    let bar = |series: &Series| Bar {
        workload: series.workload.name,
        contender: series.contender,
        figure: figure(series),
    };
    series.map(bar).collect()
}

fn draw(title: &str, bars: &[Bar]) -> String {
    let mut drawn = String::new();
    let (mut y, mut workload) = (TOP, "");
    for bar in bars {
        if bar.workload != workload {
            y += if workload.is_empty() { 0.0 } else { GAP };
            workload = bar.workload;
            let _ = writeln!(
                drawn,
                "<text x=\"8\" y=\"{:.0}\" font-weight=\"bold\">{workload}</text>",
                y + BAR - 3.0
            );
        }
        let of_workload = bars.iter().filter(|other| other.workload == workload);
        let longest = of_workload
            .map(|other| other.figure)
            .fold(f64::MIN_POSITIVE, f64::max);
        let length = bar.figure / longest * (WIDTH - LEFT - 80.0);
        let (name, colour, text) = (bar.contender.name(), colour(bar.contender), y + BAR - 3.0);
        let shown = if bar.figure < 10.0 {
            format!("{:.1}", bar.figure)
        } else {
            format!("{:.0}", bar.figure)
        };
        let _ = writeln!(
            drawn,
            "<text x=\"{:.0}\" y=\"{text:.0}\" text-anchor=\"end\">{name}</text>\
             <rect x=\"{LEFT:.0}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"{:.0}\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{text:.0}\">{shown}</text>",
            LEFT - 6.0,
            BAR - 2.0,
            LEFT + length + 5.0,
        );
        y += BAR;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH:.0}\" height=\"{0:.0}\" viewBox=\"0 0 {WIDTH:.0} {0:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"18\" font-size=\"13\">{title}</text>\n{drawn}</svg>\n",
        y + GAP,
    )
}

fn colour(contender: Contender) -> &'static str {
    match contender {
        Contender::Ours => "#c2410c",
        Contender::ByHand => "#fdba74",
        Contender::Incrby | Contender::Bare => "#475569",
        _ => "#94a3b8",
    }
}
