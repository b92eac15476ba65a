//! How long a caller waits, and what is made of it that he has waited in vain.

use std::pin::Pin;
use std::time::{Duration, Instant};

const FOR_EVER: Duration = Duration::from_secs(86_400);

/// The time that a caller has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallDeadline {
    started: Instant,
    deadline: Duration,
}

impl CallDeadline {
    /// It begins now.
    pub(crate) fn after(deadline: Duration) -> Self {
        Self::since(Instant::now(), deadline)
    }

    /// It began before.
    pub(crate) fn since(started: Instant, deadline: Duration) -> Self {
        Self { started, deadline }
    }

    /// How long the caller waits in all.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Whether it began before another.
    pub(crate) fn began_before(&self, other: &Self) -> bool {
        self.started < other.started
    }

    /// When his time is up.
    pub(crate) fn ends(&self) -> Instant {
        // A deadline beyond what the clock can tell is as good as none.
        self.started
            .checked_add(self.deadline)
            .unwrap_or(self.started + FOR_EVER)
    }

    /// Awaits an answer. A caller whose time is up drops what he waits for: then `overdue` is
    /// called. One who gave up earlier says nothing about the server. The answer is pinned by
    /// whoever wants it, since a future that is given by value takes its room twice.
    pub(crate) async fn for_answer<T>(
        &self,
        answer: Pin<&mut impl Future<Output = T>>,
        overdue: impl FnOnce(),
    ) -> T {
        let mut watch = DeadlineObserver {
            wait: self,
            overdue: Some(overdue),
        };
        let answer = answer.await;
        watch.overdue = None;
        answer
    }

    /// Whether the caller's time is up. His timer was set a moment before this was made.
    fn is_overdue(&self) -> bool {
        let moment = Duration::from_millis(1).min(self.deadline / 8);
        self.started.elapsed() + moment >= self.deadline
    }
}

struct DeadlineObserver<'a, F: FnOnce()> {
    wait: &'a CallDeadline,
    overdue: Option<F>,
}

impl<F: FnOnce()> Drop for DeadlineObserver<'_, F> {
    fn drop(&mut self) {
        if let Some(overdue) = self.overdue.take() {
            if self.wait.is_overdue() {
                overdue();
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
    async fn only_who_waited_in_vain_until_his_time_was_up_is_overdue() {
        let wait = CallDeadline::after(Duration::from_millis(20));
        let mut overdue = 0;
        let mut never = pin!(pending::<()>());
        let cancelled = wait.for_answer(never.as_mut(), || overdue += 1);
        assert!(tokio::time::timeout(Duration::ZERO, cancelled).await.is_err());
        assert_eq!(overdue, 0);

        let in_vain = wait.for_answer(never, || overdue += 1);
        assert!(tokio::time::timeout(wait.deadline(), in_vain).await.is_err());
        assert_eq!(overdue, 1);

        wait.for_answer(pin!(ready(())), || overdue += 1).await;
        assert_eq!(overdue, 1);
    }
}
