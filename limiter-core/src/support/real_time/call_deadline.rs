//! The deadlines of store calls.
//!
//! A call to Redis ends at its deadline, and a reply that arrived in time must not be lost: it may
//! have charged a permit. All waits for Redis have one mechanism: [`CallDeadline`] has the start
//! and the duration of a call's deadline, and [`last_polls`] takes a reply that is there when it
//! ends. The call of a batch waits until each deadline of its callers ([`reply_until`]).
//!
//! Tests: below, and `tests/paused_time.rs`.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::error::{StoreError, StoreErrorKind};
use crate::support::real_time::{Elapsed, after, timeout_at_pinned};

/// Number of turns that other tasks get after the deadline: the runtime polls its sockets, the
/// connection's task reads the reply, the batch's task distributes it, and the caller takes it.
const EXTRA_POLLS: usize = 4;

/// Start and duration of the deadline of a store call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallDeadline {
    started: Instant,
    deadline: Duration,
}

impl CallDeadline {
    /// Creates a deadline that starts now.
    pub(crate) fn after(deadline: Duration) -> Self {
        Self::since(Instant::now(), deadline)
    }

    /// Creates a deadline that started earlier.
    pub(crate) fn since(started: Instant, deadline: Duration) -> Self {
        Self { started, deadline }
    }

    /// Returns the total duration.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns whether it started before another deadline.
    pub(crate) fn began_before(&self, other: &Self) -> bool {
        self.started < other.started
    }

    /// Returns the end of the deadline.
    pub(crate) fn ends(&self) -> Instant {
        after(self.started, self.deadline)
    }

    /// Waits for the store's reply, at most until the deadline and the [`last_polls`]. The reply is
    /// pinned by the caller: a future that is passed to an `async fn` by value occupies its space
    /// twice, once as the argument and once where it is awaited, and each layer doubles it again.
    pub(crate) async fn within<T>(
        self,
        mut reply: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
    ) -> Result<T, StoreError> {
        if let Ok(reply) = timeout_at_pinned(self.started, self.ends(), reply.as_mut()).await {
            return reply;
        }
        let reply = last_polls(reply).await;
        reply.unwrap_or_else(|| Err(no_answer_within(self.deadline)))
    }

    /// Awaits a reply without a timer. If the caller drops the future after its deadline,
    /// `on_timeout` is called; an earlier cancellation is no sign of a failed server.
    pub(crate) async fn for_answer<T>(
        &self,
        answer: Pin<&mut impl Future<Output = T>>,
        on_timeout: impl FnOnce(),
    ) -> T {
        let mut observer = DeadlineObserver {
            wait: self,
            on_timeout: Some(on_timeout),
        };
        let answer = answer.await;
        observer.on_timeout = None;
        answer
    }

    /// Returns whether the deadline has passed. The caller's timer was created shortly before this
    /// deadline, hence the tolerance.
    pub(crate) fn is_overdue(&self) -> bool {
        let moment = Duration::from_millis(1).min(self.deadline / 8);
        self.started.elapsed() + moment >= self.deadline
    }
}

struct DeadlineObserver<'a, F: FnOnce()> {
    wait: &'a CallDeadline,
    on_timeout: Option<F>,
}

impl<F: FnOnce()> Drop for DeadlineObserver<'_, F> {
    fn drop(&mut self) {
        if let Some(on_timeout) = self.on_timeout.take() {
            if self.wait.is_overdue() {
                on_timeout();
            }
        }
    }
}

/// Waits for the store's reply, at most until a deadline that starts now; see
/// [`CallDeadline::within`].
pub(crate) async fn with_deadline<T>(
    deadline: Duration,
    reply: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    CallDeadline::after(deadline).within(pin!(reply)).await
}

/// Waits for a reply until a moment, and for the [`last_polls`].
pub(crate) async fn reply_until<T>(
    until: Instant,
    mut reply: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    match timeout_at_pinned(Instant::now(), until, reply.as_mut()).await {
        Ok(reply) => Some(reply),
        Err(Elapsed) => last_polls(reply).await,
    }
}

/// Polls a reply a few more times after its deadline.
///
/// If the whole process was stalled (a busy machine, a blocked thread), the reply may already be in
/// the socket when the timer fires. The last polls avoid the loss of a charged permit.
async fn last_polls<T>(mut reply: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    for _ in 0..EXTRA_POLLS {
        tokio::task::yield_now().await;
        if let Poll::Ready(reply) = poll_fn(|context| Poll::Ready(reply.as_mut().poll(context))).await {
            return Some(reply);
        }
    }
    None
}

/// Returns the error of a store that did not reply in time.
pub(crate) fn no_answer_within(deadline: Duration) -> StoreError {
    let detail = format!("no reply from the store within {deadline:?}");
    StoreError::new(StoreErrorKind::Timeout, detail)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn only_future_dropped_after_deadline_reports_timeout() {
        let wait = CallDeadline::after(Duration::from_millis(20));
        let mut on_timeout = 0;
        let mut never = pin!(pending::<()>());
        let cancelled = wait.for_answer(never.as_mut(), || on_timeout += 1);
        assert!(tokio::time::timeout(Duration::ZERO, cancelled).await.is_err());
        assert_eq!(on_timeout, 0);

        let in_vain = wait.for_answer(never, || on_timeout += 1);
        assert!(tokio::time::timeout(wait.deadline(), in_vain).await.is_err());
        assert_eq!(on_timeout, 1);

        wait.for_answer(pin!(ready(())), || on_timeout += 1).await;
        assert_eq!(on_timeout, 1);
    }

    /// A stalled process: the reply is there when the timer of its deadline fires.
    #[tokio::test]
    async fn reply_in_last_polls_is_taken() {
        let wait = CallDeadline::since(Instant::now(), Duration::ZERO);
        for polls in [1, EXTRA_POLLS] {
            let mut missing = polls;
            let late = poll_fn(|_| match missing {
                0 => Poll::Ready(Ok(7)),
                _ => {
                    missing -= 1;
                    Poll::Pending
                }
            });
            assert_eq!(wait.within(pin!(late)).await.ok(), Some(7), "{polls}");
        }
        let never = pin!(pending::<Result<(), StoreError>>());
        let error = wait.within(never).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
    }
}
