//! Clocks: the system clock and a manual clock for tests.
//!
//! Decisions need a time that never steps back, so the system clock is read once in each process
//! and advanced by the monotonic clock. Calendar periods use the current setting of the system
//! clock. A manual clock moves only on request and wakes the waiters whose time has come.
//!
//! Tests: `tests/contract/time.rs`, `memory/tests.rs`, `tests/paused_time.rs`.

mod tsc;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use crate::support::real_time;
use crate::units::{MAX_EXACT, Timestamp, micros_ceil};

/// The last time from which the longest span ends within the exact arithmetic: in the year 2112.
const LAST: Timestamp = Timestamp::from_micros(MAX_EXACT);

/// A clock that moves only on request, between the first microsecond of 1970 and the year 2112.
/// Share it with a limiter by [`InProcessBuilder::clock`](crate::InProcessBuilder::clock).
///
/// Waits use this clock too: a test has to [`advance`](Self::advance) it while a call waits.
/// Tokio's own paused time does not move a limiter: without a `ManualClock` its waits and the
/// deadlines of Redis take real time, also in a test with `start_paused = true`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::{Limiter, ManualClock, Policy};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let limits = Limiter::in_process().clock(&clock).build();
/// let policy = Policy::sliding_window("send").limit(1).window("1m").build()?;
///
/// assert!(limits.check(&policy, "ann").await?.is_allowed());
/// assert!(!limits.check(&policy, "ann").await?.is_allowed());
/// clock.advance(Duration::from_secs(60));
/// assert!(limits.check(&policy, "ann").await?.is_allowed());
/// # Ok::<(), limiter_core::Rejection>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct ManualClock {
    now: Arc<watch::Sender<Timestamp>>,
    /// Microseconds by which the calendar is ahead of the monotonic time.
    #[cfg(test)]
    ahead: Arc<std::sync::atomic::AtomicI64>,
}

impl ManualClock {
    /// Creates a clock at a time in the year 2023.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Timestamp::from_micros(1_700_000_000_000_000))
    }

    /// Creates a clock at `moment`.
    #[must_use]
    pub fn starting_at(moment: Timestamp) -> Self {
        let now = Arc::new(watch::Sender::new(clamped(moment)));
        Self {
            now,
            #[cfg(test)]
            ahead: Arc::default(),
        }
    }

    /// Sets the calendar ahead of the monotonic time, or back: as after a suspend, or a step of the
    /// system clock.
    #[cfg(test)]
    pub(crate) fn set_calendar_ahead(&self, micros: i64) {
        self.ahead.store(micros, std::sync::atomic::Ordering::SeqCst);
    }

    #[cfg(test)]
    fn calendar(&self) -> Timestamp {
        let ahead = self.ahead.load(std::sync::atomic::Ordering::SeqCst);
        Timestamp::from_micros(self.now().as_micros().saturating_add_signed(ahead))
    }

    /// Returns the current time of the clock.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    /// Advances the clock (rounded up to a microsecond), and wakes waiters whose time has come.
    pub fn advance(&self, span: Duration) {
        self.now.send_modify(|now| *now = clamped(now.after(span)));
    }

    /// Steps the clock back, as a failover to a server with another clock does.
    pub fn step_back(&self, span: Duration) {
        self.set(Timestamp::from_micros(
            self.now().as_micros().saturating_sub(micros_ceil(span)),
        ));
    }

    /// Sets the clock to `moment`, later or earlier.
    pub fn set(&self, moment: Timestamp) {
        self.now.send_replace(clamped(moment));
    }
}

fn clamped(moment: Timestamp) -> Timestamp {
    moment.clamp(Timestamp::from_micros(1), LAST)
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}

/// The system clock, which is read once per process, plus the monotonic time since then.
#[derive(Clone, Copy, Debug)]
struct System {
    start: Timestamp,
    elapsed: Duration,
}

impl System {
    fn get() -> Self {
        static START: OnceLock<(Timestamp, Instant)> = OnceLock::new();
        let (start, instant) = START.get_or_init(|| (Timestamp::from(SystemTime::now()), Instant::now()));
        Self {
            start: *start,
            elapsed: instant.elapsed(),
        }
    }

    fn timestamp(self) -> Timestamp {
        // 64 bits cover half a million years; 128-bit arithmetic is slower.
        let micros = self.elapsed.as_secs().saturating_mul(1_000_000);
        let micros = micros.saturating_add(self.elapsed.subsec_micros().into());
        Timestamp::from_micros(self.start.as_micros().saturating_add(micros))
    }
}

/// The clock of a limiter.
#[derive(Clone, Debug, Default)]
pub(crate) enum Clock {
    #[default]
    System,
    Manual(ManualClock),
}

impl Clock {
    /// Returns the time of the clock. The system clock never steps back within a process: it is
    /// read once and then advanced by the monotonic clock.
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::System => System::get().timestamp(),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Returns the calendar time, for user-defined dates and calendar periods: the current setting
    /// of the system clock, which may have been stepped, or have advanced during a suspend, since
    /// the process first read it.
    pub(crate) fn calendar(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::from(SystemTime::now()),
            #[cfg(not(test))]
            Self::Manual(clock) => clock.now(),
            #[cfg(test)]
            Self::Manual(clock) => clock.calendar(),
        }
    }

    /// Returns the time of a manual clock.
    #[cfg(feature = "redis")]
    pub(crate) fn injected(&self) -> Option<Timestamp> {
        match self {
            Self::System => None,
            Self::Manual(clock) => Some(clock.now()),
        }
    }

    /// Converts a span of this clock to real time: unbounded for a manual clock, which moves
    /// independently.
    pub(crate) fn real(&self, span: Duration) -> Duration {
        match self {
            Self::System => span,
            Self::Manual(_) => Duration::MAX,
        }
    }

    /// Returns the time of this clock at which `span` has passed since a store decision that was
    /// just received.
    pub(crate) fn due(&self, decided_at: Timestamp, span: Duration) -> Timestamp {
        match self {
            // The store's time may come from another machine.
            Self::System => self.now().after(span),
            // The test may have moved the clock since then.
            Self::Manual(_) => decided_at.after(span),
        }
    }

    /// Waits for a time of this clock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn sleep_until(&self, moment: Timestamp) {
        match self {
            // The timer fires late by up to a millisecond, never early.
            Self::System => real_time::sleep(moment.since(self.now())).await,
            Self::Manual(clock) => {
                // The sender is held by `clock`, so the channel cannot close.
                let _ = clock.now.subscribe().wait_for(|now| *now >= moment).await;
            }
        }
    }

    /// Waits until `span` has passed since `moment`, which the caller has just read from this
    /// clock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn sleep(&self, moment: Timestamp, span: Duration) {
        match self {
            // The time may come from another machine. The timer fires late by up to a millisecond,
            // never early.
            Self::System => real_time::sleep(span).await,
            // Counted from `moment` and not from now: the test may have moved the clock in between.
            Self::Manual(clock) => {
                let until = moment.after(span);
                // The sender is held by `clock`, so the channel cannot close.
                let _ = clock.now.subscribe().wait_for(|now| *now >= until).await;
            }
        }
    }
}
