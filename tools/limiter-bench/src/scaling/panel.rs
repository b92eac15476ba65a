//! Curves, drawn as SVG by hand: a plot of some kilobytes needs no library.

use std::fmt::Write as _;

use super::Curve;
use super::page::{figure, quantity};

const COLUMNS: usize = 2;
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 190.0;
/// The area of the curve in its panel.
const LEFT: f64 = 30.0;
const RIGHT: f64 = 350.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 160.0;

/// Returns one picture with a panel for each curve.
pub(super) fn all(curves: &[Curve]) -> String {
    let rows = curves.len().div_ceil(COLUMNS);
    let mut panels = String::new();
    for (place, curve) in curves.iter().enumerate() {
        let (x, y) = (
            (place % COLUMNS) as f64 * WIDTH,
            (place / COLUMNS) as f64 * HEIGHT,
        );
        let _ = writeln!(
            panels,
            "<g transform=\"translate({x:.0} {y:.0})\">{}</g>",
            panel(curve)
        );
    }
    let (width, height) = (WIDTH * COLUMNS as f64, HEIGHT * rows as f64);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{panels}</svg>\n"
    )
}

/// Quantities are equally spaced; figures begin at 0.
fn panel(curve: &Curve) -> String {
    let highest = curve
        .points
        .iter()
        .map(|(_, y)| *y)
        .fold(f64::MIN_POSITIVE, f64::max);
    let step = (RIGHT - LEFT) / (curve.points.len().max(2) - 1) as f64;
    let place =
        |(at, (_, y)): (usize, &(f64, f64))| (LEFT + step * at as f64, BOTTOM - y / highest * (BOTTOM - TOP));
    let mut drawn = format!(
        "<text x=\"8\" y=\"18\" font-size=\"13\">{}, over {}</text>\
         <line x1=\"{LEFT}\" y1=\"{BOTTOM}\" x2=\"{RIGHT}\" y2=\"{BOTTOM}\" stroke=\"#94a3b8\"/>\n",
        curve.figure, curve.quantity
    );
    let line: Vec<String> = curve
        .points
        .iter()
        .enumerate()
        .map(place)
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = writeln!(
        drawn,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#c2410c\" stroke-width=\"1.5\"/>",
        line.join(" ")
    );
    for point in curve.points.iter().enumerate() {
        let (x, y) = place(point);
        let (quantity, figure) = (quantity(point.1.0), figure(point.1.1));
        let _ = writeln!(
            drawn,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"#c2410c\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{figure}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#475569\">{quantity}</text>",
            y - 7.0,
            BOTTOM + 15.0,
        );
    }
    drawn
}
