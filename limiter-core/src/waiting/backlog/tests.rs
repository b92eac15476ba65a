use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Builder;

use crate::waiting::WaitLimit;
use crate::waiting::backlog::*;
use crate::{ManualClock, Policy};

const HOUR: Duration = Duration::from_secs(3_600);

fn policies() -> Vec<(Policy, Duration)> {
    let exact = Duration::from_millis(1);
    let minute = Duration::from_secs(60);
    // Each policy with the maximum error of its estimate.
    [
        (
            Policy::token_bucket("bucket").capacity(5).rate("7/3s").build(),
            exact,
        ),
        (
            Policy::token_bucket("one").capacity(4).rate("1/10s").build(),
            exact,
        ),
        (Policy::funnel("funnel").capacity(6).rate("7/min").build(), exact),
        (
            Policy::sliding_window("sliding").limit(5).window("1m").build(),
            minute,
        ),
        (
            Policy::fixed_window("fixed").limit(5).window("1m").build(),
            minute,
        ),
        (
            Policy::counter_window("counter").limit(5).window("1m").build(),
            2 * minute,
        ),
    ]
    .map(|(policy, tolerance)| (policy.unwrap(), tolerance))
    .into()
}

/// Returns the time after which the last of these calls is admitted if each one retries as soon as
/// possible.
async fn served_after(limits: &Limiter, clock: &ManualClock, policy: &Policy, costs: &[u32]) -> Duration {
    let start = clock.now();
    for cost in costs {
        loop {
            let decision = limits.check(policy, "a").cost(*cost).await.unwrap();
            match decision.retry_after() {
                Some(after) => clock.advance(after),
                None => break,
            }
        }
    }
    clock.now().since(start)
}

/// Returns the `retry_after` of the last call if all slots are taken by the others.
async fn estimated_retry_after(limits: &Limiter, policy: &Policy, costs: &[u32]) -> Option<Duration> {
    let (own, before) = costs.split_last().unwrap();
    let wait_limit = WaitLimit::new(before.len());
    let wait = |cost: u32| {
        limits
            .acquire(policy, "a")
            .cost(cost)
            .timeout(24 * HOUR)
            .within(&wait_limit)
    };
    let mut waiting: Vec<_> = before
        .iter()
        .map(|cost| Box::pin(wait(*cost).into_future()))
        .collect();
    for wait in &mut waiting {
        assert!(tokio::time::timeout(Duration::ZERO, wait).await.is_err());
    }
    let result = tokio::time::timeout(Duration::ZERO, wait(*own).into_future()).await;
    match result {
        Ok(Err(Rejection::Limited(denied))) => Some(denied.retry_after().unwrap()),
        result => unreachable!("{result:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The estimate is never too early, and with equal costs not much too late.
    #[test]
    fn retry_after_without_slot_covers_all_earlier_waiters(
        history in prop::collection::vec((0_u64..20_000_000, 1_u32..4), 0..4),
        costs in prop_oneof![
            (1_u32..5, 2_usize..12).prop_map(|(cost, count)| vec![cost; count]),
            prop::collection::vec(1_u32..5, 2..12),
        ],
    ) {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let alike = costs.iter().all(|cost| *cost == costs[0]);
        for (policy, tolerance) in policies() {
            runtime.block_on(async {
                let clock = ManualClock::new();
                let limits = Limiter::in_process().clock(&clock).build();
                for (pause, cost) in &history {
                    let _ = limits.check(&policy, "a").cost(*cost).await.unwrap();
                    clock.advance(Duration::from_micros(*pause));
                }
                // Exhausts the quota.
                while limits.check(&policy, "a").await.unwrap().is_allowed() {}
                let estimate = estimated_retry_after(&limits, &policy, &costs).await.unwrap();
                let served = served_after(&limits, &clock, &policy, &costs).await;
                assert!(estimate >= served, "{policy} {costs:?}: estimated {estimate:?}, served after {served:?}");
                if alike {
                    let served = if policy.name() == "counter" { 2 * served } else { served };
                    assert!(estimate <= served + tolerance, "{policy} {costs:?}: estimated {estimate:?}, served after {served:?}");
                }
            });
        }
    }
}
