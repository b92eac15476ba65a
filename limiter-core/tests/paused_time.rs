//! Limiters measure real time, even in a test that has paused Tokio's time.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};

use limiter_core::{Limiter, Policy, Rejection};

const MOMENT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(30);

fn bucket() -> Policy {
    let policy = Policy::token_bucket("p").capacity(1).rate("20/s");
    policy.deadline(LONG).build().unwrap()
}

/// The output, and how often the future was polled.
async fn polls<T>(future: impl IntoFuture<Output = T>) -> (T, usize) {
    let (mut future, mut count) = (pin!(future.into_future()), 0);
    let output = poll_fn(|context| {
        count += 1;
        future.as_mut().poll(context)
    });
    let output = output.await;
    (output, count)
}

#[tokio::test(start_paused = true)]
async fn wait_in_process_ends_in_real_time_without_spinning() {
    let (limits, policy) = (Limiter::in_process().build(), bucket());
    let began = Instant::now();
    limits.acquire(&policy, "k").await.unwrap();
    for _ in 0..2 {
        let (granted, count) = polls(limits.acquire(&policy, "k").timeout(LONG)).await;
        granted.unwrap();
        assert!(count < 20, "polled {count} times");
    }
    assert!(began.elapsed() >= 2 * MOMENT - Duration::from_millis(1));

    let never = Policy::token_bucket("never")
        .capacity(1)
        .rate("1/h")
        .build()
        .unwrap();
    limits.acquire(&never, "k").await.unwrap();
    let (late, count) = polls(limits.acquire(&never, "k").timeout(MOMENT)).await;
    assert!(matches!(late, Err(Rejection::TimedOut { .. })), "{late:?}");
    assert!(count < 20, "polled {count} times");
}

/// A permit that is released by a timer of the test is handed over, for as long as the test's time
/// advances.
#[tokio::test(start_paused = true)]
async fn paused_time_advances_while_a_call_waits_for_a_permit() {
    let limits = Limiter::in_process().build();
    let export = Policy::concurrency("export").max(1).build().unwrap();
    let held = limits.acquire_concurrency(&export, "k").await.unwrap();
    let release = async {
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        drop(held);
    };
    let (entered, ()) = tokio::join!(limits.acquire_concurrency(&export, "k").timeout(LONG), release);
    assert!(entered.is_ok(), "{entered:?}");
}

#[cfg(all(unix, feature = "redis"))]
#[tokio::test(start_paused = true)]
async fn redis_decides_while_time_is_paused() {
    let limits = Limiter::redis(limiter_testing::RedisServer::shared().url());
    let limits = limits.namespace(support::namespace()).build().unwrap();
    limits.ready().await.unwrap();
    let policy = bucket();
    for key in 0..20 {
        let decision = limits.check(&policy, key).await.unwrap();
        assert_eq!(decision.origin(), limiter_core::Origin::Redis);
        assert!(decision.is_allowed());
    }
    for _ in 0..3 {
        let (granted, count) = polls(limits.acquire(&policy, "k").timeout(LONG)).await;
        granted.unwrap();
        assert!(count < 50, "polled {count} times");
    }
    let export = Policy::concurrency("export")
        .max(1)
        .deadline(LONG)
        .build()
        .unwrap();
    let permit = limits.acquire_concurrency(&export, "k").await.unwrap();
    assert!(limits.acquire_concurrency(&export, "k").await.is_err());
    permit.release().await.unwrap();
    limits
        .acquire_concurrency(&export, "k")
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let paused = tokio::time::Instant::now();
    limits.check(&policy, "new").await.unwrap().require().unwrap();
    assert_eq!(
        paused.elapsed(),
        Duration::ZERO,
        "a call to Redis does not move the test's time"
    );
}
