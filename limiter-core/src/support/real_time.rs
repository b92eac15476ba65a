//! Timers that measure real time, even if a test has paused the time of the runtime: sleeps,
//! timeouts, and the deadlines of store calls.
//!
//! Under `tokio::time::pause`, Tokio's timers do not measure real time: as soon as all tasks are
//! idle, the time jumps to the next timer. A task that waits for a socket is idle, so the deadline
//! of a call to Redis would end before the reply can arrive; and a wait for a permit, which is due
//! in real time, would poll its timer in a loop. Every timer here therefore compares its end with
//! the clock of the operating system, and a thread wakes it if the runtime's time is paused.
//!
//! A *timeout* keeps the paused time from advancing while it lasts (Tokio does not advance it
//! during `spawn_blocking`), so that no other timer fires while a reply is pending. A *sleep* lets
//! it advance, because an early end of the sleep may depend on a timer of the test. If the time is
//! not paused, each timer costs two more clock readings than Tokio's.
//!
//! All waits for Redis have one mechanism of deadlines: [`CallDeadline`] has the start and the
//! duration of a call's deadline, and [`last_polls`] takes a reply that is there when it ends. The
//! call of a batch waits until each deadline of its callers ([`reply_until`]).
//!
//! Tests: `real_time/tests.rs`, `tests/paused_time.rs`.

mod timer;

#[cfg(feature = "redis")]
use std::future::poll_fn;
use std::pin::{Pin, pin};
#[cfg(feature = "redis")]
use std::task::Poll;
use std::time::{Duration, Instant};

#[cfg(feature = "redis")]
use crate::error::{StoreError, StoreErrorKind};
use crate::support::real_time::timer::Timer;

/// The timeout ended before the future completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elapsed;

/// A timer beyond the range of the clock fires after a day.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The time by which a timer may be late, and a little for the reply. Waits of less time are
/// extended to it, so that they can end with an answer.
pub(crate) const LATE_TIMER: Duration = Duration::from_millis(10);

/// Number of turns that other tasks get after the deadline: the runtime polls its sockets, the
/// connection's task reads the reply, the batch's task distributes it, and the caller takes it.
#[cfg(feature = "redis")]
const EXTRA_POLLS: usize = 4;

/// Returns the time at which `span` has passed since `start`.
pub(crate) fn after(start: Instant, span: Duration) -> Instant {
    start.checked_add(span).unwrap_or(start + LONGEST)
}

/// Sleeps for `span` of real time.
///
/// # Cancel safety
///
/// Cancel safe.
pub(crate) async fn sleep(span: Duration) {
    let start = Instant::now();
    let until = after(start, span);
    if !is_paused(start) {
        tokio::time::sleep_until(until.into()).await;
        if Instant::now() >= until {
            return;
        }
    }
    Box::pin(Timer::new(until)).await;
}

/// Waits for `future` for at most `span` of real time.
///
/// # Cancel safety
///
/// As that of `future`.
pub(crate) async fn timeout<F: Future>(span: Duration, future: F) -> Result<F::Output, Elapsed> {
    let start = Instant::now();
    timeout_at_pinned(start, after(start, span), pin!(future)).await
}

/// Waits for `future` until a real time.
///
/// # Cancel safety
///
/// As that of `future`.
#[cfg(feature = "redis")]
pub(crate) async fn timeout_at<F: Future>(until: Instant, future: F) -> Result<F::Output, Elapsed> {
    timeout_at_pinned(Instant::now(), until, pin!(future)).await
}

/// As [`timeout_at`], for a pinned future: a future that is passed by value occupies its space
/// twice. `start` is a reading of the clock shortly before the call.
///
/// # Cancel safety
///
/// As that of `future`.
pub(crate) fn timeout_at_pinned<T>(
    start: Instant,
    until: Instant,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> impl Future<Output = Result<T, Elapsed>> {
    // Outside of the future, so that the future does not contain `start`.
    let is_paused = is_paused(start);
    async move {
        if !is_paused {
            let output = tokio::time::timeout_at(until.into(), future.as_mut()).await;
            // Tokio's timers fire early only if the time was paused meanwhile.
            if output.is_ok() || Instant::now() >= until {
                return output.map_err(|_| Elapsed);
            }
        }
        Box::pin(timeout_while_paused(until, future)).await
    }
}

async fn timeout_while_paused<T>(
    until: Instant,
    future: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Elapsed> {
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = Timer::holding_time(until) => Err(Elapsed),
    }
}

/// Returns whether the runtime's timers do not measure real time. `start` is an earlier reading of
/// the clock.
fn is_paused(start: Instant) -> bool {
    let timers = tokio::time::Instant::now().into_std();
    timers < start || timers > Instant::now()
}

/// Start and duration of the deadline of a store call.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallDeadline {
    started: Instant,
    deadline: Duration,
}

#[cfg(feature = "redis")]
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

#[cfg(feature = "redis")]
struct DeadlineObserver<'a, F: FnOnce()> {
    wait: &'a CallDeadline,
    on_timeout: Option<F>,
}

#[cfg(feature = "redis")]
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
#[cfg(feature = "redis")]
pub(crate) async fn within<T>(
    deadline: Duration,
    reply: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    CallDeadline::after(deadline).within(pin!(reply)).await
}

/// Waits for a reply until a moment, and for the [`last_polls`].
#[cfg(feature = "redis")]
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
#[cfg(feature = "redis")]
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
#[cfg(feature = "redis")]
pub(crate) fn no_answer_within(deadline: Duration) -> StoreError {
    let detail = format!("no reply from the store within {deadline:?}");
    StoreError::new(StoreErrorKind::Timeout, detail)
}

#[cfg(test)]
mod tests;
