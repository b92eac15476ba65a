//! Where the time comes from, and how tests take it into their own hands.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod tsc;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use crate::support::real_time;
use crate::units::{MAX_EXACT, Timestamp, micros_ceil};

/// The last moment after which the longest span still ends within the exact arithmetic: in the year 2112.
const LAST: Timestamp = Timestamp::from_micros(MAX_EXACT);

/// A clock that moves only when it is told to, between the first microsecond of 1970 and the year 2112.
/// Share it with a limiter by [`InProcessBuilder::clock`](crate::InProcessBuilder::clock).
///
/// Waits are measured by this clock too: somebody has to [`advance`](Self::advance) it while a call
/// waits. Tokio's own paused time does not move a limiter: without a `ManualClock` its waits and
/// the deadlines of Redis take real time, also in a test with `start_paused = true`.
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
    /// By so many microseconds the calendar is ahead of what has passed.
    #[cfg(test)]
    ahead: Arc<std::sync::atomic::AtomicI64>,
}

impl ManualClock {
    /// A clock that stands at a moment in the year 2023.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Timestamp::from_micros(1_700_000_000_000_000))
    }

    /// A clock that stands at `moment`.
    #[must_use]
    pub fn starting_at(moment: Timestamp) -> Self {
        let now = Arc::new(watch::Sender::new(within_reach(moment)));
        Self {
            now,
            #[cfg(test)]
            ahead: Arc::default(),
        }
    }

    /// Sets the calendar ahead of what has passed, or back: as after a suspend, or a step of the
    /// system's clock.
    #[cfg(test)]
    pub(crate) fn set_calendar_ahead(&self, micros: i64) {
        self.ahead.store(micros, std::sync::atomic::Ordering::SeqCst);
    }

    #[cfg(test)]
    fn calendar(&self) -> Timestamp {
        let ahead = self.ahead.load(std::sync::atomic::Ordering::SeqCst);
        Timestamp::from_micros(self.now().as_micros().saturating_add_signed(ahead))
    }

    /// The moment at which the clock stands.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    /// Moves the clock on (rounded up to a microsecond), and wakes those who wait for a moment that
    /// has come.
    pub fn advance(&self, span: Duration) {
        self.now.send_modify(|now| *now = within_reach(now.after(span)));
    }

    /// Steps the clock back, as a failover to a server with another clock does.
    pub fn step_back(&self, span: Duration) {
        self.set(Timestamp::from_micros(
            self.now().as_micros().saturating_sub(micros_ceil(span)),
        ));
    }

    /// Puts the clock at `moment`, later or earlier.
    pub fn set(&self, moment: Timestamp) {
        self.now.send_replace(within_reach(moment));
    }
}

fn within_reach(moment: Timestamp) -> Timestamp {
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

/// The system's clock, as it is read once in a process, and what has passed since then.
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
        // In 64 bits: half a million years fit, and 128 take longer.
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
    /// The clock's moment. The system's never runs back within a process: it is read once, and then
    /// moves with the monotonic clock.
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::System => System::get().timestamp(),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// The moment by the calendar, for what ends at a date that a person gave and for periods of
    /// the calendar: the system's as it is set now, which may have been stepped, or have gone on
    /// while the machine was suspended, since the process first read it.
    pub(crate) fn calendar(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::from(SystemTime::now()),
            #[cfg(not(test))]
            Self::Manual(clock) => clock.now(),
            #[cfg(test)]
            Self::Manual(clock) => clock.calendar(),
        }
    }

    /// The moment at a third of the price, where the processor has a counter that serves: to two
    /// microseconds, by which different threads may also disagree. Whoever needs their readings in
    /// order uses [`in_order`](Self::in_order).
    #[inline]
    pub(crate) fn reading(&self) -> Timestamp {
        match self {
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            Self::System => tsc::now(),
            _ => self.now(),
        }
    }

    /// The moment of a decision that comes after one of `last`, from a reading made `before` it was
    /// known what came last. The system's clock never runs back, so the later of the two is as good
    /// as another reading; a test's may have been set back.
    #[inline]
    pub(crate) fn in_order(&self, before: Timestamp, last: Timestamp) -> Timestamp {
        match self {
            Self::System => before.max(last),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// The injected moment, where the clock is a test's.
    #[cfg(feature = "redis")]
    pub(crate) fn injected(&self) -> Option<Timestamp> {
        match self {
            Self::System => None,
            Self::Manual(clock) => Some(clock.now()),
        }
    }

    /// Real time for a span on this clock: unbounded on a test's, which moves when the test wants.
    pub(crate) fn real(&self, span: Duration) -> Duration {
        match self {
            Self::System => span,
            Self::Manual(_) => Duration::MAX,
        }
    }

    /// The moment of this clock at which `span` has passed since a store decided something, which
    /// it has just told.
    pub(crate) fn due(&self, decided_at: Timestamp, span: Duration) -> Timestamp {
        match self {
            // The store's moment may be another machine's.
            Self::System => self.now().after(span),
            // The test may have moved the clock since then.
            Self::Manual(_) => decided_at.after(span),
        }
    }

    /// Waits for a moment of this clock.
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

    /// Waits until `span` has passed since `moment`, which a caller has just read from this clock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn sleep(&self, moment: Timestamp, span: Duration) {
        match self {
            // The moment may be another machine's. The timer fires late by up to a millisecond,
            // never early.
            Self::System => real_time::sleep(span).await,
            // Counted from the moment and not from now: the test may have moved the clock in
            // between.
            Self::Manual(clock) => {
                let until = moment.after(span);
                // The sender is held by `clock`, so the channel cannot close.
                let _ = clock.now.subscribe().wait_for(|now| *now >= until).await;
            }
        }
    }
}

/// Sees to it that something is told seldom: what comes and goes must not fill a log.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(std::sync::atomic::AtomicU64);

impl LogThrottle {
    const EVERY: Duration = Duration::from_secs(10);

    /// Whether it is time to tell it again.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        let last = self.0.load(Relaxed);
        let now = now.as_micros().max(1);
        let due = last == 0 || now.abs_diff(last) >= micros_ceil(Self::EVERY);
        due && self.0.compare_exchange(last, now, Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::support::clock::*;

    #[test]
    fn what_is_told_seldom_is_told_at_once_and_again_after_a_while() {
        let (seldom, clock) = (LogThrottle::default(), ManualClock::new());
        let told = [0, 1, 9, 10, 19, 20].map(|at| {
            let clock = clock.clone();
            clock.advance(Duration::from_secs(at));
            let due = seldom.is_due(clock.now());
            clock.step_back(Duration::from_secs(at));
            due
        });
        assert_eq!(told, [true, false, false, true, false, true]);
    }
}
