//! The rates for which a capacity is computed.
//!
//! Useful rates lie between the mean rate of a key and the cost in its busiest second. The
//! candidates have equal ratios in this range and are rounded to two or three digits, so that a
//! policy file can state them; equal ones are removed.
//!
//! Invariant: a rate is positive, and is written in the shortest period in which it is at least one
//! permit, or else per day. Tests: below, and `tests.rs`.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::replay::suggest::events::{Event, Traffic};
use crate::replay::suggest::{DenialTarget, MILLION};

const SECOND: u64 = 1_000_000;
/// The periods in seconds and their names.
const PERIODS: [(u64, &str); 4] = [(1, "s"), (60, "min"), (3_600, "h"), (86_400, "day")];

/// A rate with two or three significant digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuggestedRate {
    thousandths: u64,
    period: usize,
}

impl SuggestedRate {
    /// Returns the rate nearest to this number of thousandths of a permit per day: in the shortest
    /// period in which it is at least one permit, rounded down to a number of digits.
    pub(super) fn near(thousandths_per_day: u64, digits: u32) -> Self {
        let days = |period: usize| PERIODS.get(period).map_or(1, |(seconds, _)| 86_400 / seconds);
        let per = |period: usize| thousandths_per_day / days(period);
        let period = (0..PERIODS.len()).find(|period| per(*period) >= 1_000);
        let period = period.unwrap_or(PERIODS.len() - 1);
        Self {
            thousandths: rounded(per(period), digits).max(1),
            period,
        }
    }

    pub(super) fn thousandths(self) -> u64 {
        self.thousandths
    }

    pub(super) fn period_micros(self) -> u64 {
        PERIODS.get(self.period).map_or(1, |(seconds, _)| *seconds) * SECOND
    }

    /// Returns whether a capacity refills within a number of seconds.
    pub(super) fn refills_within(self, capacity: u64, seconds: u64) -> bool {
        let refilled = u128::from(self.thousandths) * u128::from(seconds * SECOND);
        u128::from(capacity) * 1_000 * u128::from(self.period_micros()) <= refilled
    }

    /// Permits per second, for a scale.
    #[expect(clippy::cast_precision_loss, reason = "a place on a scale")]
    pub(in crate::replay) fn per_second(self) -> f64 {
        self.thousandths as f64 / 1_000.0 / (self.period_micros() as f64 / SECOND as f64)
    }
}

impl fmt::Display for SuggestedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = limiter_core::Amount::from_thousandths(self.thousandths);
        write!(
            f,
            "{amount}/{}",
            PERIODS.get(self.period).map_or("s", |(_, name)| name)
        )
    }
}

impl Serialize for SuggestedRate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Rounds down to a number of significant digits.
fn rounded(number: u64, digits: u32) -> u64 {
    let mut unit = 1;
    while number / unit >= 10_u64.pow(digits) {
        unit *= 10;
    }
    number / unit * unit
}

/// Rates in equal ratios, from the mean rate of a key to its busiest second. The key is the one of
/// the highest rate, or, for a target of keys, that at the target.
pub(super) fn candidates(
    traffic: &Traffic,
    target: DenialTarget,
    count: usize,
) -> Option<Vec<SuggestedRate>> {
    let (first, last) = traffic.span()?;
    let seconds = ((last - first) / SECOND).max(1);
    let mut means: Vec<u64> = traffic
        .each()
        .map(|events| day_of(total(events), seconds))
        .collect();
    let mut peaks: Vec<u64> = traffic
        .each()
        .map(|events| day_of(busiest_second(events), 1))
        .collect();
    let low = at_target(&mut means, target)?.max(1);
    let high = at_target(&mut peaks, target)?.max(low);
    let mut rates: Vec<SuggestedRate> = Vec::with_capacity(count);
    // A narrow range is widened, so that the rates differ after rounding.
    let high = high.max(low.saturating_add(low / 2)).max(low + count as u64);
    let digits = if high / low < 20 { 3 } else { 2 };
    let ratio = (as_float(high) / as_float(low)).powf(1.0 / as_float(count.max(2) as u64 - 1));
    let mut rate = as_float(low);
    for _ in 0..count {
        rates.push(SuggestedRate::near(as_integer(rate), digits));
        rate *= ratio;
    }
    rates.dedup();
    Some(rates)
}

/// Thousandths of a permit per day.
fn day_of(thousandths: u64, seconds: u64) -> u64 {
    let of_day = u128::from(thousandths) * 86_400 / u128::from(seconds);
    u64::try_from(of_day).unwrap_or(u64::MAX / 100)
}

fn total(events: &[Event]) -> u64 {
    let costs = events
        .iter()
        .map(|event| event.cost.saturating_mul(u64::from(event.count)));
    costs.fold(0, u64::saturating_add)
}

/// Returns the largest cost of calls within a second of the calendar.
fn busiest_second(events: &[Event]) -> u64 {
    let (mut most, mut sum, mut second) = (0_u64, 0_u64, 0);
    for event in events {
        if event.at / SECOND != second {
            (second, sum) = (event.at / SECOND, 0);
        }
        sum = sum.saturating_add(event.cost.saturating_mul(u64::from(event.count)));
        most = most.max(sum);
    }
    most
}

fn at_target(values: &mut [u64], target: DenialTarget) -> Option<u64> {
    let above = match target {
        DenialTarget::DeniedCallsPerMillion(_) => 0,
        DenialTarget::DeniedKeysPerMillion(part) => denied_of(values.len() as u64, part),
    };
    let above = usize::try_from(above).unwrap_or(usize::MAX);
    values.sort_unstable_by(|a, b| b.cmp(a));
    values.get(above).or(values.last()).copied()
}

/// Returns the largest number that is at most a part of a million of all.
pub(super) fn denied_of(all: u64, part: u64) -> u64 {
    let denied = u128::from(all) * u128::from(part) / u128::from(MILLION);
    u64::try_from(denied).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "rates are rounded to three digits")]
fn as_float(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are positive, and rounded to three digits"
)]
fn as_integer(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use crate::replay::suggest::rates::SuggestedRate;

    #[test]
    fn rates_are_in_period_of_at_least_one_permit() {
        let day = 86_400_000;
        let texts = [day * 1_234, day, day / 60, day / 100, 1_500, 10]
            .map(|rate| SuggestedRate::near(rate, 2).to_string());
        assert_eq!(texts, ["1200/s", "1/s", "1/min", "36/h", "1.5/day", "0.01/day"]);
    }

    #[test]
    fn capacity_refills_at_rate() {
        let rate = SuggestedRate::near(86_400_000, 3);
        assert!(rate.refills_within(60, 60));
        assert!(!rate.refills_within(61, 60));
    }
}
