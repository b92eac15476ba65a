//! The deadline of a call, and the detection of calls that exceeded it.

use std::pin::Pin;
use std::time::{Duration, Instant};

/// Replaces deadlines beyond the range of the clock.
const FOR_EVER: Duration = Duration::from_secs(86_400);

/// Start and duration of a call's deadline.
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
        // A deadline beyond the clock's range is treated as unlimited.
        self.started
            .checked_add(self.deadline)
            .unwrap_or(self.started + FOR_EVER)
    }

    /// Awaits a reply. If the caller drops the future after its deadline, `on_timeout` is called;
    /// an earlier cancellation says nothing about the server. The reply is pinned by the caller,
    /// since a future that is passed by value occupies its size twice.
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

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;

    use crate::redis::call_deadline::*;

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
}
