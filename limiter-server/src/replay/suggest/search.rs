//! The smallest capacity of a rate that meets the target.

use crate::replay::suggest::bucket::{capacity_without_denial, denials};
use crate::replay::suggest::events::Traffic;
use crate::replay::suggest::rates::{SuggestedRate, denied_of};
use crate::replay::suggest::{DenialTarget, SuggestedBucket};

/// Finds the capacity. The number of denied keys falls with the capacity, and so does the number of
/// denied calls if all costs are equal; if they differ, the result meets the target, and the
/// capacity below it does not.
pub(super) fn smallest_capacity(
    traffic: &Traffic,
    rate: SuggestedRate,
    target: DenialTarget,
) -> SuggestedBucket {
    let needs = needs(traffic, rate);
    let capacity = match target {
        DenialTarget::DeniedKeysPerMillion(part) => {
            let denied = denied_of(traffic.keys(), part);
            // The keys that need more than this capacity are the denied ones.
            usize::try_from(denied)
                .ok()
                .and_then(|denied| needs.get(denied))
                .map_or(0, |need| need.0)
        }
        DenialTarget::DeniedCallsPerMillion(part) => {
            let denied = denied_of(traffic.calls(), part);
            let meets = |capacity| denied_calls(traffic, &needs, rate, capacity, denied) <= denied;
            bisect(needs.first().map_or(0, |need| need.0), meets)
        }
    };
    // A bucket holds at least one permit.
    let capacity = capacity.max(1);
    SuggestedBucket {
        rate,
        capacity,
        denied_calls: denied_calls(traffic, &needs, rate, capacity, u64::MAX),
        denied_keys: needs.iter().take_while(|need| need.0 > capacity).count() as u64,
    }
}

/// For each key the capacity that denies none of its calls, and its number; the largest first.
fn needs(traffic: &Traffic, rate: SuggestedRate) -> Vec<(u64, usize)> {
    let needs = traffic.each().map(|events| capacity_without_denial(events, rate));
    let mut needs: Vec<(u64, usize)> = needs.enumerate().map(|(number, need)| (need, number)).collect();
    needs.sort_unstable_by(|a, b| b.cmp(a));
    needs
}

/// Returns the denied calls, or a number above `limit` as soon as there are more.
fn denied_calls(
    traffic: &Traffic,
    needs: &[(u64, usize)],
    rate: SuggestedRate,
    capacity: u64,
    limit: u64,
) -> u64 {
    let mut denied = 0;
    for (_, number) in needs.iter().take_while(|need| need.0 > capacity) {
        denied += denials(traffic.key(*number), rate, capacity).0;
        if denied > limit {
            break;
        }
    }
    denied
}

/// Returns the smallest number up to `high` for which the condition holds; it holds for `high`.
fn bisect(high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, high);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}
