//! What a load has seen, and the questions that gates ask about it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use limiter_core::{Policy, StoreErrorKind};

use crate::event::{By, Event};
use crate::lateness::Lateness;
use crate::ledger::{Extra, Ledger, Quota};

/// The calls of a load over some time, and how late the machine was meanwhile.
#[derive(Debug)]
pub(crate) struct Run {
    started: Instant,
    /// The same moment, in microseconds of this machine's clock.
    started_at: i64,
    pub(crate) events: Vec<Event>,
    pub(crate) lateness: Lateness,
    /// Tasks whose call had not ended when the load did.
    pub(crate) hung: usize,
}

/// A span as it was measured, and without what the machine is to blame for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) measured: Duration,
    pub(crate) fair: Duration,
}

/// Calls, those that the store did not decide, and of these the ones that the machine is not to
/// blame for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) all: usize,
    pub(crate) unhealthy: usize,
    pub(crate) unexcused: usize,
}

impl Run {
    pub(crate) fn new(started: Instant, events: Vec<Event>, lateness: Lateness, hung: usize) -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            started,
            started_at: micros(epoch.saturating_sub(started.elapsed())),
            events,
            lateness,
            hung,
        }
    }

    /// The time to decide that 99 of 100 calls asked between two moments needed at most.
    pub(crate) fn p99(&self, from: Instant, to: Instant) -> Span {
        let asked = self
            .events
            .iter()
            .filter(|event| (from..=to).contains(&event.asked));
        let (mut measured, mut fair): (Vec<_>, Vec<_>) = asked
            .map(|event| (event.took, self.lateness.fair(event.asked, event.took)))
            .unzip();
        Span {
            measured: percentile(&mut measured, 99),
            fair: percentile(&mut fair, 99),
        }
    }

    /// How long after a moment the last of the limiters was decided for by the store again; `None`
    /// if one was not.
    pub(crate) fn healed(&self, since: Instant) -> Option<Span> {
        let limiters = self.events.iter().map(|event| event.limiter).max()?;
        let healed = |limiter: usize| {
            let healthy = self
                .events
                .iter()
                .filter(|event| event.limiter == limiter && event.by == By::Store);
            healthy.map(Event::answered).filter(|at| *at >= since).min()
        };
        let last = (0..=limiters)
            .map(healed)
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .max()?;
        let measured = last - since;
        Some(Span {
            measured,
            fair: self.lateness.fair(since, measured),
        })
    }

    /// Calls asked from a moment on.
    pub(crate) fn asked_from(&self, since: Instant) -> Asked {
        let asked = self.events.iter().filter(|event| event.asked >= since);
        asked.fold(Asked::default(), |mut counts, event| {
            counts.all += 1;
            counts.unhealthy += usize::from(!event.is_healthy());
            counts.unexcused += usize::from(!event.is_healthy() && !self.is_excused(event));
            counts
        })
    }

    /// The machine held the call up for a good part of a deadline, or those before it for which the
    /// breaker opened: the store had no chance.
    fn is_excused(&self, event: &Event) -> bool {
        const OPEN_FOR: Duration = Duration::from_millis(400);
        let refused = event
            .trouble
            .is_some_and(|trouble| trouble.kind == StoreErrorKind::CircuitOpen);
        let before = event.asked.checked_sub(OPEN_FOR).filter(|_| refused);
        let held_up = self
            .lateness
            .during(before.unwrap_or(event.asked), event.answered());
        held_up >= Policy::DEFAULT_DEADLINE / 2
    }

    /// The number of limiters that were called.
    pub(crate) fn limiters(&self) -> usize {
        let last = self.events.iter().map(|event| event.limiter).max();
        last.map_or(0, |last| last + 1)
    }

    /// What was admitted beyond a quota, by the clock of whoever decided.
    pub(crate) fn extra(&self, quota: Quota) -> Extra {
        let mut ledger = Ledger::new(quota);
        self.enter_into(&mut ledger);
        ledger.extra()
    }

    /// What the store itself admitted beyond a quota: charges that it has forgotten.
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

    /// As [`extra`](Self::extra) where the store's clock was moved by multiples of a step, in
    /// microseconds: by the time that it really was.
    pub(crate) fn extra_by_true_time(&self, quota: Quota, step: i64) -> Extra {
        let mut ledger = Ledger::new(quota);
        for event in self.events.iter().filter(|event| event.allowed) {
            let asked = self.started_at + micros(event.asked.saturating_duration_since(self.started));
            let told = i64::try_from(event.decided_at).unwrap_or(i64::MAX);
            let ahead = (told - asked + step / 2).div_euclid(step) * step;
            ledger.admitted(event.key, u64::try_from(told - ahead).unwrap_or(0));
        }
        ledger.extra()
    }

    /// Writes down what was admitted.
    pub(crate) fn enter_into(&self, ledger: &mut Ledger) {
        for event in self.events.iter().filter(|event| event.allowed) {
            ledger.admitted(event.key, event.decided_at);
        }
        ledger.settle();
    }

    pub(crate) fn count(&self, which: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| which(event)).count()
    }

    /// What kept the store from deciding, and how often.
    pub(crate) fn troubles(&self) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for trouble in self.events.iter().filter_map(|event| event.trouble) {
            let name = trouble
                .code
                .map_or_else(|| format!("{:?}", trouble.kind), str::to_owned);
            *counts.entry(name).or_default() += 1;
        }
        let insured = self.count(|event| event.by == By::LocalFallback);
        if insured > 0 {
            counts.insert("of them insured".to_owned(), insured);
        }
        let words: Vec<_> = counts
            .into_iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        if words.is_empty() {
            "no trouble".to_owned()
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
