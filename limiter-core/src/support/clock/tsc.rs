//! The processor's counter, read in place of the system's clock between two readings of that.
//!
//! What a thread measures of the counter's rate is believed for a millisecond, and only if it
//! measured the same, to a thousandth, the time before. So a reading is wrong by two microseconds
//! at most, a clock that the system steers is followed, and a counter that steps, with a machine
//! that is suspended or moved, is not believed. One that changes its rate, which the processors do
//! not that the kernel takes the time from, is wrong for a millisecond; a clock that the system
//! makes up for by more than a thousandth is followed a tenth of a millisecond late.
//!
//! A reading takes 9 ns in place of 29, 23 of which are the system's own call. (2.5 GHz; crates
//! that count cycles from one measurement on, as `quanta` does, take 0.2 s for it and never compare
//! again.)

use std::cell::Cell;
use std::fs;
use std::sync::LazyLock;

use crate::support::clock::System;
use crate::units::Timestamp;

/// Moments are counted in parts, 2^12 to a microsecond: until the year 2112 they fit.
const PART_BITS: u32 = 12;
/// The rate is counted in parts a tick, 2^32 to one.
const RATE_BITS: u32 = 32;
/// The millisecond, in parts.
const SPAN: u64 = 1_000 << PART_BITS;

/// Whether the kernel itself takes the time from the counter: it has then seen that it ticks
/// evenly, in all sleeping states, and alike on all processors.
static IS_STEADY: LazyLock<bool> = LazyLock::new(|| {
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|source| source.trim() == "tsc")
});

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor::UNKNOWN) };
}

/// The moment, as far as the counter tells it, else as the system's clock does.
///
/// Readings may be out of order by what they may be wrong by, those of one thread only while the
/// system makes up for an error of its clock. Whoever needs them in order sees to it.
#[inline]
pub(crate) fn now() -> Timestamp {
    let anchor = ANCHOR.get();
    // The counter is not read where it does not serve: a machine may be told to trap that.
    let told = if anchor.believed == 0 {
        None
    } else {
        anchor.parts(ticks())
    };
    let parts = told.unwrap_or_else(read_counter);
    Timestamp::from_micros(parts >> PART_BITS)
}

#[inline]
fn ticks() -> u64 {
    safe_arch::read_timestamp_counter()
}

/// Compares the counter with the clock.
#[cold]
fn read_counter() -> u64 {
    if !*IS_STEADY {
        return parts_of(System::get());
    }
    let before = ticks();
    let clock = parts_of(System::get());
    let after = ticks();
    let anchor = ANCHOR.get();
    ANCHOR.set(anchor.next(before, clock, after));
    clock.max(anchor.nanos_at(clock))
}

fn parts_of(system: System) -> u64 {
    let (start, elapsed) = (system.start.as_micros(), system.elapsed);
    let micros = start.saturating_add(elapsed.as_secs().saturating_mul(1_000_000));
    let nanos = u64::from(elapsed.subsec_nanos());
    // A nanosecond is 4.096 parts.
    micros
        .saturating_mul(1 << PART_BITS)
        .saturating_add(nanos * 512 / 125)
}

/// Where a thread last compared the counter with the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    ticks: u64,
    /// The moment, in parts.
    at: u64,
    /// What a tick adds to it; 0 where that is unknown.
    rate: u64,
    /// For so many ticks the rate is believed: a millisecond's, or none.
    believed: u64,
    /// What has been told already, where the rate was a little too high before.
    least: u64,
}

impl Anchor {
    const UNKNOWN: Self = Self {
        ticks: 0,
        at: 0,
        rate: 0,
        believed: 0,
        least: 0,
    };

    /// The moment at which the counter stands there, where that is known.
    #[inline]
    fn parts(&self, ticks: u64) -> Option<u64> {
        let since = ticks.wrapping_sub(self.ticks);
        // What is believed is a product of at most 2^54.
        (since < self.believed).then(|| self.least.max(self.at + ((since * self.rate) >> RATE_BITS)))
    }

    /// The last moment that can have been told, if it is not so far from the clock's that the
    /// counter must have stepped.
    fn nanos_at(&self, clock: u64) -> u64 {
        let last = self.at + ((self.believed * self.rate) >> RATE_BITS);
        let told = last.max(self.least);
        if told.saturating_sub(clock) > SPAN >> 9 {
            0
        } else {
            told
        }
    }

    /// What is known after the clock stood there between two readings of the counter.
    fn next(self, before: u64, clock: u64, after: u64) -> Self {
        let (ticks, time) = (after.wrapping_sub(self.ticks), clock.saturating_sub(self.at));
        let looked = after.wrapping_sub(before);
        let here = Self {
            ticks: after,
            at: clock,
            least: self.nanos_at(clock),
            ..self
        };
        // Whoever was away may have been away with the machine, and measures nothing of that time.
        let away = time > 4 * SPAN || ticks == 0;
        if away && (self.believed == 0 || looked <= self.believed >> 12) {
            return here;
        }
        // It is too early to measure, or the thread was interrupted between the readings, for more
        // than a quarter of the difference that two rates may have.
        if away || time < SPAN || looked > ticks >> 12 {
            return self;
        }
        let rate = (time << RATE_BITS) / ticks;
        let is_the_same = rate > 0 && rate.abs_diff(self.rate) <= rate >> 10;
        let believed = if is_the_same {
            (SPAN << RATE_BITS) / rate
        } else {
            0
        };
        Self {
            rate,
            believed,
            ..here
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::support::clock::tsc::*;

    /// A counter that ticks 25 times in ten nanoseconds, the unit in which time passes here, and a
    /// thread that looks at it.
    struct Machine {
        anchor: Anchor,
        ticks: u64,
        nanos: u64,
        /// Ticks in ten nanoseconds.
        rate: u64,
        looks: u64,
    }

    impl Machine {
        fn steady() -> Self {
            let mut machine = Self {
                anchor: Anchor::UNKNOWN,
                ticks: 1 << 60,
                nanos: 1_700_000_000_000_000_000,
                rate: 25,
                looks: 0,
            };
            for _ in 0..100_000 {
                machine.pass(50);
                machine.read();
            }
            assert!(machine.anchor.believed > 0);
            machine.looks = 0;
            machine
        }

        fn pass(&mut self, nanos: u64) {
            self.nanos += nanos;
            self.ticks = self.ticks.wrapping_add(nanos * self.rate / 10);
        }

        /// Reads the clock, and says by how many nanoseconds that is wrong.
        fn read(&mut self) -> u64 {
            self.read_interrupted(0)
        }

        fn read_interrupted(&mut self, nanos: u64) -> u64 {
            let parts = self.anchor.parts(self.ticks).unwrap_or_else(|| {
                self.looks += 1;
                let before = self.ticks;
                self.pass(20 + nanos / 2);
                let clock = self.parts();
                self.pass(20 + nanos / 2);
                let told = self.anchor.nanos_at(clock);
                self.anchor = self.anchor.next(before, clock, self.ticks);
                clock.max(told)
            });
            parts.abs_diff(self.parts()) * 125 / 512
        }

        fn parts(&self) -> u64 {
            u64::try_from(u128::from(self.nanos) * 512 / 125).unwrap()
        }
    }

    #[test]
    fn a_steady_counter_is_the_clock_to_a_microsecond_and_is_seldom_compared() {
        let mut machine = Machine::steady();
        let mut last = 0;
        for passed in (0..2_000_000).map(|step| 20 + step % 9 * 10) {
            machine.pass(passed);
            assert!(machine.read() < 1_000);
            let told = machine.anchor.parts(machine.ticks).unwrap_or_default();
            assert!(told == 0 || told >= last);
            last = last.max(told);
        }
        assert!(machine.looks < 200, "{} looks in 128 ms", machine.looks);
    }

    #[test]
    fn a_counter_that_steps_is_not_believed() {
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
            assert!(machine.anchor.believed > 0, "believed again");
        }
    }

    #[test]
    fn a_counter_that_changes_its_rate_is_wrong_for_a_millisecond() {
        for rate in [1, 20, 24, 26, 30, 100] {
            let mut machine = Machine::steady();
            machine.rate = rate;
            let mut wrong_for = 0;
            for _ in 0..10_000_000 / 50 {
                machine.pass(50);
                let wrong = machine.read();
                wrong_for += if wrong > 2_000 { 50 } else { 0 };
            }
            // Of its own ticks.
            assert!(wrong_for <= 1_000_000 * 25 / rate, "{rate}: {wrong_for} ns");
            assert_eq!(machine.anchor.believed > 0, wrong_for < 5_000_000);
        }
    }

    #[test]
    fn whoever_is_interrupted_while_it_looks_believes_nothing_of_it() {
        let mut machine = Machine::steady();
        for turn in 0..100_000 {
            machine.pass(50);
            let interrupted = if turn % 3 == 0 { 40_000 } else { 0 };
            let late = machine.read_interrupted(interrupted);
            // What is told of the past is not wrong, but late.
            assert!(late < interrupted + 2_000, "{late}");
        }
    }

    #[test]
    fn time_that_nobody_looked_is_not_measured_and_the_rate_holds_after_it() {
        let mut machine = Machine::steady();
        // Suspended: the counter goes on, the clock does not.
        machine.ticks += 1 << 45;
        machine.pass(5_000_000);
        assert!(machine.read() < 1_000);
        assert_eq!(machine.looks, 1);
        for _ in 0..10_000 {
            machine.pass(50);
            assert!(machine.read() < 1_000);
        }
        assert_eq!(machine.looks, 1);
    }

    #[test]
    fn it_goes_with_the_clock_of_this_machine() {
        let micros = || System::get().timestamp().as_micros();
        let (until, mut last) = (micros() + 20_000, Timestamp::default());
        loop {
            let (before, now, after) = (micros(), now(), micros());
            assert!(now.as_micros() + 3 >= before && now.as_micros() <= after + 3);
            assert!(last <= now);
            last = now;
            if after > until {
                break;
            }
        }
        assert_eq!(ANCHOR.get().believed > 0, *IS_STEADY);
    }
}
