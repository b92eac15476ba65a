//! The deadline of a request of Envoy.
//!
//! Each decision of a request ends at its own deadline and then uses the fallback of its policy.
//! If the process was suspended, for example on a busy machine, the deadline of the request passes
//! in the same turn of the runtime. The fallback then gets a few more turns, since its answer may
//! still arrive before Envoy's timeout, and an error never helps Envoy.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The turns after the deadline. The library needs four to read a reply that has arrived, and one
/// to decide without it.
const EXTRA_TURNS: usize = 16;

/// Awaits the decisions of a request; `None` if they exceed the deadline.
pub(super) async fn within<T>(deadline: Duration, decisions: impl Future<Output = T>) -> Option<T> {
    let mut decisions = pin!(decisions);
    if let Ok(decided) = tokio::time::timeout(deadline, decisions.as_mut()).await {
        return Some(decided);
    }
    for _ in 0..EXTRA_TURNS {
        tokio::task::yield_now().await;
        if let Poll::Ready(decided) = poll_fn(|context| Poll::Ready(decisions.as_mut().poll(context))).await {
            return Some(decided);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(5);

    /// Returns a decision that ends a few turns after its own deadline, as those of the library.
    async fn fallback() -> u8 {
        tokio::time::sleep(DEADLINE).await;
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        7
    }

    #[tokio::test]
    async fn suspended_process_does_not_lose_the_fallback() {
        let suspend = async { std::thread::sleep(DEADLINE * 4) };
        let decided = async { tokio::join!(biased; within(DEADLINE * 2, fallback()), suspend).0 };
        assert_eq!(decided.await, Some(7));
    }

    #[tokio::test]
    async fn decision_after_the_deadline_is_abandoned() {
        assert_eq!(within(DEADLINE, pending::<()>()).await, None);
    }
}
