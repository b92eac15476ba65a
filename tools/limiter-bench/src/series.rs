//! The turns of one contender under one workload, and figures over all of them.

use crate::contender::Contender;
use crate::sample::{Sample, median};
use crate::workload::Workload;

/// All turns of one contender under one workload, round by round.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) workload: &'static Workload,
    pub(crate) contender: Contender,
    pub(crate) turns: Vec<Sample>,
    /// The admissions of four processes that share one limit.
    pub(crate) shared: Option<Shared>,
}

/// The calls that several processes admitted together, and their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) admitted: u64,
    pub(crate) allowed: u64,
}

impl Series {
    pub(crate) fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(self.turns.iter().map(figure))
    }

    /// Returns the median of a figure that some machines or workloads lack.
    pub(crate) fn known(&self, figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let known: Vec<f64> = self.turns.iter().filter_map(figure).collect();
        (!known.is_empty()).then(|| median(known))
    }

    /// Returns the range of a figure over all turns, relative to its median.
    pub(crate) fn spread(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        let figures = || self.turns.iter().map(&figure);
        let range = figures().fold(f64::MIN, f64::max) - figures().fold(f64::MAX, f64::min);
        range / self.median(&figure)
    }

    /// Returns the median of the ratios within each round: a disturbance of a whole round has no
    /// effect.
    pub(crate) fn ratio(&self, other: &Self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(
            self.turns
                .iter()
                .zip(&other.turns)
                .map(|(own, others)| figure(own) / figure(others)),
        )
    }
}
