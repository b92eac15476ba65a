//! The time until a request fits is never too early, for all histories.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn policies() -> [Policy; 6] {
    [
        Policy::token_bucket("bucket").capacity(10).rate("7/3s").build(),
        Policy::token_bucket("fraction")
            .capacity(9.7)
            .rate("1/7s")
            .build(),
        Policy::funnel("funnel").capacity(8).rate("7/min").build(),
        Policy::sliding_window("window").limit(10).window("1m").build(),
        Policy::counter_window("counter").limit(10).window("1m").build(),
        Policy::fixed_window("fixed").limit(10).window("1m").build(),
    ]
    .map(Result::unwrap)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn request_fits_at_stated_time(history in prop::collection::vec((0_u64..40_000_000, 1_u32..6), 1..8)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for policy in policies() {
            runtime.block_on(async {
                let (limits, clock) = limiter();
                let mut last = None;
                for (pause, cost) in &history {
                    clock.advance(Duration::from_micros(*pause));
                    last = Some(limits.check(&policy, "ann").cost(*cost).await.unwrap());
                }
                let decision = last.unwrap();
                let limit = &decision.limits()[0];
                let start = clock.now();
                for cost in 1..=u32::try_from(policy.quota().whole()).unwrap() {
                    let after = limit.available_after(Amount::from(cost)).unwrap();
                    let fits = async || limits.peek(&policy, "ann").cost(cost).await.unwrap().is_allowed();
                    let is_exact = matches!(policy.name(), "bucket" | "fraction" | "funnel");
                    let passed = clock.now().since(start);
                    // A remainder below a thousandth of a permit arrives within this time.
                    let slack = Duration::from_millis(9);
                    if is_exact && after > passed + slack {
                        clock.advance(after - passed - slack);
                        assert!(!fits().await, "{policy}: {cost} fits before {after:?}");
                    }
                    let passed = clock.now().since(start);
                    clock.advance(after.saturating_sub(passed));
                    assert!(fits().await, "{policy}: {cost} does not fit after {after:?}");
                }
                assert_eq!(limit.available_after(Amount::from(policy.quota().whole() + 1)), None);
            });
        }
    }
}
