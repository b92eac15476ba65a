//! What is known about a connection without asking.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bb8_redis::redis::{ErrorKind, RedisError, ServerErrorKind};

/// So many calls in quick succession without an answer, over so many deadlines and this long at
/// least, and the connection is taken for dead …
const CALLS_UNTIL_SILENT: u32 = 3;
const DEADLINES_UNTIL_SILENT: u32 = 2;
const LEAST_PATIENCE: Duration = Duration::from_millis(100);
/// … and so is one on which so many calls ran into their deadlines, or one after this time without
/// an answer. Shorter deadlines than this do not count.
const TIMEOUTS_UNTIL_BROKEN: u32 = 2;
const QUIET: Duration = Duration::from_secs(1);
const LEAST_TELLING: Duration = Duration::from_millis(20);
/// A connection younger than this is not given up for one to a better server.
const LEAST_AGE: Duration = Duration::from_millis(200);

/// How a connection is doing.
#[derive(Debug)]
pub(crate) struct Health {
    born: Instant,
    broken: AtomicBool,
    silence: Mutex<Silence>,
    /// A message came, or the connection broke.
    #[cfg(feature = "registry")]
    news: tokio::sync::Notify,
}

/// Since the last answer.
#[derive(Debug)]
struct Silence {
    answered_at: Instant,
    timeouts: u32,
    /// Calls in quick succession …
    calls: u32,
    /// … the first of them, and the last.
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
            news: tokio::sync::Notify::new(),
        }
    }

    /// Whether a call of this deadline should use the connection.
    pub(crate) fn is_good(&self, deadline: Duration) -> bool {
        if self.is_silent(LEAST_PATIENCE.max(deadline * DEADLINES_UNTIL_SILENT)) {
            self.break_off();
        }
        !self.is_broken()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// The connection is of no use any more.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Relaxed);
        #[cfg(feature = "registry")]
        self.news.notify_one();
    }

    /// A message came on a channel to which the connection is subscribed.
    #[cfg(feature = "registry")]
    pub(crate) fn message_came(&self) {
        self.news.notify_one();
    }

    /// Waits until a message has come since the last time, or the connection is broken; for one who
    /// waits at a time.
    #[cfg(feature = "registry")]
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// A call is about to be sent.
    pub(crate) fn on_query(&self) {
        let (mut silence, now) = (self.silence(), Instant::now());
        // Calls of long ago were cancelled, and their answers dropped unseen.
        if silence.calls == 0 || now.duration_since(silence.last) > LEAST_PATIENCE {
            (silence.calls, silence.first) = (0, now);
        }
        silence.calls += 1;
        silence.last = now;
    }

    /// An answer came, be it with an error.
    pub(crate) fn answered(&self, error: Option<&RedisError>) {
        let mut silence = self.silence();
        (silence.answered_at, silence.timeouts, silence.calls) = (Instant::now(), 0, 0);
        drop(silence);
        let Some(error) = error else { return };
        let connection_lost = error.is_unrecoverable_error() || error.is_io_error();
        // One that is new leads to the same server again.
        if connection_lost || (is_demoted(error) && self.born.elapsed() >= LEAST_AGE) {
            self.break_off();
        }
    }

    /// A call ran into its deadline. On a connection that was quiet before, that is enough.
    pub(crate) fn timed_out(&self, deadline: Duration) {
        // One that is shorter than a slow network tells nothing about the connection.
        if deadline < LEAST_TELLING {
            return;
        }
        let mut silence = self.silence();
        silence.timeouts += 1;
        if silence.timeouts >= TIMEOUTS_UNTIL_BROKEN || silence.answered_at.elapsed() >= QUIET {
            self.break_off();
        }
    }

    /// Whether several calls in quick succession, over this time, got no answer. Cancelled ones
    /// count too, since callers without patience would otherwise never learn that the server is
    /// gone.
    fn is_silent(&self, patience: Duration) -> bool {
        let silence = self.silence();
        silence.calls >= CALLS_UNTIL_SILENT && silence.first.elapsed() >= patience
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a new connection may lead to a better server: after a failover behind one address it
/// leads to the new primary. Servers before 7.0 wrap the error of a script's command into one of
/// the script.
fn is_demoted(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading)
    ) || error.detail().is_some_and(|detail| detail.contains("-READONLY"))
}
