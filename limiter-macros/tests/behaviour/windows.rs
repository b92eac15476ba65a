//! Kinds of windows, and paced funnels.

use std::time::Duration;

use limiter_core::annotations::with_limiter;
use limiter_core::{Rejection, Timestamp, funnel_limiter, window_limiter};

use crate::{fresh, is_send};

const SECOND: Duration = Duration::from_secs(1);

#[window_limiter(limit = 2, window = "10s", kind = counter)]
async fn counter() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(limit = 2, window = "10s", kind = fixed)]
async fn fixed() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(limit = limit, window = "month", kind = fixed, align = "+01:00")]
async fn month(limit: u64) -> Result<(), Rejection> {
    Ok(())
}

const LARGE: u32 = 10_001;

#[window_limiter(limit = LARGE, window = "10s")]
async fn large() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(limit = LARGE, window = "10s", kind = exact)]
async fn spelled() -> Result<(), Rejection> {
    Ok(())
}

/// A computed limit cannot be checked in advance.
#[window_limiter(limit = limit, window = "10s")]
async fn computed(limit: u32) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn large_constant_requires_explicit_exact_window() {
    let (limits, _) = fresh();
    with_limiter(limits, async {
        let refused = large().await;
        assert!(matches!(refused, Err(Rejection::Config(_))), "{refused:?}");
        assert!(spelled().await.is_ok() && computed(LARGE).await.is_ok());
    })
    .await;
}

#[funnel_limiter(capacity = 3, rate = 1, paced)]
async fn paced() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn each_kind_admits_its_limit_and_states_retry_after() {
    let (limits, clock) = fresh();
    // 2024-02-29T22:59:59Z
    clock.set(Timestamp::from_micros(1_709_247_599_000_000));
    let wait = |answer: Result<(), Rejection>| answer.unwrap_err().retry_after().unwrap();
    with_limiter(limits, async {
        for _ in 0..2 {
            assert!(counter().await.is_ok() && fixed().await.is_ok() && month(2).await.is_ok());
        }
        assert_eq!(wait(counter().await), SECOND * 15);
        assert_eq!(wait(fixed().await), SECOND * 10);
        assert_eq!(wait(month(2).await), SECOND);
        clock.advance(SECOND);
        assert!(month(2).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn paced_funnel_calls_proceed_one_by_one() {
    let (limits, clock) = fresh();
    with_limiter(limits.clone(), async {
        assert!(is_send(paced()).await.is_ok());
        let mut second = Box::pin(paced());
        let mut third = Box::pin(paced());
        assert!(tokio::time::timeout(Duration::ZERO, &mut second).await.is_err());
        assert!(tokio::time::timeout(Duration::ZERO, &mut third).await.is_err());
        assert!(paced().await.is_err(), "the queue is full");
        clock.advance(SECOND);
        assert!(second.await.is_ok());
        assert!(tokio::time::timeout(Duration::ZERO, &mut third).await.is_err());
        // A waiting call ends with the shutdown of the limiter.
        limits.shutdown(Duration::ZERO).await;
        assert!(third.await.unwrap_err().is_unavailable());
    })
    .await;
}
