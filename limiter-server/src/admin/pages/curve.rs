//! The burst curves of a preview, as points of an SVG.

use serde::Deserialize;

use crate::admin::numbers::grouped;

/// The size of the drawing in its own units.
const SIZE: (f64, f64) = (600.0, 160.0);

/// A point of a curve, from the API.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct CurvePoint {
    seconds: f64,
    admitted: f64,
}

/// Both curves of a change, from the API.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CurvesView {
    before: Vec<CurvePoint>,
    after: Vec<CurvePoint>,
}

/// The drawing.
#[derive(Debug)]
pub(super) struct CurveDrawing {
    /// Points of a polyline; empty without a previous policy.
    pub(super) before: String,
    pub(super) after: String,
    pub(super) largest: String,
    pub(super) length: String,
}

impl CurvesView {
    /// Returns the drawing; `None` if the curve of the new policy is not known.
    pub(super) fn drawing(&self) -> Option<CurveDrawing> {
        let end = self.after.last()?.seconds.max(f64::MIN_POSITIVE);
        let both = self.before.iter().chain(&self.after);
        let largest = both.map(|point| point.admitted).fold(1.0, f64::max);
        let points = |curve: &[CurvePoint]| {
            let mut text = String::new();
            for point in curve {
                let x = point.seconds / end * SIZE.0;
                let y = SIZE.1 - point.admitted / largest * SIZE.1;
                text.push_str(&format!("{x:.1},{y:.1} "));
            }
            text
        };
        Some(CurveDrawing {
            before: points(&self.before),
            after: points(&self.after),
            largest: grouped(format!("{largest:.0}")),
            length: match end {
                end if end >= 3_600.0 => format!("{} h", grouped(format!("{:.0}", end / 3_600.0))),
                end if end >= 60.0 => format!("{:.0} min", end / 60.0),
                end => format!("{end:.0} s"),
            },
        })
    }
}
