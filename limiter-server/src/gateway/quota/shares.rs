//! Divides a rate among holders by demand: max-min fairness.
//!
//! A holder with a small demand gets its demand. The other holders get equal shares of the rest. A
//! rate that no holder demands is divided equally, so that a holder whose demand rises does not
//! wait for the next report.

/// Millionths of a permit per second.
pub type MicroRate = u64;

/// Divides `rate` by demand. The shares are in the order of the demands, and their sum is at most
/// `rate`.
#[must_use]
pub fn divide(rate: MicroRate, demands: &[MicroRate]) -> Vec<MicroRate> {
    let mut order: Vec<(MicroRate, usize)> = demands.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let mut shares = vec![0; demands.len()];
    let (mut left, mut holders) = (rate, demands.len() as u64);
    for (demand, number) in order {
        // At least this holder is left.
        let share = demand.min(left / holders.max(1));
        if let Some(place) = shares.get_mut(number) {
            *place = share;
        }
        left -= share;
        holders -= 1;
    }
    let extra = left / (demands.len() as u64).max(1);
    shares.iter_mut().for_each(|share| *share += extra);
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::gateway::quota::shares::divide;

    #[test]
    fn small_demands_are_met_and_rest_is_divided_equally() {
        assert_eq!(divide(100, &[10, 200, 300]), [10, 45, 45]);
        assert_eq!(divide(100, &[0, 40]), [30, 70]);
        assert_eq!(divide(100, &[]), Vec::<u64>::new());
        assert_eq!(divide(100, &[0, 0]), [50, 50]);
    }

    proptest! {
        #[test]
        fn shares_are_fair(
            rate in 0..1_000_000_000_u64,
            demands in proptest::collection::vec(0..1_000_000_000_u64, 1..20),
        ) {
            let shares = divide(rate, &demands);
            let holders = demands.len() as u64;
            let sum: u64 = shares.iter().sum();
            prop_assert!(sum <= rate && rate - sum < holders);
            // A holder whose demand is not met has the largest share, up to rounding.
            for (share, demand) in shares.iter().zip(&demands).filter(|(share, demand)| share < demand) {
                prop_assert!(shares.iter().all(|other| *other <= share + holders), "{share} {demand} {shares:?}");
            }
        }
    }
}
