//! The calls of a load, and the figures of the gates.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use limiter_core::{Policy, StoreErrorKind};

use crate::event::{DecisionSource, Event};
use crate::ledger::{Extra, Ledger, Quota};
use crate::scheduler_delay::SchedulerDelays;

/// The calls of a load over a time, and the scheduling delays during it.
#[derive(Debug)]
pub(crate) struct Run {
    started: Instant,
    /// The start in microseconds of this machine's clock.
    started_at: i64,
    pub(crate) events: Vec<Event>,
    /// Calls that only the store decides. Only the time of a recovery is derived from them.
    probes: Vec<Event>,
    pub(crate) scheduler_delay: SchedulerDelays,
    /// Tasks with a call that was running at the end of the load.
    pub(crate) hung: usize,
}

/// A measured span, and the span without the delays of the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) measured: Duration,
    pub(crate) fair: Duration,
}

/// The number of calls, of calls without a decision of the store, and of those that no delay of the
/// machine explains.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallCounts {
    pub(crate) all: usize,
    pub(crate) unhealthy: usize,
    pub(crate) unexplained: usize,
}

impl Run {
    pub(crate) fn new(
        started: Instant,
        events: Vec<Event>,
        scheduler_delay: SchedulerDelays,
        hung: usize,
    ) -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            started,
            started_at: micros(epoch.saturating_sub(started.elapsed())),
            events,
            probes: Vec::new(),
            scheduler_delay,
            hung,
        }
    }

    /// Returns the time to decide of 99 of 100 calls between two times.
    pub(crate) fn p99(&self, from: Instant, to: Instant) -> Span {
        let sent_at = self
            .events
            .iter()
            .filter(|event| (from..=to).contains(&event.sent_at));
        let (mut measured, mut fair): (Vec<_>, Vec<_>) = sent_at
            .map(|event| (event.took, self.scheduler_delay.fair(event.sent_at, event.took)))
            .unzip();
        Span {
            measured: percentile(&mut measured, 99),
            fair: percentile(&mut fair, 99),
        }
    }

    /// Adds the probes of the store.
    pub(crate) fn with_probes(self, probes: Vec<Event>) -> Self {
        Self { probes, ..self }
    }

    /// Removes the calls and probes of all other keys.
    pub(crate) fn retain_keys(&mut self, keys: &HashSet<u32>) {
        self.events.retain(|event| keys.contains(&event.key));
        self.probes.retain(|probe| keys.contains(&probe.key));
    }

    /// Returns the time after which the last of the limiters uses the store again; `None` if one of
    /// them does not, or without probes.
    pub(crate) fn healed(&self, since: Instant) -> Option<Span> {
        let last = (0..self.limiters())
            .map(|limiter| self.store_used_from(limiter, since))
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .max()?;
        let measured = last - since;
        Some(Span {
            measured,
            fair: self.scheduler_delay.fair(since, measured),
        })
    }

    /// Returns the end of the first probe of a limiter that the store decided. A probe that was
    /// sent before does not count, since a server that was replaced may have decided it.
    fn store_used_from(&self, limiter: usize, since: Instant) -> Option<Instant> {
        let later = self
            .probes
            .iter()
            .filter(|probe| probe.limiter == limiter && probe.sent_at >= since);
        let by_store = later.filter(|probe| probe.by == DecisionSource::Store);
        by_store.map(Event::answered).min()
    }

    /// Counts the calls since a time.
    pub(crate) fn calls_from(&self, since: Instant) -> CallCounts {
        let sent_at = self.events.iter().filter(|event| event.sent_at >= since);
        sent_at.fold(CallCounts::default(), |mut counts, event| {
            counts.all += 1;
            counts.unhealthy += usize::from(!event.is_healthy());
            counts.unexplained += usize::from(!event.is_healthy() && !self.is_exempt(event));
            counts
        })
    }

    /// Returns whether the machine delayed the call, or the earlier calls that opened the circuit
    /// breaker, by a large part of a deadline, so that the store could not decide.
    fn is_exempt(&self, event: &Event) -> bool {
        const OPEN_FOR: Duration = Duration::from_millis(400);
        let refused = event
            .failure
            .is_some_and(|failure| failure.kind == StoreErrorKind::CircuitOpen);
        let before = event.sent_at.checked_sub(OPEN_FOR).filter(|_| refused);
        let held_up = self
            .scheduler_delay
            .during(before.unwrap_or(event.sent_at), event.answered());
        held_up >= Policy::DEFAULT_DEADLINE / 2
    }

    /// Returns the number of limiters that were called.
    pub(crate) fn limiters(&self) -> usize {
        let last = self.events.iter().map(|event| event.limiter).max();
        last.map_or(0, |last| last + 1)
    }

    /// Returns the admissions above a quota, by the clock of the store or replica that decided.
    pub(crate) fn extra(&self, quota: Quota) -> Extra {
        let mut ledger = Ledger::new(quota);
        self.add_to(&mut ledger);
        ledger.extra()
    }

    /// Returns the admissions above a quota by the store itself: charges that it has lost.
    pub(crate) fn lost_by_store(&self, quota: Quota) -> Extra {
        let mut ledger = Ledger::new(quota);
        for event in self
            .events
            .iter()
            .filter(|event| event.allowed && event.is_healthy())
        {
            ledger.admitted(event.key, event.decided_at);
        }
        ledger.extra()
    }

    /// As [`extra`](Self::extra), if the store's clock was moved by multiples of a step, in
    /// microseconds: computed with the true time.
    pub(crate) fn extra_by_true_time(&self, quota: Quota, step: i64) -> Extra {
        let mut ledger = Ledger::new(quota);
        for event in self.events.iter().filter(|event| event.allowed) {
            let sent_at = self.started_at + micros(event.sent_at.saturating_duration_since(self.started));
            let stated = i64::try_from(event.decided_at).unwrap_or(i64::MAX);
            let ahead = (stated - sent_at + step / 2).div_euclid(step) * step;
            ledger.admitted(event.key, u64::try_from(stated - ahead).unwrap_or(0));
        }
        ledger.extra()
    }

    /// Adds the admissions to a ledger.
    pub(crate) fn add_to(&self, ledger: &mut Ledger) {
        for event in self.events.iter().filter(|event| event.allowed) {
            ledger.admitted(event.key, event.decided_at);
        }
        ledger.settle();
    }

    pub(crate) fn count(&self, which: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| which(event)).count()
    }

    /// Returns the reasons for decisions without the store, with their counts.
    pub(crate) fn failure_summary(&self) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for failure in self.events.iter().filter_map(|event| event.failure) {
            let name = failure
                .code
                .map_or_else(|| format!("{:?}", failure.kind), str::to_owned);
            *counts.entry(name).or_default() += 1;
        }
        let decided_locally = self.count(|event| event.by == DecisionSource::LocalFallback);
        if decided_locally > 0 {
            counts.insert("decided locally".to_owned(), decided_locally);
        }
        let words: Vec<_> = counts
            .into_iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        if words.is_empty() {
            "no errors".to_owned()
        } else {
            words.join(", ")
        }
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn percentile(spans: &mut [Duration], percent: usize) -> Duration {
    spans.sort_unstable();
    let place = (spans.len() * percent).div_ceil(100).saturating_sub(1);
    spans.get(place).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
