//! Stops asking a server that does not answer, and tries it again with one call at a time.
//!
//! Five calls in a row without an answer open the breaker. While it is open, calls are told so at
//! once. After a pause one call probes: its answer closes the breaker, its failure doubles the
//! pause, up to 200 ms; one that has not come back by then gives its place to another. Pauses vary
//! by a quarter, so that replicas do not probe in step, and end when a connection has been made. A
//! server that is back is therefore used again within 300 ms and the time that a connection takes.

use std::fmt;
use std::sync::PoisonError;
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
    /// Told of each change under the lock, so that it hears of them in order.
    shown: observe::BreakerGauge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerPhase {
    /// Calls pass. So many in a row got no answer.
    Closed { failures: u32 },
    /// No call passes until the pause is over.
    Open { until: Instant, pause: Duration },
    /// One call is on its way, and no other passes until it should have come back: nobody may be
    /// polling it.
    Probing { until: Instant, pause: Duration },
}

/// A call that may be made. Dropped without a result, it says nothing about the server.
#[derive(Debug)]
#[must_use = "the breaker learns from the call's result"]
pub(crate) struct Pass<'a> {
    breaker: &'a Breaker,
    /// By when a probe should have come back, as long as it is one.
    probe: Option<Instant>,
}

impl Breaker {
    /// The breaker of this server.
    pub(crate) fn for_server(server: &impl fmt::Display) -> Self {
        Self {
            state: Mutex::new(BreakerPhase::Closed { failures: 0 }),
            shown: observe::BreakerGauge::new(server),
        }
    }

    #[cfg(test)]
    fn new() -> Self {
        Self::for_server(&"test")
    }

    /// Lets a call pass, if the breaker is closed or it is time for a probe.
    pub(crate) fn admit(&self, now: Instant) -> Option<Pass<'_>> {
        let mut state = self.lock();
        match *state {
            BreakerPhase::Closed { .. } => {
                self.shown.keep_shown();
                Some(Pass {
                    breaker: self,
                    probe: None,
                })
            }
            BreakerPhase::Open { until, pause } | BreakerPhase::Probing { until, pause } if now >= until => {
                let until = now + LONGEST_PAUSE;
                *state = BreakerPhase::Probing { until, pause };
                self.shown.is(BreakerState::HalfOpen);
                Some(Pass {
                    breaker: self,
                    probe: Some(until),
                })
            }
            BreakerPhase::Open { .. } | BreakerPhase::Probing { .. } => None,
        }
    }

    /// A connection has been made, for which the server answered: the next call need not wait to
    /// find out about the rest.
    pub(crate) fn connected(&self, now: Instant) {
        if let BreakerPhase::Open { until, .. } = &mut *self.lock() {
            *until = now.min(*until);
        }
    }

    /// An answer came to a call that counts as one without: as long as calls pass, the count begins
    /// anew.
    pub(crate) fn on_success(&self) {
        if let BreakerPhase::Closed { failures } = &mut *self.lock() {
            *failures = 0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BreakerPhase> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// The server answered, be it with an error. Says whether that closed the breaker.
    pub(crate) fn answered(mut self) -> bool {
        self.probe = None;
        // An answer to a call from before it opened tells as much as a probe's.
        let mut state = self.breaker.lock();
        let was_open = !matches!(*state, BreakerPhase::Closed { .. });
        *state = BreakerPhase::Closed { failures: 0 };
        if was_open {
            self.breaker.shown.is(BreakerState::Closed);
        }
        was_open
    }

    /// The server did not answer. Says whether that opened the breaker.
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
            // A call from before it opened, or a probe that another has replaced: what it says is
            // known.
            BreakerPhase::Open { .. } | BreakerPhase::Probing { .. } => return false,
        };
        let opened = matches!(*state, BreakerPhase::Closed { .. });
        *state = BreakerPhase::Open {
            until: now + varied(pause),
            pause,
        };
        self.breaker.shown.is(BreakerState::Open);
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
                    self.breaker.shown.is(BreakerState::Open);
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
    fn five_failures_in_a_row_open_it_and_an_answer_in_between_counts_anew() {
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
    fn one_call_probes_and_its_answer_closes_it() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        let later = now + FIRST_PAUSE * 5 / 4;
        let probe = breaker.admit(later).unwrap();
        assert!(breaker.admit(later).is_none(), "one at a time");
        assert!(probe.answered());
        assert!(breaker.admit(later).is_some());
    }

    #[test]
    fn failed_probes_come_less_often_but_within_300_ms() {
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
        // All of them open at the same moment, and are called every millisecond.
        for breaker in &breakers {
            while !fail(breaker, started) {}
        }
        let mut probes = Vec::new();
        for millis in 1..=2_500 {
            let now = started + Duration::from_millis(millis);
            let probing = breakers.iter().filter_map(|breaker| breaker.admit(now));
            probes.push(probing.map(|probe| probe.failed(now)).count());
        }
        // The first probes still come together.
        let at_once = probes[1_500..].windows(10).map(|window| window.iter().sum());
        let most: usize = at_once.max().unwrap();
        assert!((1..=BREAKERS / 2).contains(&most), "{most} within 10 ms");
    }

    #[test]
    fn a_connection_ends_the_pause() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        assert!(breaker.admit(now).is_none());
        breaker.connected(now);
        let probe = breaker.admit(now).unwrap();
        breaker.connected(now);
        assert!(breaker.admit(now).is_none(), "one at a time");
        assert!(
            !probe.failed(now) && breaker.admit(now).is_none(),
            "it answers for no more than itself"
        );
    }

    #[test]
    fn a_cancelled_probe_leaves_its_place_to_the_next() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        let later = now + Duration::from_secs(60);
        drop(breaker.admit(later).unwrap());
        assert!(breaker.admit(later).is_some());
    }

    #[test]
    fn a_probe_that_nobody_polls_keeps_the_others_out_for_a_moment_only() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        while !fail(&breaker, now) {}
        let later = now + FIRST_PAUSE * 5 / 4;
        let _forgotten = breaker.admit(later).unwrap();
        assert!(breaker.admit(later + LONGEST_PAUSE / 2).is_none());
        assert!(breaker.admit(later + LONGEST_PAUSE).unwrap().answered());
    }

    #[test]
    fn a_probe_that_was_replaced_does_not_disturb_the_next() {
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
    fn late_results_of_earlier_calls_do_not_disturb_a_probe() {
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
