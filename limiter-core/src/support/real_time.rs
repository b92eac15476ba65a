//! Timers that measure real time, even if a test has paused the time of the runtime: sleeps and
//! timeouts, and in `call_deadline` the deadlines of store calls.
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
//! Tests: `real_time/tests.rs`, `tests/paused_time.rs`.

#[cfg(feature = "redis")]
mod call_deadline;
mod timer;

use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

#[cfg(feature = "redis")]
pub(crate) use crate::support::real_time::call_deadline::{
    CallDeadline, no_answer_within, reply_until, with_deadline,
};
use crate::support::real_time::timer::Timer;

/// The timeout ended before the future completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elapsed;

/// A timer beyond the range of the clock fires after thirty years, which no process reaches.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The time by which a timer may be late, and a little for the reply. Waits of less time are
/// extended to it, so that they can end with an answer.
pub(crate) const LATE_TIMER: Duration = Duration::from_millis(10);

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

#[cfg(test)]
mod tests;
