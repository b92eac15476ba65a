//! Limits in shadow and penalties beside what is enforced: they take none of its time, and keep
//! nothing of its permits.

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
async fn a_deadline_counts_once_for_what_is_enforced_and_what_is_in_shadow() {
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
    let told = tokio::join!(timed(&mut check), timed(&mut acquire), timed(&mut at_once));
    for (origin, took) in [told.0, told.1, told.2] {
        assert_eq!(origin, Origin::LocalFallback);
        assert!(took < ONE_DEADLINE, "{took:?}");
    }
}

#[tokio::test]
async fn a_denial_that_is_due_to_be_told_waits_no_longer_than_its_call() {
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
    let told = limits.acquire(&policy, "k").timeout(millis(200)).await;
    assert!(
        matches!(
            told,
            Err(Rejection::TimedOut {
                decision: Some(_),
                ..
            })
        ),
        "{told:?}"
    );
    assert!(started.elapsed() < ONE_DEADLINE, "{:?}", started.elapsed());
}

/// Whoever leaves while what is in shadow is asked, or at any other moment, has charged nothing.
#[tokio::test]
async fn a_cancelled_wait_beside_shadow_leaves_no_charge_behind() {
    let server = RedisServer::start();
    let limits = on_redis(&server);
    let enforced = policy("enforced", Enforcement::Enforce, PATIENT);
    let shadow = policy("shadow", Enforcement::Shadow, PATIENT);
    let both = || [&enforced, &shadow].map(|policy| LimitRequest::new(policy, "k"));
    let mut granted = 0;
    for round in 0..400 {
        let patience = micros(round * 7 % 1_500);
        let told = tokio::time::timeout(patience, limits.acquire_all(both())).await;
        granted += u64::from(told.is_ok_and(|told| told.is_ok()));
    }
    let is_given_back = async {
        while limits.peek(&enforced, "k").await.unwrap().remaining() != 10_000 - granted {
            tokio::task::yield_now().await;
        }
    };
    let told = tokio::time::timeout(PATIENT, is_given_back).await;
    assert!(
        told.is_ok(),
        "{:?} for {granted}",
        limits.peek(&enforced, "k").await
    );
}
