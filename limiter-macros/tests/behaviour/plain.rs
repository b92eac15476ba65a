//! One attribute on a free function.

use limiter_core::{Rejection, funnel_limiter, token_limiter, window_limiter};

use crate::{fresh, is_send, isolated};
use std::sync::LazyLock;
use std::time::Duration;

#[token_limiter(capacity = 2, rate = "1/min")]
async fn bucket() -> Result<u32, Rejection> {
    Ok(7)
}

#[funnel_limiter(capacity = 2, rate = 1, per = "1m")]
async fn funnel() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(limit = 2, window = "1m")]
async fn window() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn each_algorithm_admits_its_capacity() {
    isolated(async {
        assert_eq!(bucket().await.unwrap(), 7);
        assert!(bucket().await.is_ok());
        let rejection = bucket().await.unwrap_err();
        assert!(rejection.is_limited());
        assert_eq!(rejection.retry_after(), Some(Duration::from_secs(60)));

        assert!(funnel().await.is_ok() && funnel().await.is_ok());
        assert_eq!(
            funnel().await.unwrap_err().retry_after(),
            Some(Duration::from_secs(60))
        );

        assert!(window().await.is_ok() && window().await.is_ok());
        assert!(window().await.is_err());
    })
    .await;
}

#[tokio::test]
async fn policy_is_named_after_function_path() {
    isolated(async {
        assert!(bucket().await.is_ok() && bucket().await.is_ok());
        let rejection = bucket().await.unwrap_err();
        let policy = rejection
            .decision()
            .unwrap()
            .denied_by()
            .unwrap()
            .policy()
            .clone();
        assert_eq!(policy.name(), concat!(module_path!(), "::bucket"));
        assert_eq!(policy.quota().whole(), 2);
    })
    .await;
}

#[token_limiter(capacity = 10, rate = 1, need = cost)]
async fn costly(cost: u32) -> Result<u32, Rejection> {
    Ok(cost)
}

#[token_limiter(capacity = 10, rate = 1, need = amount)]
async fn signed(amount: i64) -> Result<(), Rejection> {
    let _ = amount;
    Ok(())
}

#[token_limiter(capacity = 1.5, rate = 0.5, need = 0.75)]
async fn halves() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(limit = 10, window = "1m", need = parts.len())]
async fn by_length(parts: Vec<String>) -> Result<usize, Rejection> {
    Ok(parts.into_iter().map(|part| part.len()).sum())
}

#[tokio::test]
async fn cost_is_computed_from_arguments() {
    isolated(async {
        assert_eq!(costly(7).await.unwrap(), 7);
        assert!(costly(4).await.is_err());
        assert!(costly(3).await.is_ok());
        assert!(costly(0).await.is_ok(), "a cost of 0 at run time is a peek");
        assert!(matches!(costly(11).await, Err(Rejection::NeverFits { .. })));
        assert!(matches!(signed(-1).await, Err(Rejection::Config(_))));
        assert!(halves().await.is_ok() && halves().await.is_ok() && halves().await.is_err());
        assert_eq!(by_length(vec!["abc".to_owned(); 10]).await.unwrap(), 30);
        assert!(by_length(vec![String::new()]).await.is_err());
    })
    .await;
}

#[window_limiter(limit = 1, window = "1m", when = guest)]
async fn guests_only(guest: bool) -> Result<bool, Rejection> {
    Ok(guest)
}

#[tokio::test]
async fn condition_exempts_calls() {
    isolated(async {
        assert!(guests_only(true).await.is_ok() && guests_only(true).await.is_err());
        for _ in 0..5 {
            assert!(guests_only(false).await.is_ok());
        }
    })
    .await;
}

#[token_limiter(capacity = 1, rate = 1, wait = "1500ms")]
async fn patient() -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(capacity = 1, rate = 1, wait = patience)]
async fn waiting_for(patience: Duration) -> Result<(), Rejection> {
    let _ = patience;
    Ok(())
}

#[tokio::test]
async fn call_waits_for_permit() {
    let (limiter, clock) = fresh();
    limiter_core::annotations::with_limiter(limiter, async {
        assert!(patient().await.is_ok());
        let (second, ()) = tokio::join!(patient(), async {
            tokio::task::yield_now().await;
            clock.advance(Duration::from_secs(1));
        });
        assert!(second.is_ok());

        assert!(waiting_for(Duration::ZERO).await.is_ok());
        let too_short = Duration::from_millis(999);
        let (late, ()) = tokio::join!(waiting_for(too_short), async {
            tokio::task::yield_now().await;
            clock.advance(too_short);
        });
        assert!(matches!(late, Err(Rejection::TimedOut { .. })));
    })
    .await;
}

const CAPACITY: u64 = 3;

#[token_limiter(capacity = CAPACITY - 1, rate = limiter_core::Rate::per(1, Duration::from_secs(60)))]
async fn from_constants() -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "tiers", capacity = burst, rate = burst, per = span)]
async fn by_tier(burst: u32, span: Duration) -> Result<(), Rejection> {
    let _ = (burst, span);
    Ok(())
}

#[window_limiter(limit = 1, window = std::time::Duration::from_secs(5), deadline = "20ms", on_store_failure = fail_closed)]
async fn with_options() -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(capacity = 1, rate = rate)]
async fn rated(rate: &str) -> Result<(), Rejection> {
    let _ = rate;
    Ok(())
}

#[tokio::test]
async fn parameters_are_literals_constants_or_computed() {
    isolated(async {
        assert!(from_constants().await.is_ok() && from_constants().await.is_ok());
        assert!(from_constants().await.is_err());

        let minute = Duration::from_secs(60);
        assert!(by_tier(1, minute).await.is_ok());
        assert!(by_tier(1, minute).await.is_err());
        assert!(
            by_tier(5, minute).await.is_err(),
            "a bucket keeps its remaining tokens, which are 0"
        );

        assert!(with_options().await.is_ok());
        let rejection = with_options().await.unwrap_err();
        let policy = rejection
            .decision()
            .unwrap()
            .denied_by()
            .unwrap()
            .policy()
            .clone();
        assert_eq!(policy.deadline(), Duration::from_millis(20));
        assert_eq!(
            policy.on_store_failure(),
            limiter_core::OnStoreFailure::FailClosed
        );

        assert!(rated("1/min").await.is_ok() && rated("1/min").await.is_err());
        assert!(matches!(rated("often").await, Err(Rejection::Config(_))));
    })
    .await;
}

#[tokio::test]
async fn nested_with_limiter_shares_no_state() {
    isolated(async {
        assert!(guests_only(true).await.is_ok());
        isolated(async { assert!(guests_only(true).await.is_ok()) }).await;
        assert!(guests_only(true).await.is_err());
    })
    .await;
}

#[test]
fn futures_are_send_if_plain_futures_are_send() {
    drop(is_send(bucket()));
    drop(is_send(by_length(Vec::new())));
    drop(is_send(patient()));
}

static PERIOD: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(60));

struct Patience(Duration);

/// A name that a pattern binds is a reference, as is the value of a `LazyLock`.
#[window_limiter(limit = 1, window = *PERIOD, deadline = *patience, wait = *patience)]
async fn dereferenced(Patience(patience): Patience) -> Result<Duration, Rejection> {
    Ok(patience)
}

#[tokio::test]
async fn dereferenced_durations_are_accepted() {
    let (limiter, clock) = fresh();
    limiter_core::annotations::with_limiter(limiter, async {
        let call = || dereferenced(Patience(Duration::from_secs(60)));
        assert!(call().await.is_ok());
        let (waited, ()) = tokio::join!(call(), async {
            tokio::task::yield_now().await;
            clock.advance(Duration::from_secs(60));
        });
        assert!(waited.is_ok());
    })
    .await;
}
