//! A token bucket in the exact arithmetic of the library, for many calls of one key.
//!
//! The state is the usage that is not refilled, in parts: one thousandth of a permit has as many
//! parts as the period of the rate has microseconds, and each microsecond refills as many parts as
//! the rate has thousandths.

use crate::replay::suggest::events::Event;
use crate::replay::suggest::rates::SuggestedRate;

/// The denied calls of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Denials(pub(super) u64);

/// Returns the smallest capacity in whole permits at which no call of the key is denied.
pub(super) fn capacity_without_denial(events: &[Event], rate: SuggestedRate) -> u64 {
    let (mut used, mut most, mut last) = (0_u128, 0, 0);
    for event in events {
        used = used.saturating_sub(refilled(rate, event.at - last));
        used += parts(rate, event.cost) * u128::from(event.count);
        most = most.max(used);
        last = event.at;
    }
    let permit = parts(rate, 1_000);
    u64::try_from(most.div_ceil(permit)).unwrap_or(u64::MAX)
}

/// Returns the calls of the key that a bucket of this capacity denies.
pub(super) fn denials(events: &[Event], rate: SuggestedRate, capacity: u64) -> Denials {
    let full = parts(rate, 1_000) * u128::from(capacity);
    let (mut used, mut last, mut denied) = (0_u128, 0, 0);
    for event in events {
        used = used.saturating_sub(refilled(rate, event.at - last));
        last = event.at;
        let cost = parts(rate, event.cost);
        let free = full - used;
        let count = u128::from(event.count);
        let admitted = if count * cost <= free { count } else { free / cost };
        used += admitted * cost;
        denied += u64::try_from(count - admitted).unwrap_or(u64::MAX);
    }
    Denials(denied)
}

fn parts(rate: SuggestedRate, thousandths: u64) -> u128 {
    u128::from(thousandths) * u128::from(rate.period_micros())
}

fn refilled(rate: SuggestedRate, micros: u64) -> u128 {
    u128::from(micros) * u128::from(rate.thousandths())
}
