//! Circuit breaker of one Redis server: rejects calls whose deadline the server exceeds and probes
//! it with one of them at a time.
//!
//! Five calls in a row without a reply before their deadline open the breaker for calls with that
//! deadline or a shorter one. While it is open, these calls fail immediately; calls with longer
//! deadlines pass, so a slow server serves callers that wait for it. Failed connections open the
//! breaker for all calls. After a pause, one call probes the server; a failure doubles the pause up
//! to 200 ms. A probe without a result after 200 ms is replaced by another. A reply within the
//! exceeded deadline closes the breaker; a later one does not. Pauses vary by a quarter, so that
//! replicas do not probe in step. A new connection ends the pause.
//!
//! Invariants: at most one probe is in flight, and a server that is reachable again is used within
//! 300 ms plus the time to connect. Tests: `tests.rs`, `tests/slow_server.rs`, and `model.rs` under
//! every schedule.

use std::fmt;
use std::time::{Duration, Instant};

use crate::observe;
use crate::observe::BreakerState;
use crate::support::jitter::varied;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::support::sync::{Mutex, MutexGuard};

const FAILURES_UNTIL_OPEN: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The breaker of one server.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: Mutex<BreakerRecord>,
    /// The longest rejected deadline in microseconds, and 0 while the breaker is closed. Updated
    /// under the lock of `state`; calls that pass read it without the lock.
    rejected_us: AtomicU64,
    /// Updated under the lock of `state`, so that the gauge shows the changes in order.
    gauge: observe::BreakerGauge,
}

#[derive(Debug)]
struct BreakerRecord {
    phase: BreakerPhase,
    /// The failures in a row of calls that the breaker did not reject.
    failures: u32,
    /// The shortest deadline of these calls, which the server exceeded each time.
    exceeded: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerPhase {
    /// Calls pass.
    Closed,
    /// No rejected call passes before `until`.
    Open(Rejecting),
    /// A probe is in flight. No other rejected call passes before `until`; then the probe counts
    /// as abandoned, since its caller may no longer poll it.
    Probing(Rejecting),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rejecting {
    until: Instant,
    pause: Duration,
    /// The longest rejected deadline.
    deadline: Duration,
}

/// Permission to send a call. Dropped without a result, it does not change the breaker.
#[derive(Debug)]
#[must_use = "the breaker learns from the call's result"]
pub(crate) struct Pass<'a> {
    breaker: &'a Breaker,
    /// The end of the probe; `None` for calls that are not probes. Boxed, since probes are rare and
    /// the futures of all calls contain this.
    probe: Option<Box<Instant>>,
}

impl Breaker {
    /// Creates the breaker of this server.
    pub(crate) fn for_server(server: &impl fmt::Display) -> Self {
        Self {
            state: Mutex::new(BreakerRecord {
                phase: BreakerPhase::Closed,
                failures: 0,
                exceeded: Duration::MAX,
            }),
            rejected_us: AtomicU64::new(0),
            gauge: observe::BreakerGauge::new(server),
        }
    }

    #[cfg(test)]
    fn new() -> Self {
        Self::for_server(&"test")
    }

    /// Admits a call with this deadline, unless the breaker is open for it and no probe is due.
    #[inline]
    pub(crate) fn admit(&self, deadline: Duration, now: impl FnOnce() -> Instant) -> Option<Pass<'_>> {
        if self.rejects(deadline) {
            return self.admit_probe(now());
        }
        self.gauge.keep_shown();
        Some(self.pass(None))
    }

    /// Returns whether calls with this deadline are rejected, except for probes.
    #[inline]
    pub(crate) fn rejects(&self, deadline: Duration) -> bool {
        match self.rejected_us.load(Ordering::Relaxed) {
            0 => false,
            rejected => micros(deadline) <= rejected,
        }
    }

    #[cold]
    fn admit_probe(&self, now: Instant) -> Option<Pass<'_>> {
        let mut state = self.lock();
        match state.phase {
            BreakerPhase::Closed => Some(self.pass(None)),
            BreakerPhase::Open(rejecting) | BreakerPhase::Probing(rejecting) if now >= rejecting.until => {
                let until = now + LONGEST_PAUSE;
                state.phase = BreakerPhase::Probing(Rejecting { until, ..rejecting });
                self.gauge.is(BreakerState::HalfOpen);
                Some(self.pass(Some(Box::new(until))))
            }
            BreakerPhase::Open(_) | BreakerPhase::Probing(_) => None,
        }
    }

    /// The pass of a call, or of this probe.
    pub(crate) fn pass(&self, probe: Option<Box<Instant>>) -> Pass<'_> {
        Pass { breaker: self, probe }
    }

    /// Ends the pause after a successful connection: the server replied to the login, so the next
    /// call probes immediately.
    pub(crate) fn connected(&self, now: Instant) {
        if let BreakerPhase::Open(Rejecting { until, .. }) = &mut self.lock().phase {
            *until = now.min(*until);
        }
    }

    /// Records a reply that took this time, including an error reply. Returns whether it closed the
    /// breaker.
    pub(crate) fn answered(&self, took: Duration) -> bool {
        // A reply to a call from before the opening proves as much as the reply to a probe.
        let mut state = self.lock();
        if took < state.exceeded {
            (state.failures, state.exceeded) = (0, Duration::MAX);
        }
        match state.phase {
            BreakerPhase::Open(Rejecting { deadline, .. })
            | BreakerPhase::Probing(Rejecting { deadline, .. })
                if took < deadline =>
            {
                state.phase = BreakerPhase::Closed;
                self.rejected_us.store(0, Ordering::Relaxed);
                self.gauge.is(BreakerState::Closed);
                true
            }
            _ => false,
        }
    }

    /// Records a failed connection. Returns whether it opened the breaker.
    pub(crate) fn unreachable(&self, now: Instant) -> bool {
        self.fail(now, Duration::MAX, None)
    }

    /// Records a call without a reply within `deadline`. Returns whether the breaker rejects more
    /// calls than before.
    fn fail(&self, now: Instant, deadline: Duration, probe: Option<Instant>) -> bool {
        let mut state = self.lock();
        if probe.is_some_and(|probe| self.fail_probe(&mut state, now, (probe, deadline))) {
            return false;
        }
        match state.phase {
            // A call from before the opening, or a replaced probe: its failure is already counted.
            BreakerPhase::Open(rejecting) | BreakerPhase::Probing(rejecting)
                if deadline <= rejecting.deadline =>
            {
                return false;
            }
            _ => {}
        }
        state.failures += 1;
        state.exceeded = state.exceeded.min(deadline);
        if state.failures < FAILURES_UNTIL_OPEN {
            return false;
        }
        let exceeded = state.exceeded;
        (state.failures, state.exceeded) = (0, Duration::MAX);
        self.open(&mut state, now, FIRST_PAUSE, exceeded);
        true
    }

    /// Opens the breaker after a failed probe, unless the probe was replaced.
    fn fail_probe(
        &self,
        state: &mut BreakerRecord,
        now: Instant,
        (probe, deadline): (Instant, Duration),
    ) -> bool {
        match state.phase {
            BreakerPhase::Probing(rejecting) if rejecting.until == probe => {
                let pause = (rejecting.pause * 2).min(LONGEST_PAUSE);
                self.open(state, now, pause, rejecting.deadline.max(deadline));
                true
            }
            _ => false,
        }
    }

    fn open(&self, state: &mut BreakerRecord, now: Instant, pause: Duration, deadline: Duration) {
        state.phase = BreakerPhase::Open(Rejecting {
            until: now + varied(pause),
            pause,
            deadline,
        });
        self.rejected_us.store(micros(deadline).max(1), Ordering::Relaxed);
        self.gauge.is(BreakerState::Open);
    }

    fn lock(&self) -> MutexGuard<'_, BreakerRecord> {
        self.state.lock()
    }
}

impl Pass<'_> {
    /// Returns the probe, if the call is one, for [`Breaker::pass`].
    pub(crate) fn into_probe(mut self) -> Option<Box<Instant>> {
        self.probe.take()
    }

    /// Records a reply that took this time, including an error reply. Returns whether it closed the
    /// breaker.
    pub(crate) fn answered(mut self, took: Duration) -> bool {
        let closed = self.breaker.answered(took);
        if let Some(probe) = self.probe.take().filter(|_| !closed) {
            // Too late for the deadline that the server exceeds.
            let mut state = self.breaker.lock();
            self.breaker
                .fail_probe(&mut state, Instant::now(), (*probe, Duration::ZERO));
        }
        closed
    }

    /// Records a missing reply at the deadline. Returns whether the breaker rejects more calls than
    /// before.
    pub(crate) fn overdue(mut self, now: Instant, deadline: Duration) -> bool {
        let probe = self.probe.take();
        self.breaker.fail(now, deadline, probe.map(|probe| *probe))
    }

    /// Records a failed connection. Returns whether the breaker rejects more calls than before.
    pub(crate) fn unreachable(mut self, now: Instant) -> bool {
        let probe = self.probe.take();
        self.breaker.fail(now, Duration::MAX, probe.map(|probe| *probe))
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(probe) = self.probe.take() {
            let mut state = self.breaker.lock();
            if let BreakerPhase::Probing(rejecting) = state.phase {
                if rejecting.until == *probe {
                    // The probe was cancelled: the next call probes in its place.
                    let until = Instant::now();
                    state.phase = BreakerPhase::Open(Rejecting { until, ..rejecting });
                    self.breaker.gauge.is(BreakerState::Open);
                }
            }
        }
    }
}

/// The deadline in microseconds, saturating.
fn micros(deadline: Duration) -> u64 {
    u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests;
