//! The waits of calls: the time after which a denied call would be admitted, and the delays of
//! paced calls.

use std::time::Duration;

use serde::Serialize;

/// The upper ends of the ranges in seconds; the last range has none.
const ENDS: [u64; 5] = [1, 10, 60, 600, 3_600];

/// The number of waits in each range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// The waits below 1 s, 10 s, 1 min, 10 min, 1 h, and from 1 h.
    pub ranges: [u64; ENDS.len() + 1],
    /// The longest wait.
    #[serde(
        rename = "longest_seconds",
        serialize_with = "crate::replay::text::serialize_seconds"
    )]
    pub longest: Duration,
    /// The denied calls that no wait admits: those of a denied key, and those above the capacity.
    pub never: u64,
}

impl Waits {
    /// The names of the ranges.
    pub const RANGES: [&str; ENDS.len() + 1] =
        ["< 1 s", "1–10 s", "10–60 s", "1–10 min", "10–60 min", "≥ 1 h"];

    pub(super) fn record(&mut self, wait: Duration) {
        let range = ENDS
            .iter()
            .take_while(|end| wait >= Duration::from_secs(**end))
            .count();
        if let Some(count) = self.ranges.get_mut(range) {
            *count += 1;
        }
        self.longest = self.longest.max(wait);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::replay::waits::Waits;

    #[test]
    fn waits_are_counted_in_ranges() {
        let mut waits = Waits::default();
        for millis in [0, 999, 1_000, 59_999, 60_000, 3_600_000] {
            waits.record(Duration::from_millis(millis));
        }
        assert_eq!(waits.ranges, [2, 1, 1, 1, 0, 1]);
        assert_eq!(waits.longest, Duration::from_secs(3_600));
    }
}
