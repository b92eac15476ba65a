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
//! Tests: below, and `tests/paused_time.rs`.

#[cfg(feature = "redis")]
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

#[cfg(feature = "redis")]
use crate::error::{StoreError, StoreErrorKind};

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

/// Waits for the store's reply, at most until the deadline.
///
/// If the whole process was stalled (a busy machine, a blocked thread), the reply may already be in
/// the socket when the deadline's timer fires. To avoid the loss of a charged permit, the reply is
/// polled a few more times.
#[cfg(feature = "redis")]
pub(crate) async fn within<T>(
    deadline: Duration,
    reply: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    within_pinned(Instant::now(), deadline, pin!(reply)).await
}

/// As [`within`], for a pinned reply that has been awaited since `started`. A future that is passed
/// to an `async fn` by value occupies its space twice, once as the argument and once where it is
/// awaited, and each layer doubles it again.
#[cfg(feature = "redis")]
pub(crate) async fn within_pinned<T>(
    started: Instant,
    deadline: Duration,
    mut reply: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
) -> Result<T, StoreError> {
    let ends = after(started, deadline);
    if let Ok(reply) = timeout_at_pinned(started, ends, reply.as_mut()).await {
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
#[cfg(feature = "redis")]
pub(crate) fn no_answer_within(deadline: Duration) -> StoreError {
    let detail = format!("no reply from the store within {deadline:?}");
    StoreError::new(StoreErrorKind::Timeout, detail)
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

/// Ends at a real time, by a thread that sleeps until then.
struct Timer {
    fired: oneshot::Receiver<()>,
    /// Ends the thread when it is dropped.
    _cancel: Sender<()>,
}

impl Timer {
    fn new(until: Instant) -> Self {
        let (timer, thread) = Self::with_thread(until);
        // Without a thread the timer fires at once: the caller checks the time again, as after
        // every wake-up.
        let _ = thread::Builder::new().name("limiter-timer".into()).spawn(thread);
        timer
    }

    /// Keeps the runtime's paused time from advancing for as long as the timer exists.
    fn holding_time(until: Instant) -> Self {
        let (timer, thread) = Self::with_thread(until);
        drop(tokio::task::spawn_blocking(thread));
        timer
    }

    fn with_thread(until: Instant) -> (Self, impl FnOnce() + Send + 'static) {
        let (fire, fired) = oneshot::channel();
        let (cancel, cancelled): (Sender<()>, Receiver<()>) = mpsc::channel();
        let thread = move || {
            // No message is ever sent: the receive ends at the time, or when the timer is dropped.
            let _ = cancelled.recv_timeout(until.saturating_duration_since(Instant::now()));
            let _ = fire.send(());
        };
        let timer = Self {
            fired,
            _cancel: cancel,
        };
        (timer, thread)
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Without a thread the sender is dropped unused.
        let _ = ready!(Pin::new(&mut self.fired).poll(context));
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(30);
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn timeout_measures_real_time_and_holds_paused_time() {
        let (start, paused) = (Instant::now(), tokio::time::Instant::now());
        assert!(timeout(MOMENT, pending::<()>()).await.is_err());
        assert!(start.elapsed() >= MOMENT);
        assert_eq!(paused.elapsed(), Duration::ZERO);

        let (send, answer) = oneshot::channel();
        thread::spawn(move || {
            thread::sleep(MOMENT);
            send.send(7)
        });
        assert_eq!(timeout(LONG, answer).await, Ok(Ok(7)));
        assert_eq!(paused.elapsed(), Duration::ZERO);
        // Afterwards the time advances again.
        tokio::time::sleep(LONG).await;
        assert!(paused.elapsed() >= LONG);
    }

    #[tokio::test(start_paused = true)]
    async fn sleep_measures_real_time_and_lets_paused_time_advance() {
        let start = Instant::now();
        sleep(MOMENT).await;
        assert!(start.elapsed() >= MOMENT);
        let sleeping = pin!(sleep(LONG * 60));
        let first = tokio::select! {
            () = sleeping => "real",
            () = tokio::time::sleep(LONG) => "paused",
        };
        assert_eq!(first, "paused");
    }

    #[tokio::test]
    async fn timers_detect_time_paused_during_wait() {
        let start = Instant::now();
        let pause = async {
            tokio::task::yield_now().await;
            tokio::time::pause();
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = async {
                assert!(timeout(MOMENT, pending::<()>()).await.is_err());
                assert!(start.elapsed() >= MOMENT);
                sleep(MOMENT).await;
            } => {}
            () = pause => {}
        }
        assert!(start.elapsed() >= 2 * MOMENT);
    }

    #[tokio::test]
    async fn running_time_is_not_detected_as_paused() {
        for _ in 0..1_000 {
            assert!(!is_paused(Instant::now()));
            tokio::task::yield_now().await;
        }
    }
}
