//! Deadlines of store calls.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::error::{StoreError, StoreErrorKind};
use crate::support::real_time;

/// Number of turns that other tasks get after the deadline: the runtime polls its sockets, the
/// connection's task reads the reply, the batch's task distributes it, and the caller takes it.
const EXTRA_POLLS: usize = 4;

/// Waits for the store's reply, at most until the deadline.
///
/// If the whole process was stalled (a busy machine, a blocked thread), the reply may already be in
/// the socket when the deadline's timer fires. To avoid the loss of a charged permit, the reply is
/// polled a few more times.
pub(crate) async fn within<T>(
    deadline: Duration,
    reply: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    within_pinned(Instant::now(), deadline, pin!(reply)).await
}

/// As [`within`], for a pinned reply that has been awaited since `started`. A future that is passed
/// to an `async fn` by value occupies its space twice, once as the argument and once where it is
/// awaited, and each layer doubles it again.
pub(crate) async fn within_pinned<T>(
    started: Instant,
    deadline: Duration,
    mut reply: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
) -> Result<T, StoreError> {
    let ends = real_time::after(started, deadline);
    if let Ok(reply) = real_time::timeout_at_pinned(started, ends, reply.as_mut()).await {
        return reply;
    }
    for _ in 0..EXTRA_POLLS {
        tokio::task::yield_now().await;
        if let Poll::Ready(reply) = poll_fn(|context| Poll::Ready(reply.as_mut().poll(context))).await {
            return reply;
        }
    }
    Err(no_answer_within(deadline))
}

/// Returns the error of a store that did not reply in time.
pub(crate) fn no_answer_within(deadline: Duration) -> StoreError {
    let detail = format!("no reply from the store within {deadline:?}");
    StoreError::new(StoreErrorKind::Timeout, detail)
}
