//! Clock of decisions in process: a reading of the processor's time stamp counter takes 9 ns
//! instead of the 29 ns of the system clock (`local-1`: a check of one key in 110 ns instead of
//! 138).
//!
//! The counter replaces the system clock between two readings of that clock. A manual clock is read
//! directly.
//!
//! Each thread measures the rate of the counter and uses it for a millisecond, only if two
//! consecutive measurements agree to a thousandth. A reading is therefore wrong by at most two
//! microseconds, a steered system clock is followed, and a counter that steps, because the machine
//! was suspended or moved, is not used. The kernel accepts only processors with a constant counter
//! rate. On any other, readings are wrong for up to a millisecond. A clock correction above a
//! thousandth is followed after 0.1 ms.
//!
//! Of the 29 ns, the system call takes 23, at 2.5 GHz. Crates that calibrate the counter once, such
//! as `quanta`, take 0.2 s for it and never compare again. Tests: below.

use std::cell::Cell;
use std::fs;
use std::sync::LazyLock;

use crate::support::clock::{Clock, System};
use crate::units::Timestamp;

/// Times are counted in parts, 2^12 per microsecond, which fit until the year 2112.
const PART_BITS: u32 = 12;
/// The rate is counted in parts per tick, with 32 fractional bits.
const RATE_BITS: u32 = 32;
/// One millisecond in parts.
const SPAN: u64 = 1_000 << PART_BITS;

const HAS_COUNTER: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

/// True if the kernel itself uses the counter as clock source: it has then verified that the
/// counter ticks evenly in all sleep states and equally on all processors.
static IS_STEADY: LazyLock<bool> = LazyLock::new(|| {
    if !HAS_COUNTER {
        return false;
    }
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|source| source.trim() == "tsc")
});

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor::UNKNOWN) };
}

impl Clock {
    /// Returns the time in a third of the time of [`now`](Self::now), if the processor has a
    /// suitable counter: exact to two microseconds, by which threads may also disagree. Readings of
    /// one thread are out of order only while the system corrects its clock. Callers that need
    /// ordered readings use [`in_order`](Self::in_order).
    #[inline]
    pub(crate) fn reading(&self) -> Timestamp {
        match self {
            Self::System => {
                let anchor = ANCHOR.get();
                // The counter is not read where it is unusable: a machine may be configured to trap
                // that.
                let counted = if anchor.valid_ticks == 0 {
                    None
                } else {
                    anchor.parts(ticks())
                };
                Timestamp(counted.unwrap_or_else(calibrate) >> PART_BITS)
            }
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Returns the time of a decision that follows one at `last`, from a reading made before `last`
    /// was known. The system clock never steps back, so the later of the two is equivalent to
    /// another reading; a manual clock may have been set back.
    #[inline]
    pub(crate) fn in_order(&self, before: Timestamp, last: Timestamp) -> Timestamp {
        match self {
            Self::System => before.max(last),
            Self::Manual(clock) => clock.now(),
        }
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[inline]
fn ticks() -> u64 {
    safe_arch::read_timestamp_counter()
}

/// Other platforms do not read the counter: see [`IS_STEADY`].
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn ticks() -> u64 {
    0
}

/// Returns the time of the system clock, in parts, and calibrates the counter with it.
#[cold]
fn calibrate() -> u64 {
    if !*IS_STEADY {
        return to_parts(System::get());
    }
    let before = ticks();
    let clock = to_parts(System::get());
    let after = ticks();
    let anchor = ANCHOR.get();
    ANCHOR.set(anchor.next(before, clock, after));
    clock.max(anchor.last_returned(clock))
}

fn to_parts(system: System) -> u64 {
    let (start, elapsed) = (system.start.as_micros(), system.elapsed);
    let micros = start.saturating_add(elapsed.as_secs().saturating_mul(1_000_000));
    let nanos = u64::from(elapsed.subsec_nanos());
    // A nanosecond is 4.096 parts.
    micros
        .saturating_mul(1 << PART_BITS)
        .saturating_add(nanos * 512 / 125)
}

/// The last comparison of the counter with the clock in a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    ticks: u64,
    /// Time of the comparison, in parts.
    at: u64,
    /// Parts per tick; 0 if unknown.
    rate: u64,
    /// Number of ticks for which the rate is used: one millisecond, or 0.
    valid_ticks: u64,
    /// The latest time returned so far, if the previous rate was slightly too high.
    min: u64,
}

impl Anchor {
    const UNKNOWN: Self = Self {
        ticks: 0,
        at: 0,
        rate: 0,
        valid_ticks: 0,
        min: 0,
    };

    /// Returns the time at this counter value, if the anchor covers it.
    #[inline]
    fn parts(&self, ticks: u64) -> Option<u64> {
        let since = ticks.wrapping_sub(self.ticks);
        // The product is at most 2^54.
        (since < self.valid_ticks).then(|| self.min.max(self.at + ((since * self.rate) >> RATE_BITS)))
    }

    /// Returns the latest time that can have been returned, unless it is so far from the clock that
    /// the counter must have stepped.
    fn last_returned(&self, clock: u64) -> u64 {
        let last = self.at + ((self.valid_ticks * self.rate) >> RATE_BITS);
        let counted = last.max(self.min);
        if counted.saturating_sub(clock) > SPAN >> 9 {
            0
        } else {
            counted
        }
    }

    /// Returns the anchor after a reading of the clock between two readings of the counter.
    fn next(self, before: u64, clock: u64, after: u64) -> Self {
        let (ticks, time) = (after.wrapping_sub(self.ticks), clock.saturating_sub(self.at));
        let reading_ticks = after.wrapping_sub(before);
        let calibrated = Self {
            ticks: after,
            at: clock,
            min: self.last_returned(clock),
            ..self
        };
        // During a long pause the machine may have been suspended, so the pause is not measured.
        let after_pause = time > 4 * SPAN || ticks == 0;
        if after_pause && (self.valid_ticks == 0 || reading_ticks <= self.valid_ticks >> 12) {
            return calibrated;
        }
        // It is too early to measure, or the thread was interrupted between the readings for more
        // than a quarter of the allowed difference of two rates.
        if after_pause || time < SPAN || reading_ticks > ticks >> 12 {
            return self;
        }
        let rate = (time << RATE_BITS) / ticks;
        let is_confirmed = rate > 0 && rate.abs_diff(self.rate) <= rate >> 10;
        let valid_ticks = if is_confirmed {
            (SPAN << RATE_BITS) / rate
        } else {
            0
        };
        Self {
            rate,
            valid_ticks,
            ..calibrated
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::support::clock::tsc::*;

    /// A counter that ticks 25 times in ten nanoseconds, the time unit of the simulation, and a
    /// thread that reads it.
    struct Machine {
        anchor: Anchor,
        ticks: u64,
        nanos: u64,
        /// Ticks per ten nanoseconds.
        rate: u64,
        reads: u64,
    }

    impl Machine {
        fn steady() -> Self {
            let mut machine = Self {
                anchor: Anchor::UNKNOWN,
                ticks: 1 << 60,
                nanos: 1_700_000_000_000_000_000,
                rate: 25,
                reads: 0,
            };
            for _ in 0..100_000 {
                machine.pass(50);
                machine.read();
            }
            assert!(machine.anchor.valid_ticks > 0);
            machine.reads = 0;
            machine
        }

        fn pass(&mut self, nanos: u64) {
            self.nanos += nanos;
            self.ticks = self.ticks.wrapping_add(nanos * self.rate / 10);
        }

        /// Reads the time and returns its error in nanoseconds.
        fn read(&mut self) -> u64 {
            self.read_interrupted(0)
        }

        fn read_interrupted(&mut self, nanos: u64) -> u64 {
            let parts = self.anchor.parts(self.ticks).unwrap_or_else(|| {
                self.reads += 1;
                let before = self.ticks;
                self.pass(20 + nanos / 2);
                let clock = self.parts();
                self.pass(20 + nanos / 2);
                let counted = self.anchor.last_returned(clock);
                self.anchor = self.anchor.next(before, clock, self.ticks);
                clock.max(counted)
            });
            parts.abs_diff(self.parts()) * 125 / 512
        }

        fn parts(&self) -> u64 {
            u64::try_from(u128::from(self.nanos) * 512 / 125).unwrap()
        }
    }

    #[test]
    fn steady_counter_follows_clock_with_rare_comparisons() {
        let mut machine = Machine::steady();
        let mut last = 0;
        for passed in (0..2_000_000).map(|step| 20 + step % 9 * 10) {
            machine.pass(passed);
            assert!(machine.read() < 1_000);
            let counted = machine.anchor.parts(machine.ticks).unwrap_or_default();
            assert!(counted == 0 || counted >= last);
            last = last.max(counted);
        }
        assert!(machine.reads < 200, "{} reads in 128 ms", machine.reads);
    }

    #[test]
    fn stepped_counter_is_not_used() {
        for step in [
            1_000_000_000,
            1 << 50,
            0_u64.wrapping_sub(1 << 50),
            0_u64.wrapping_sub(10_000_000),
        ] {
            let mut machine = Machine::steady();
            machine.ticks = machine.ticks.wrapping_add(step);
            for _ in 0..100_000 {
                machine.pass(50);
                assert!(machine.read() < 2_000, "{step}");
            }
            assert!(machine.anchor.valid_ticks > 0, "the counter is used again");
        }
    }

    #[test]
    fn changed_rate_is_corrected_within_a_millisecond() {
        for rate in [1, 20, 24, 26, 30, 100] {
            let mut machine = Machine::steady();
            machine.rate = rate;
            let mut wrong_for = 0;
            for _ in 0..10_000_000 / 50 {
                machine.pass(50);
                let wrong = machine.read();
                wrong_for += if wrong > 2_000 { 50 } else { 0 };
            }
            // In ticks of its own rate.
            assert!(wrong_for <= 1_000_000 * 25 / rate, "{rate}: {wrong_for} ns");
            assert_eq!(machine.anchor.valid_ticks > 0, wrong_for < 5_000_000);
        }
    }

    #[test]
    fn interrupted_measurement_is_discarded() {
        let mut machine = Machine::steady();
        for turn in 0..100_000 {
            machine.pass(50);
            let interrupted = if turn % 3 == 0 { 40_000 } else { 0 };
            let late = machine.read_interrupted(interrupted);
            // A reading during an interruption is late, not wrong.
            assert!(late < interrupted + 2_000, "{late}");
        }
    }

    #[test]
    fn pause_is_not_measured_and_rate_remains_valid() {
        let mut machine = Machine::steady();
        // Suspended: the counter continues, the clock does not.
        machine.ticks += 1 << 45;
        machine.pass(5_000_000);
        assert!(machine.read() < 1_000);
        assert_eq!(machine.reads, 1);
        for _ in 0..10_000 {
            machine.pass(50);
            assert!(machine.read() < 1_000);
        }
        assert_eq!(machine.reads, 1);
    }

    #[test]
    fn counter_follows_clock_of_this_machine() {
        let micros = || System::get().timestamp().as_micros();
        let (until, mut last) = (micros() + 20_000, Timestamp::default());
        loop {
            let (before, now, after) = (micros(), Clock::System.reading(), micros());
            assert!(now.as_micros() + 3 >= before && now.as_micros() <= after + 3);
            assert!(last <= now);
            last = now;
            if after > until {
                break;
            }
        }
        assert_eq!(ANCHOR.get().valid_ticks > 0, *IS_STEADY);
    }
}
