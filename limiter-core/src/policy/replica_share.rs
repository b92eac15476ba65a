//! The share of a policy that one of several replicas admits alone during an outage.
//!
//! A share is an equal part of the quota, rounded up to a whole permit so that each replica can
//! admit a call, at an equal part of the rate (`redis/local_fallback.rs`).
//!
//! Invariant: the shares of all replicas exceed the quota by less than one permit each. Tests:
//! below, and `tests/local_fallback.rs`.

use crate::policy::{Algorithm, Concurrency, CounterWindow, FixedWindow, Funnel, SlidingWindow, TokenBucket};

impl Algorithm {
    /// Returns the share of one of `replicas` replicas: an equal part of the quota, rounded up to a
    /// whole permit, at an equal part of the rate. All shares together exceed the quota by less
    /// than one permit per replica.
    pub(crate) fn share(&self, replicas: u32) -> Self {
        let replicas = replicas.max(1);
        let level = |capacity: u64| {
            const PERMIT: u64 = 1_000;
            // A fractional capacity is not rounded up.
            let part = capacity.div_ceil(u64::from(replicas)).next_multiple_of(PERMIT);
            part.min(capacity)
        };
        match *self {
            Self::TokenBucket(TokenBucket { capacity, rate }) => Self::TokenBucket(TokenBucket {
                capacity: level(capacity),
                rate: rate.slower(replicas),
            }),
            Self::Funnel(Funnel {
                capacity,
                rate,
                paced,
            }) => Self::Funnel(Funnel {
                capacity: level(capacity),
                rate: rate.slower(replicas),
                paced,
            }),
            Self::SlidingWindow(SlidingWindow { limit, window }) => Self::SlidingWindow(SlidingWindow {
                limit: limit.div_ceil(u64::from(replicas)),
                window,
            }),
            Self::CounterWindow(whole) => Self::CounterWindow(CounterWindow {
                limit: whole.limit.div_ceil(u64::from(replicas)),
                ..whole
            }),
            Self::FixedWindow(whole) => Self::FixedWindow(FixedWindow {
                limit: whole.limit.div_ceil(u64::from(replicas)),
                ..whole
            }),
            Self::Concurrency(limit) => Self::Concurrency(Concurrency {
                max: limit.max.div_ceil(u64::from(replicas)),
                ..limit
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::Policy;

    fn bucket(capacity: f64) -> Policy {
        Policy::token_bucket("p")
            .capacity(capacity)
            .rate("7/3s")
            .build()
            .unwrap()
    }

    #[test]
    fn sum_of_shares_exceeds_quota_by_less_than_one_permit_each() {
        for capacity in [0.5, 1.0, 2.5, 10.0, 100.0, 101.0] {
            let whole = bucket(capacity);
            for replicas in 1..=7 {
                let share = whole.algorithm().share(replicas).quota();
                let all = u64::from(replicas) * share;
                let quota = whole.algorithm().quota();
                assert!(
                    all >= quota && share <= quota,
                    "{capacity} over {replicas}: {share}"
                );
                assert!(
                    all < quota + 1_000 * u64::from(replicas),
                    "{capacity} over {replicas}: {share}"
                );
            }
            assert_eq!(whole.algorithm().share(1), *whole.algorithm());
        }
        let window = Policy::sliding_window("w")
            .limit(10)
            .window("1m")
            .build()
            .unwrap();
        assert_eq!(
            [1, 3, 4, 10, 99].map(|n| window.algorithm().share(n).quota()),
            [10, 4, 3, 1, 1]
        );
    }
}
