//! Counts over time in a bounded number of equal intervals.
//!
//! Intervals are one second long at first. When a time lies beyond the last one, neighbours are
//! added up into longer intervals. Each length is a multiple of the length before. Tests: below.

use serde::Serialize;

/// The largest number of intervals.
pub(super) const MAX_BINS: usize = 180;
/// The lengths in seconds; each divides the next one.
const LENGTHS: [u64; 14] = [
    1, 5, 15, 30, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800,
];
const MICROS: u64 = 1_000_000;

/// The calls of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IntervalCounts {
    /// The number of admitted calls.
    pub admitted: u64,
    /// The number of denied calls.
    pub denied: u64,
}

/// Counts over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Series {
    /// The start of the first interval, in seconds since 1970.
    pub start: u64,
    /// The length of an interval in seconds.
    pub interval: u64,
    /// The counts of each interval.
    pub counts: Vec<IntervalCounts>,
}

impl Series {
    /// Counts a call. Times do not step back.
    pub(super) fn record(&mut self, micros: u64, denied: bool) {
        let second = micros / MICROS;
        if self.counts.is_empty() {
            (self.start, self.interval) = (second, 1);
        }
        let mut bin = self.bin(second);
        while bin >= MAX_BINS {
            self.lengthen();
            bin = self.bin(second);
        }
        if bin >= self.counts.len() {
            self.counts.resize(bin + 1, IntervalCounts::default());
        }
        if let Some(counts) = self.counts.get_mut(bin) {
            counts.admitted += u64::from(!denied);
            counts.denied += u64::from(denied);
        }
    }

    fn bin(&self, second: u64) -> usize {
        let bin = second.saturating_sub(self.start) / self.interval;
        usize::try_from(bin).unwrap_or(usize::MAX)
    }

    fn lengthen(&mut self) {
        let longer = LENGTHS.iter().copied().find(|length| *length > self.interval);
        let longer = longer.unwrap_or(self.interval * 2);
        let start = self.start - self.start % longer;
        let mut counts: Vec<IntervalCounts> = Vec::new();
        let mut second = self.start;
        for of in &self.counts {
            let bin = usize::try_from((second - start) / longer).unwrap_or(usize::MAX);
            if bin >= counts.len() {
                counts.resize(bin + 1, IntervalCounts::default());
            }
            if let Some(sum) = counts.get_mut(bin) {
                sum.admitted += of.admitted;
                sum.denied += of.denied;
            }
            second += self.interval;
        }
        (self.start, self.interval, self.counts) = (start, longer, counts);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::replay::series::{MAX_BINS, MICROS, Series};

    proptest! {
        #[test]
        fn all_calls_are_counted_in_their_interval(
            steps in proptest::collection::vec((0..100_u32).prop_map(|n| u64::from(n).pow(4)), 1..300),
        ) {
            let mut series = Series::default();
            let mut second = 1_700_000_000;
            let mut seconds = Vec::new();
            for step in steps {
                second += step / 100;
                seconds.push(second);
                series.record(second * MICROS + step % MICROS, step % 3 == 0);
            }
            prop_assert!(series.counts.len() <= MAX_BINS);
            let all: u64 = series.counts.iter().map(|counts| counts.admitted + counts.denied).sum();
            prop_assert_eq!(all, seconds.len() as u64);
            for (bin, counts) in series.counts.iter().enumerate() {
                let from = series.start + bin as u64 * series.interval;
                let inside = seconds.iter().filter(|at| (from..from + series.interval).contains(*at));
                prop_assert_eq!(inside.count() as u64, counts.admitted + counts.denied);
            }
        }
    }
}
