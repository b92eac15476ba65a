//! The order of times within one file.
//!
//! Servers write lines when requests end, so a line can be a little late: it is decided at the time
//! of the line before it. If many consecutive lines are far behind, the clock of the server was set
//! back: the following times are shifted, so that time goes on from there. Both are counted. Tests:
//! below.

use std::time::Duration;

use serde::Serialize;

/// Lines behind by more than this may follow a clock that was set back.
const FAR: u64 = 60_000_000;
/// The number of consecutive lines far behind from which the clock counts as set back.
const CONSECUTIVE: u32 = 100;

/// The lines of a replay whose times step back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClockReport {
    /// The number of lines with an earlier time than a line before them.
    pub late_lines: u64,
    /// The longest time by which a line is late, in seconds.
    #[serde(serialize_with = "crate::replay::text::serialize_seconds")]
    pub longest_lag: Duration,
    /// The number of times that a clock was set back.
    pub clock_steps: u64,
    /// The sum of these steps, in seconds, by which later times of the file are shifted.
    #[serde(serialize_with = "crate::replay::text::serialize_seconds")]
    pub shifted_by: Duration,
}

impl ClockReport {
    /// Adds the counts of another file.
    pub(super) fn add(&mut self, other: &Self) {
        self.late_lines += other.late_lines;
        self.longest_lag = self.longest_lag.max(other.longest_lag);
        self.clock_steps += other.clock_steps;
        self.shifted_by += other.shifted_by;
    }
}

/// Makes the times of one file monotone.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    last: u64,
    shift: u64,
    far_behind: u32,
    report: ClockReport,
}

impl Timeline {
    /// Returns whether a line is so far ahead that the time of the next line has to confirm it.
    pub(super) fn is_far_ahead(&self, recorded: u64) -> bool {
        recorded.saturating_add(self.shift) > self.last.saturating_add(FAR)
    }

    /// Returns whether the next line shows that the time of a line far ahead is wrong: otherwise
    /// the lines after it would be decided at this time.
    pub(super) fn is_refuted(recorded: u64, next: u64) -> bool {
        next.saturating_add(FAR) < recorded
    }

    /// Returns the time at which a line is decided.
    pub(super) fn place(&mut self, recorded: u64) -> u64 {
        let shifted = recorded.saturating_add(self.shift);
        if shifted >= self.last {
            self.last = shifted;
            self.far_behind = 0;
            return shifted;
        }
        let lag = self.last - shifted;
        self.report.late_lines += 1;
        self.report.longest_lag = self.report.longest_lag.max(Duration::from_micros(lag));
        self.far_behind = if lag > FAR { self.far_behind + 1 } else { 0 };
        if self.far_behind >= CONSECUTIVE {
            self.far_behind = 0;
            self.shift += lag;
            self.report.clock_steps += 1;
            self.report.shifted_by += Duration::from_micros(lag);
        }
        self.last
    }

    pub(super) fn report(&self) -> &ClockReport {
        &self.report
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::replay::timeline::Timeline;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn late_line_is_decided_at_time_of_line_before() {
        let mut timeline = Timeline::default();
        let placed = [10, 12, 11, 12, 13].map(|at| timeline.place(at * SECOND) / SECOND);
        assert_eq!(placed, [10, 12, 12, 12, 13]);
        let report = timeline.report();
        assert_eq!(
            (report.late_lines, report.longest_lag),
            (1, Duration::from_secs(1))
        );
        assert_eq!(report.clock_steps, 0);
    }

    #[test]
    fn clock_set_back_shifts_later_lines() {
        let mut timeline = Timeline::default();
        timeline.place(10_000 * SECOND);
        for second in 0..99 {
            assert_eq!(timeline.place((6_400 + second) * SECOND), 10_000 * SECOND);
        }
        timeline.place(6_499 * SECOND);
        assert_eq!(timeline.place(6_500 * SECOND), 10_001 * SECOND);
        assert_eq!(timeline.place(6_600 * SECOND), 10_101 * SECOND);
        let report = timeline.report();
        assert_eq!((report.clock_steps, report.late_lines), (1, 100));
        assert_eq!(report.shifted_by, Duration::from_secs(3_501));
    }

    #[test]
    fn next_line_refutes_a_time_far_ahead() {
        let mut timeline = Timeline::default();
        timeline.place(1_000 * SECOND);
        assert!(!timeline.is_far_ahead(1_060 * SECOND));
        assert!(timeline.is_far_ahead(1_061 * SECOND));
        assert!(Timeline::is_refuted(5_000 * SECOND, 1_001 * SECOND));
        assert!(!Timeline::is_refuted(5_000 * SECOND, 4_940 * SECOND));
    }

    #[test]
    fn single_lines_far_behind_do_not_shift() {
        let mut timeline = Timeline::default();
        for second in 1_000..2_000 {
            assert_eq!(timeline.place(second * SECOND), second * SECOND);
            assert_eq!(timeline.place(SECOND), second * SECOND);
        }
        assert_eq!(timeline.report().clock_steps, 0);
        assert_eq!(timeline.report().late_lines, 1_000);
    }
}
