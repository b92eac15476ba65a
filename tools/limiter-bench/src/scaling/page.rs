//! The figures as tables.

use std::fmt::Write as _;

use super::Curve;
use crate::machine::Machine;

const HOW: &str = "\
Each point is the median of the turns of `ours` with its default settings: token buckets, 10,000 keys and 64 callers in a
closed loop, unless the row states otherwise. Points of 1,000,000 keys and more are one turn. The calls of the open loop
arrive in groups of one millisecond, each is a new task, and their latency begins with the arrival. Its capacity is the rate
of decisions while calls arrive at the rate of 512 callers of a closed loop. Clients and servers share the processors of one
machine, so rates stop growing where these are busy. Clusters have 32 callers per node. The keys of the rows over keys refill
one permit in 1,000 s, so each charge sets their time to live.

The exponent e is that of the power law figure ~ quantity^e, by least squares. A figure that should not depend on the
quantity has an exponent near 0.
";

pub(super) fn page(machine: &Machine, curves: &[Curve]) -> String {
    format!(
        "# Scaling\n\nWritten by `cargo xtask bench --scaling`.\n\nMeasured on: {}.\n\n{HOW}\n\
         ![Curves of the figures below](scaling.svg)\n\n{}",
        machine.describe(),
        table(curves)
    )
}

pub(super) fn table(curves: &[Curve]) -> String {
    let mut table =
        String::from("| figure | over | points | exponent | expected |\n|---|---|---|---:|---|\n");
    for curve in curves {
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|(x, y)| format!("{}: {}", quantity(*x), figure(*y)))
            .collect();
        let _ = writeln!(
            table,
            "| {} | {} | {} | {:.2} | {} |",
            curve.figure,
            curve.quantity,
            points.join(", "),
            curve.exponent(),
            if curve.is_flat { "flat" } else { "–" },
        );
    }
    table
}

/// Returns a quantity in at most four characters.
pub(super) fn quantity(x: f64) -> String {
    match x {
        x if x >= 1e6 => format!("{:.0}M", x / 1e6),
        x if x >= 1e3 => format!("{:.0}k", x / 1e3),
        x => format!("{x:.0}"),
    }
}

/// Returns a figure with three digits.
pub(super) fn figure(y: f64) -> String {
    match y {
        y if y >= 100.0 => format!("{y:.0}"),
        y if y >= 10.0 => format!("{y:.1}"),
        y => format!("{y:.2}"),
    }
}
