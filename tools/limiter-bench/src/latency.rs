//! Latencies, counted in buckets of three percent.

use std::time::Duration;

/// Buckets for each doubling.
const FINE: usize = 32;
const FINE_BITS: u32 = FINE.trailing_zeros();

/// Durations, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(vec![0; bucket(u64::MAX) + 1])
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0[bucket(nanos)] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
    }

    /// Returns the duration which this part of the calls did not exceed, in microseconds.
    pub(crate) fn quantile_us(&self, part: f64) -> f64 {
        let wanted = (self.0.iter().sum::<u64>() as f64 * part).ceil() as u64;
        let mut seen = 0;
        let reached = self.0.iter().position(|count| {
            seen += count;
            seen >= wanted.max(1)
        });
        reached.map_or(0.0, |bucket| middle(bucket) / 1_000.0)
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < FINE as u64 {
        return nanos as usize;
    }
    let doublings = nanos.ilog2() - FINE_BITS;
    let within = (nanos >> doublings) as usize - FINE;
    (doublings as usize + 1) * FINE + within
}

fn middle(bucket: usize) -> f64 {
    if bucket < FINE {
        return bucket as f64;
    }
    let width = 2_f64.powi((bucket / FINE - 1) as i32);
    ((FINE + bucket % FINE) as f64 + 0.5) * width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_accurate_to_two_percent() {
        for nanos in [1_u64, 31, 32, 33, 70, 999, 12_345, 1_000_000, 987_654_321] {
            let mut latencies = Latencies::new();
            latencies.record(Duration::from_nanos(nanos));
            let measured = latencies.quantile_us(0.5) * 1_000.0;
            assert!(
                (measured / nanos as f64 - 1.0).abs() < 0.02,
                "{nanos} became {measured}"
            );
        }
    }

    #[test]
    fn half_of_the_calls_lie_below_the_median() {
        let mut latencies = Latencies::new();
        (1..=1_000).for_each(|micros| latencies.record(Duration::from_micros(micros)));
        assert!((latencies.quantile_us(0.5) / 500.0 - 1.0).abs() < 0.04);
        assert!((latencies.quantile_us(0.99) / 990.0 - 1.0).abs() < 0.04);
    }
}
