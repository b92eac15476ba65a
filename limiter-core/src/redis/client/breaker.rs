//! Circuit breaker of one Redis server: rejects calls whose deadline the server exceeds, and probes
//! it meanwhile.
//!
//! Five calls in a row without a reply before their deadline open the breaker for calls with that
//! deadline or a shorter one. Each caller of a batch counts as one call, so that the number of
//! delayed calls does not grow with the size of the batches. While it is open, these calls fail
//! immediately; calls with longer deadlines pass, so a slow server serves callers that wait for it.
//! Failed connections open the breaker for all calls. After a pause, the next rejected call starts
//! a probe, which a task sends and no call waits for; a failure doubles the pause up to 200 ms.
//! Without calls, the task sends probes at long intervals. A reply within the exceeded deadline
//! closes the breaker; a later one does not. Pauses vary by a quarter, so that replicas do not
//! probe in step. A new connection ends the pause.
//!
//! A runtime that is driven only while a call waits does not run the task of a probe. A probe
//! without a result counts as abandoned 200 ms after its deadline; then one call passes in its
//! place.
//!
//! Invariants: at most one probe is in flight, and a server that is reachable again is used by
//! calls within 300 ms plus the time to connect, and shown as closed within seconds without calls.
//! Tests: `tests.rs`, `tests/slow_server.rs`, and `model.rs` (model check).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::observe;
use crate::observe::BreakerState;
use crate::redis::client::dial::DIAL_TIMEOUT;
use crate::support::jitter::with_jitter;
use crate::support::real_time::after;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::support::sync::{Mutex, MutexGuard};

const FAILURES_UNTIL_OPEN: u32 = 5;
/// The failures of calls with shorter deadlines do not count. Such a deadline is the rest of the
/// time of a longer call; no reply of a healthy server would close a breaker that opened for it.
const MIN_DEADLINE: Duration = Duration::from_millis(1);
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
    /// From `until` on, the next rejected call starts a probe.
    Open(Rejecting),
    /// A probe is in flight. From `until` on it counts as abandoned.
    Probing(Rejecting),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rejecting {
    until: Instant,
    pause: Duration,
    /// The longest rejected deadline.
    deadline: Duration,
}

/// Permission to test whether the server replies again. Dropped without a result, for example with
/// its runtime, it ends the pause: the next rejected call starts another probe.
#[derive(Debug)]
#[must_use = "the breaker learns from the probe's result"]
pub(crate) struct Probe {
    breaker: Arc<Breaker>,
    /// Identifies the probe among those of the breaker.
    until: Instant,
    deadline: Duration,
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
    fn new() -> Arc<Self> {
        Arc::new(Self::for_server(&"test"))
    }

    /// Admits a call with this deadline, unless the breaker is open for it. The error contains the
    /// probe that the rejected caller starts, if one is due.
    #[inline]
    pub(crate) fn admit(
        self: &Arc<Self>,
        deadline: Duration,
        now: impl FnOnce() -> Instant,
    ) -> Result<(), Option<Probe>> {
        if self.rejects(deadline) {
            return self.reject(now());
        }
        self.gauge.keep_shown();
        Ok(())
    }

    /// Returns whether calls with this deadline are rejected.
    #[inline]
    pub(crate) fn rejects(&self, deadline: Duration) -> bool {
        match self.rejected_us.load(Ordering::Relaxed) {
            0 => false,
            rejected => micros(deadline) <= rejected,
        }
    }

    /// Returns whether calls with any deadline pass.
    pub(crate) fn is_closed(&self) -> bool {
        self.rejected_us.load(Ordering::Relaxed) == 0
    }

    /// Returns the probe that is due, on behalf of a client without calls.
    pub(crate) fn due_probe(self: &Arc<Self>, now: Instant) -> Option<Probe> {
        self.reject(now).err().flatten()
    }

    #[cold]
    fn reject(self: &Arc<Self>, now: Instant) -> Result<(), Option<Probe>> {
        let mut state = self.lock();
        match state.phase {
            BreakerPhase::Closed => Ok(()),
            BreakerPhase::Open(rejecting) if now >= rejecting.until => {
                // After a failed connection, a reply of any age proves that the server is back.
                let deadline = Some(rejecting.deadline).filter(|deadline| *deadline < Duration::MAX);
                let deadline = deadline.unwrap_or(DIAL_TIMEOUT);
                let until = after(now, deadline.saturating_add(LONGEST_PAUSE));
                state.phase = BreakerPhase::Probing(Rejecting { until, ..rejecting });
                self.gauge.set(BreakerState::HalfOpen);
                Err(Some(Probe {
                    breaker: Arc::clone(self),
                    until,
                    deadline,
                }))
            }
            BreakerPhase::Probing(rejecting) if now >= rejecting.until => {
                let until = now + with_jitter(LONGEST_PAUSE);
                state.phase = BreakerPhase::Open(Rejecting { until, ..rejecting });
                self.gauge.set(BreakerState::Open);
                Ok(())
            }
            BreakerPhase::Open(_) | BreakerPhase::Probing(_) => Err(None),
        }
    }

    /// Ends the pause after a successful connection: the server replied to the login, so the next
    /// rejected call starts a probe.
    pub(crate) fn connected(&self, now: Instant) {
        if let BreakerPhase::Open(Rejecting { until, .. }) = &mut self.lock().phase {
            *until = now.min(*until);
        }
    }

    /// Records a reply that took this time, including an error reply. Returns whether it closed the
    /// breaker.
    pub(crate) fn on_reply(&self, took: Duration) -> bool {
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
                self.gauge.set(BreakerState::Closed);
                true
            }
            _ => false,
        }
    }

    /// Records a failed connection. Returns whether it opened the breaker.
    pub(crate) fn unreachable(&self, now: Instant) -> bool {
        self.on_timeout(now, Duration::MAX)
    }

    /// Records a call without a reply within `deadline`. Returns whether the breaker rejects more
    /// calls than before.
    pub(crate) fn on_timeout(&self, now: Instant, deadline: Duration) -> bool {
        if deadline < MIN_DEADLINE {
            return false;
        }
        let mut state = self.lock();
        match state.phase {
            // A call from before the opening, or in place of an abandoned probe: the server's
            // failure is already counted.
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

    fn open(&self, state: &mut BreakerRecord, now: Instant, pause: Duration, deadline: Duration) {
        state.phase = BreakerPhase::Open(Rejecting {
            until: now + with_jitter(pause),
            pause,
            deadline,
        });
        self.rejected_us.store(micros(deadline).max(1), Ordering::Relaxed);
        self.gauge.set(BreakerState::Open);
    }

    fn lock(&self) -> MutexGuard<'_, BreakerRecord> {
        self.state.lock()
    }
}

impl Probe {
    /// Returns the time within which a reply closes the breaker.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Records a reply that took this time, including an error reply. Returns whether it closed the
    /// breaker.
    pub(crate) fn on_reply(self, took: Duration, now: Instant) -> bool {
        let closed = self.breaker.on_reply(took);
        if !closed {
            self.on_timeout(now);
        }
        closed
    }

    /// Records a missing reply.
    pub(crate) fn on_timeout(self, now: Instant) {
        self.fail(now, Duration::ZERO);
    }

    /// Records a failed connection.
    pub(crate) fn unreachable(self, now: Instant) {
        self.fail(now, Duration::MAX);
    }

    /// Opens the breaker for a longer pause and at least this deadline.
    fn fail(&self, now: Instant, deadline: Duration) {
        let mut state = self.breaker.lock();
        if let Some(rejecting) = self.rejecting(&state) {
            let pause = (rejecting.pause * 2).min(LONGEST_PAUSE);
            let deadline = rejecting.deadline.max(deadline);
            self.breaker.open(&mut state, now, pause, deadline);
        }
    }

    /// Returns the state that the probe began, unless another state has replaced it.
    fn rejecting(&self, state: &BreakerRecord) -> Option<Rejecting> {
        match state.phase {
            BreakerPhase::Probing(rejecting) if rejecting.until == self.until => Some(rejecting),
            _ => None,
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let mut state = self.breaker.lock();
        if let Some(rejecting) = self.rejecting(&state) {
            let until = Instant::now();
            state.phase = BreakerPhase::Open(Rejecting { until, ..rejecting });
            self.breaker.gauge.set(BreakerState::Open);
        }
    }
}

/// Returns the deadline in microseconds, saturating.
fn micros(deadline: Duration) -> u64 {
    u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests;
