//! What turns yield, and what is told of several.

use std::time::Duration;

use crate::contender::Contender;
use crate::latency::Latencies;
use crate::workload::Workload;

/// One turn of one contender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) decisions_per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Processor time of the servers, where there are any.
    pub(crate) server_us: Option<f64>,
    /// Processor time of the threads that ask.
    pub(crate) client_us: Option<f64>,
}

impl Sample {
    pub(crate) fn new(decisions: u64, took: Duration, latencies: &Latencies) -> Self {
        Self {
            decisions_per_second: decisions as f64 / took.as_secs_f64(),
            p50_us: latencies.quantile_us(0.50),
            p99_us: latencies.quantile_us(0.99),
            server_us: None,
            client_us: None,
        }
    }
}

/// Microseconds a decision.
pub(crate) fn us_each(spent: Duration, decisions: u64) -> f64 {
    spent.as_secs_f64() * 1e6 / decisions.max(1) as f64
}

/// All turns of one contender under one workload, round by round.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) workload: &'static Workload,
    pub(crate) contender: Contender,
    pub(crate) turns: Vec<Sample>,
    /// How much four processes admitted of one limit, and how much they were allowed.
    pub(crate) shared: Option<Shared>,
}

/// What processes admitted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) admitted: u64,
    pub(crate) allowed: u64,
}

impl Series {
    pub(crate) fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(self.turns.iter().map(figure))
    }

    /// Of a figure that not every machine or workload has.
    pub(crate) fn known(&self, figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let known: Vec<f64> = self.turns.iter().filter_map(figure).collect();
        (!known.is_empty()).then(|| median(known))
    }

    /// How far apart the turns lie: the range of a figure, as a part of its median.
    pub(crate) fn spread(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        let figures = || self.turns.iter().map(&figure);
        let range = figures().fold(f64::MIN, f64::max) - figures().fold(f64::MAX, f64::min);
        range / self.median(&figure)
    }

    /// The median of the ratios within each round: what slows a whole round down does not matter.
    pub(crate) fn ratio(&self, other: &Self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(
            self.turns
                .iter()
                .zip(&other.turns)
                .map(|(own, others)| figure(own) / figure(others)),
        )
    }
}

/// 0 of nothing.
pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    match figures.len() {
        0 => 0.0,
        count if count % 2 == 1 => figures[count / 2],
        count => (figures[count / 2 - 1] + figures[count / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_stands_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
