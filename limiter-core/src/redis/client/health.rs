//! Health of a connection, derived from the results of its calls without extra commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::sync::{Mutex, MutexGuard};

use bb8_redis::redis::{ErrorKind, RedisError, ServerErrorKind};

/// A connection without a reply to this number of calls in quick succession, over at least this
/// number of deadlines and this time, counts as dead.
const CALLS_UNTIL_SILENT: u32 = 3;
const DEADLINES_UNTIL_SILENT: u32 = 2;
const MIN_SILENCE: Duration = Duration::from_millis(100);
/// A connection also counts as dead after this number of timed-out calls, or after one timed-out
/// call on a connection without a reply for `QUIET`. Shorter deadlines than `MIN_DEADLINE` do not
/// count.
const TIMEOUTS_UNTIL_BROKEN: u32 = 2;
const QUIET: Duration = Duration::from_secs(1);
const MIN_DEADLINE: Duration = Duration::from_millis(20);
/// A younger connection is kept although its server was demoted, since a new one may lead to the
/// same server.
const MIN_AGE: Duration = Duration::from_millis(200);

/// Health state of one connection.
#[derive(Debug)]
pub(crate) struct Health {
    born: Instant,
    broken: AtomicBool,
    silence: Mutex<Silence>,
    /// Notified when a message arrived or the connection broke.
    #[cfg(feature = "registry")]
    message_or_end: tokio::sync::Notify,
}

/// Calls and timeouts since the last reply.
#[derive(Debug)]
struct Silence {
    answered_at: Instant,
    timeouts: u32,
    /// Calls in quick succession.
    calls: u32,
    /// Times of the first and of the last of these calls.
    first: Instant,
    last: Instant,
}

impl Health {
    pub(crate) fn new() -> Self {
        let born = Instant::now();
        let silence = Silence {
            answered_at: born,
            timeouts: 0,
            calls: 0,
            first: born,
            last: born,
        };
        Self {
            born,
            broken: AtomicBool::new(false),
            silence: Mutex::new(silence),
            #[cfg(feature = "registry")]
            message_or_end: tokio::sync::Notify::new(),
        }
    }

    /// Returns whether a call with this deadline should use the connection.
    pub(crate) fn is_good(&self, deadline: Duration) -> bool {
        if self.is_silent(MIN_SILENCE.max(deadline * DEADLINES_UNTIL_SILENT)) {
            self.break_off();
        }
        !self.is_broken()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Marks the connection as unusable.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Relaxed);
        #[cfg(feature = "registry")]
        self.message_or_end.notify_one();
    }

    /// Records a message on a subscribed channel.
    #[cfg(feature = "registry")]
    pub(crate) fn on_message(&self) {
        self.message_or_end.notify_one();
    }

    /// Waits until a message arrives or the connection breaks. A message since the previous wait
    /// counts. Supports one waiter at a time.
    #[cfg(feature = "registry")]
    pub(crate) async fn message_or_end(&self) {
        self.message_or_end.notified().await;
    }

    /// Records that a call is about to be sent.
    pub(crate) fn on_query(&self) {
        let (mut silence, now) = (self.silence(), Instant::now());
        // Older calls were cancelled, and their replies dropped unseen.
        if silence.calls == 0 || now.duration_since(silence.last) > MIN_SILENCE {
            (silence.calls, silence.first) = (0, now);
        }
        silence.calls += 1;
        silence.last = now;
    }

    /// Records a reply, including an error reply.
    pub(crate) fn answered(&self, error: Option<&RedisError>) {
        let mut silence = self.silence();
        (silence.answered_at, silence.timeouts, silence.calls) = (Instant::now(), 0, 0);
        drop(silence);
        let Some(error) = error else { return };
        let connection_lost = error.is_unrecoverable_error() || error.is_io_error();
        // A new connection may lead to the same demoted server again.
        if connection_lost || (is_demoted(error) && self.born.elapsed() >= MIN_AGE) {
            self.break_off();
        }
    }

    /// Records a call that exceeded its deadline. On a connection that was quiet before, one such
    /// call suffices.
    pub(crate) fn timed_out(&self, deadline: Duration) {
        // A deadline shorter than a slow network's round trip proves nothing.
        if deadline < MIN_DEADLINE {
            return;
        }
        let mut silence = self.silence();
        silence.timeouts += 1;
        if silence.timeouts >= TIMEOUTS_UNTIL_BROKEN || silence.answered_at.elapsed() >= QUIET {
            self.break_off();
        }
    }

    /// Returns whether several calls in quick succession got no reply for this time. Cancelled
    /// calls count too: otherwise callers with short deadlines would never detect a dead server.
    fn is_silent(&self, min_silence: Duration) -> bool {
        let silence = self.silence();
        silence.calls >= CALLS_UNTIL_SILENT && silence.first.elapsed() >= min_silence
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock()
    }
}

/// Returns whether a new connection may lead to a better server: after a failover behind one
/// address, it leads to the new primary. Servers before 7.0 wrap the error of a script's command
/// into a script error.
fn is_demoted(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading)
    ) || error.detail().is_some_and(|detail| detail.contains("-READONLY"))
}
