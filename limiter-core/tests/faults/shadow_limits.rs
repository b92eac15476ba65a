//! Shadow limits and penalties beside enforced limits: they use none of their deadline and none of
//! their permits.

use std::time::{Duration, Instant};

use limiter_core::{Enforcement, LimitRequest, Limiter, OnStoreFailure, Origin, Policy, Rejection};
use limiter_testing::RedisServer;

use crate::support::{PATIENT, micros, millis, namespace, secs};

const DEADLINE: Duration = millis(800);
/// Less than two deadlines, on a busy machine.
const ONE_DEADLINE: Duration = millis(1_400);

fn policy(name: &str, enforcement: Enforcement, deadline: Duration) -> Policy {
    let policy = Policy::token_bucket(name).capacity(10_000).rate("1/h");
    let policy = policy.on_store_failure(OnStoreFailure::Local).deadline(deadline);
    policy.enforcement(enforcement).build().unwrap()
}

fn on_redis(server: &RedisServer) -> Limiter {
    Limiter::redis(server.url())
        .namespace(namespace())
        .build()
        .unwrap()
}

#[tokio::test]
async fn enforced_and_shadow_limits_share_one_deadline() {
    let server = RedisServer::start();
    let limits = on_redis(&server);
    let enforced = policy("enforced", Enforcement::Enforce, DEADLINE);
    let shadow = policy("shadow", Enforcement::Shadow, DEADLINE);
    let both = |key: &'static str| [&enforced, &shadow].map(|policy| LimitRequest::new(policy, key));
    for key in ["check", "acquire", "at once"] {
        assert!(limits.check_all(both(key)).await.unwrap().is_allowed());
    }
    server.pause();
    let timed = async |call: &mut (dyn Future<Output = Result<Origin, Rejection>> + Unpin)| {
        let started = Instant::now();
        (call.await.unwrap(), started.elapsed())
    };
    let mut check = Box::pin(async { Ok(limits.check_all(both("check")).await?.origin()) });
    let mut acquire = Box::pin(async {
        Ok(limits
            .acquire_all(both("acquire"))
            .timeout(DEADLINE)
            .await?
            .origin())
    });
    let mut at_once = Box::pin(async {
        Ok(limits
            .acquire_all(both("at once"))
            .timeout(secs(0))
            .await?
            .origin())
    });
    let result = tokio::join!(timed(&mut check), timed(&mut acquire), timed(&mut at_once));
    for (origin, took) in [result.0, result.1, result.2] {
        assert_eq!(origin, Origin::LocalFallback);
        assert!(took < ONE_DEADLINE, "{took:?}");
    }
}

#[tokio::test]
async fn denial_report_waits_no_longer_than_call() {
    let server = RedisServer::start();
    let limits = on_redis(&server);
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate("1/h")
        .penalty("3 in 1m: 1h");
    let policy = policy.deadline(secs(3)).build().unwrap();
    for allowed in [true, false, false] {
        assert_eq!(limits.check(&policy, "k").await.unwrap().is_allowed(), allowed);
    }
    server.pause();
    let started = Instant::now();
    let result = limits.acquire(&policy, "k").timeout(millis(200)).await;
    assert!(
        matches!(
            result,
            Err(Rejection::TimedOut {
                decision: Some(_),
                ..
            })
        ),
        "{result:?}"
    );
    assert!(started.elapsed() < ONE_DEADLINE, "{:?}", started.elapsed());
}

/// A call that is cancelled during a shadow decision, or at any other time, is not charged.
#[tokio::test]
async fn cancelled_wait_with_shadow_limit_leaves_no_charge() {
    let server = RedisServer::start();
    let limits = on_redis(&server);
    let enforced = policy("enforced", Enforcement::Enforce, PATIENT);
    let shadow = policy("shadow", Enforcement::Shadow, PATIENT);
    let both = || [&enforced, &shadow].map(|policy| LimitRequest::new(policy, "k"));
    let mut granted = 0;
    for round in 0..400 {
        let patience = micros(round * 7 % 1_500);
        let result = tokio::time::timeout(patience, limits.acquire_all(both())).await;
        granted += u64::from(result.is_ok_and(|result| result.is_ok()));
    }
    let is_given_back = async {
        while limits.peek(&enforced, "k").await.unwrap().remaining() != 10_000 - granted {
            tokio::task::yield_now().await;
        }
    };
    let result = tokio::time::timeout(PATIENT, is_given_back).await;
    assert!(
        result.is_ok(),
        "{:?} for {granted}",
        limits.peek(&enforced, "k").await
    );
}
