//! The usage of the fleet in Redis.

use std::time::Duration;

use limiter_core::Policy;
use limiter_core::usage::{UsageCursor, UsageReporting};

use super::assert_frozen;
use super::redis::{PATIENT, RUNS, Scenario, masked};

#[tokio::test]
async fn usage_layout_is_frozen() {
    let mut pages = Vec::new();
    for _ in 0..RUNS {
        let mut scenario = Scenario::new(|builder| {
            let builder = builder.replicas(1).app("shop");
            builder.usage(UsageReporting::CountsAndDeniedKeys)
        });
        let limits = scenario.limits.clone();
        let policy = Policy::token_bucket("p")
            .capacity(1)
            .rate("1/h")
            .deadline(PATIENT);
        let policy = policy.build().unwrap();
        for _ in 0..3 {
            let _ = limits.check(&policy, "ann").await.unwrap();
        }
        scenario.step("one allowed and two denied calls");
        limits.shutdown(Duration::from_secs(5)).await;
        scenario.step("shutdown reports the usage");
        let usage = limits.fleet_usage().unwrap();
        let minutes = usage.changed_minutes(&mut UsageCursor::default()).await.unwrap();
        assert_eq!(minutes.len(), 1);
        pages.push(scenario.page);
    }
    assert_frozen("redis_usage.txt", &masked(&pages));
}
