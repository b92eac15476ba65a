//! Circuit breaker of one Redis server: rejects calls while the server does not reply and probes it
//! with one call at a time.
//!
//! Five calls in a row without a reply open the breaker. While it is open, calls fail immediately.
//! After a pause, one call probes the server: a reply closes the breaker, a failure doubles the
//! pause up to 200 ms. A probe without a result after 200 ms is replaced by another. Pauses vary by
//! a quarter, so that replicas do not probe in step. A new connection ends the pause.
//!
//! Invariants: at most one probe is in flight, and a server that is reachable again is used within
//! 300 ms plus the time to connect. Tests: below, and `model.rs` under every schedule.

use std::fmt;
use std::time::{Duration, Instant};

use crate::observe;
use crate::observe::BreakerState;
use crate::support::jitter::varied;
use crate::support::sync::{Mutex, MutexGuard};

const FAILURES_UNTIL_OPEN: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The breaker of one server.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: Mutex<BreakerPhase>,
    /// Updated under the lock of `state`, so that the gauge shows the changes in order.
    gauge: observe::BreakerGauge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerPhase {
    /// Calls pass. `failures` counts the calls in a row without a reply.
    Closed { failures: u32 },
    /// No call passes before `until`.
    Open { until: Instant, pause: Duration },
    /// A probe is in flight. No other call passes before `until`; then the probe counts as
    /// abandoned, since its caller may no longer poll it.
    Probing { until: Instant, pause: Duration },
}

/// Permission to send a call. Dropped without a result, it does not change the breaker.
#[derive(Debug)]
#[must_use = "the breaker learns from the call's result"]
pub(crate) struct Pass<'a> {
    breaker: &'a Breaker,
    /// The deadline of the probe; `None` for calls that are not probes.
    probe: Option<Instant>,
}

impl Breaker {
    /// Creates the breaker of this server.
    pub(crate) fn for_server(server: &impl fmt::Display) -> Self {
        Self {
            state: Mutex::new(BreakerPhase::Closed { failures: 0 }),
            gauge: observe::BreakerGauge::new(server),
        }
    }

    #[cfg(test)]
    fn new() -> Self {
        Self::for_server(&"test")
    }

    /// Admits a call if the breaker is closed or a probe is due.
    pub(crate) fn admit(&self, now: Instant) -> Option<Pass<'_>> {
        let mut state = self.lock();
        match *state {
            BreakerPhase::Closed { .. } => {
                self.gauge.keep_shown();
                Some(Pass {
                    breaker: self,
                    probe: None,
                })
            }
            BreakerPhase::Open { until, pause } | BreakerPhase::Probing { until, pause } if now >= until => {
                let until = now + LONGEST_PAUSE;
                *state = BreakerPhase::Probing { until, pause };
                self.gauge.is(BreakerState::HalfOpen);
                Some(Pass {
                    breaker: self,
                    probe: Some(until),
                })
            }
            BreakerPhase::Open { .. } | BreakerPhase::Probing { .. } => None,
        }
    }

    /// Ends the pause after a successful connection: the server replied to the login, so the next
    /// call probes immediately.
    pub(crate) fn connected(&self, now: Instant) {
        if let BreakerPhase::Open { until, .. } = &mut *self.lock() {
            *until = now.min(*until);
        }
    }

    /// Resets the failure count after a late reply to a call that was counted as failed. Has no
    /// effect unless the breaker is closed.
    pub(crate) fn on_success(&self) {
        if let BreakerPhase::Closed { failures } = &mut *self.lock() {
            *failures = 0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BreakerPhase> {
        self.state.lock()
    }
}

impl Pass<'_> {
    /// Records a reply, including an error reply. Returns whether the reply closed the breaker.
    pub(crate) fn answered(mut self) -> bool {
        self.probe = None;
        // A reply to a call from before the opening proves as much as the reply to a probe.
        let mut state = self.breaker.lock();
        let was_open = !matches!(*state, BreakerPhase::Closed { .. });
        *state = BreakerPhase::Closed { failures: 0 };
        if was_open {
            self.breaker.gauge.is(BreakerState::Closed);
        }
        was_open
    }

    /// Records a missing reply. Returns whether it opened the breaker.
    pub(crate) fn failed(mut self, now: Instant) -> bool {
        let probe = self.probe.take();
        let mut state = self.breaker.lock();
        let pause = match *state {
            BreakerPhase::Closed { failures } if failures + 1 < FAILURES_UNTIL_OPEN => {
                *state = BreakerPhase::Closed {
                    failures: failures + 1,
                };
                return false;
            }
            BreakerPhase::Closed { .. } => FIRST_PAUSE,
            BreakerPhase::Probing { until, pause } if probe == Some(until) => (pause * 2).min(LONGEST_PAUSE),
            // A call from before the opening, or a replaced probe: its failure is already counted.
            BreakerPhase::Open { .. } | BreakerPhase::Probing { .. } => return false,
        };
        let opened = matches!(*state, BreakerPhase::Closed { .. });
        *state = BreakerPhase::Open {
            until: now + varied(pause),
            pause,
        };
        self.breaker.gauge.is(BreakerState::Open);
        opened
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(probe) = self.probe {
            let mut state = self.breaker.lock();
            if let BreakerPhase::Probing { until, pause } = *state {
                if until == probe {
                    // The probe was cancelled: the next call probes in its place.
                    *state = BreakerPhase::Open {
                        until: Instant::now(),
                        pause,
                    };
                    self.breaker.gauge.is(BreakerState::Open);
                }
            }
        }
    }
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests {
    use crate::redis::client::breaker::*;

    fn fail(breaker: &Breaker, now: Instant) -> bool {
        breaker.admit(now).is_some_and(|pass| pass.failed(now))
    }

    #[test]
    fn consecutive_failures_open_breaker_and_reply_resets_count() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        for _ in 0..FAILURES_UNTIL_OPEN - 1 {
            assert!(!fail(&breaker, now));
        }
        assert!(!breaker.admit(now).unwrap().answered());
        for _ in 0..FAILURES_UNTIL_OPEN - 1 {
            assert!(!fail(&breaker, now));
        }
        assert!(fail(&breaker, now));
        assert!(breaker.admit(now).is_none());
    }

    #[test]
    fn one_call_probes_and_its_reply_closes_breaker() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        let later = now + FIRST_PAUSE * 5 / 4;
        let probe = breaker.admit(later).unwrap();
        assert!(breaker.admit(later).is_none(), "one at a time");
        assert!(probe.answered());
        assert!(breaker.admit(later).is_some());
    }

    #[test]
    fn failed_probes_repeat_within_300_ms() {
        let (breaker, mut now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        for _ in 0..20 {
            now += Duration::from_millis(300);
            assert!(!breaker.admit(now).unwrap().failed(now));
            assert!(breaker.admit(now + FIRST_PAUSE).is_none());
        }
    }

    #[test]
    fn breakers_of_many_processes_do_not_probe_in_step() {
        const BREAKERS: usize = 20;
        let started = Instant::now();
        let breakers: Vec<_> = (0..BREAKERS).map(|_| Breaker::new()).collect();
        // All breakers open at the same time and are called every millisecond.
        for breaker in &breakers {
            while !fail(breaker, started) {}
        }
        let mut probes = Vec::new();
        for millis in 1..=2_500 {
            let now = started + Duration::from_millis(millis);
            let admitted: Vec<_> = breakers.iter().filter_map(|breaker| breaker.admit(now)).collect();
            probes.push(admitted.len());
            for probe in admitted {
                probe.failed(now);
            }
        }
        // The first probes still coincide.
        let at_once = probes[1_500..].windows(10).map(|window| window.iter().sum());
        let most: usize = at_once.max().unwrap();
        assert!((1..=BREAKERS / 2).contains(&most), "{most} within 10 ms");
    }

    #[test]
    fn new_connection_ends_pause() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        assert!(breaker.admit(now).is_none());
        breaker.connected(now);
        let probe = breaker.admit(now).unwrap();
        breaker.connected(now);
        assert!(breaker.admit(now).is_none(), "one at a time");
        assert!(
            !probe.failed(now) && breaker.admit(now).is_none(),
            "one connection allows one probe"
        );
    }

    #[test]
    fn cancelled_probe_is_replaced_by_next_call() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        let later = now + Duration::from_secs(60);
        drop(breaker.admit(later).unwrap());
        assert!(breaker.admit(later).is_some());
    }

    #[test]
    fn abandoned_probe_is_replaced_after_longest_pause() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        let later = now + FIRST_PAUSE * 5 / 4;
        let _forgotten = breaker.admit(later).unwrap();
        assert!(breaker.admit(later + LONGEST_PAUSE / 2).is_none());
        assert!(breaker.admit(later + LONGEST_PAUSE).unwrap().answered());
    }

    #[test]
    fn replaced_probe_does_not_affect_next_probe() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        let later = now + LONGEST_PAUSE;
        let (cancelled, failed) = (breaker.admit(later), breaker.admit(later + LONGEST_PAUSE));
        let later = later + 2 * LONGEST_PAUSE;
        let _probe = breaker.admit(later).unwrap();
        drop(cancelled);
        assert!(!failed.unwrap().failed(later));
        assert!(breaker.admit(later).is_none(), "one at a time");
        assert!(breaker.admit(later + LONGEST_PAUSE).is_some());
    }

    #[test]
    fn late_results_of_earlier_calls_do_not_affect_probe() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        let (early, earlier) = (breaker.admit(now).unwrap(), breaker.admit(now).unwrap());
        while !fail(&breaker, now) {}
        let later = now + FIRST_PAUSE * 5 / 4;
        let probe = breaker.admit(later).unwrap();
        assert!(!early.failed(later));
        assert!(breaker.admit(later).is_none());
        assert!(earlier.answered(), "the server answers after all");
        assert!(!probe.failed(later) && breaker.admit(later).is_some());
    }
}
