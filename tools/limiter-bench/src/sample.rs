//! The figures of one turn, and their median.

use std::time::Duration;

use crate::latency::Latencies;

/// One turn of one contender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) decisions_per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Processor time of the servers, if there are any.
    pub(crate) server_us: Option<f64>,
    /// Processor time of the calling threads.
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

/// Microseconds per decision.
pub(crate) fn us_each(spent: Duration, decisions: u64) -> f64 {
    spent.as_secs_f64() * 1e6 / decisions.max(1) as f64
}

/// Returns the median; 0 for no figures.
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
    fn median_is_the_middle_value() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
