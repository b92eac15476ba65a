//! Bounds the time that an answer may take.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::error::{StoreError, StoreErrorKind};
use crate::support::real_time;

/// So often the other tasks may run after the deadline: the runtime looks at its sockets, the
/// connection's task reads the reply, the batch's task hands it out, and the caller takes it.
const LAST_LOOKS: usize = 4;

/// Waits for the store's answer, at most until the deadline.
///
/// Where the whole process stood still (a busy machine, a thread that was blocked), the reply may
/// lie in the socket when the deadline's timer fires. A permit that was charged is not thrown away
/// for that: the reply is looked at once more.
pub(crate) async fn within<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    within_pinned(Instant::now(), deadline, pin!(answer)).await
}

/// The same for an answer that has been waited for since `started`, and lies somewhere already.
/// What an `async fn` is given by value takes its room twice, once where it is given and once where
/// it is awaited, and each layer doubles it again; a call's future shall be small.
pub(crate) async fn within_pinned<T>(
    started: Instant,
    deadline: Duration,
    mut answer: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
) -> Result<T, StoreError> {
    let ends = real_time::after(started, deadline);
    if let Ok(answer) = real_time::timeout_at_pinned(ends, answer.as_mut()).await {
        return answer;
    }
    for _ in 0..LAST_LOOKS {
        tokio::task::yield_now().await;
        if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await {
            return answer;
        }
    }
    Err(no_answer_within(deadline))
}

/// What is told of a store that did not answer in time.
pub(crate) fn no_answer_within(deadline: Duration) -> StoreError {
    let detail = format!("no reply from the store within {deadline:?}");
    StoreError::new(StoreErrorKind::Timeout, detail)
}
