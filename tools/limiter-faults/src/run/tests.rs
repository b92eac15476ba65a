//! Tests with constructed runs.

use super::*;

/// A call this number of milliseconds after the start, answered 10 ms later.
fn event(start: Instant, millis: u64, limiter: usize, by: DecisionSource) -> Event {
    Event {
        limiter,
        key: 0,
        sent_at: start + Duration::from_millis(millis),
        took: Duration::from_millis(10),
        decided_at: millis * 1_000,
        allowed: true,
        by,
        failure: None,
    }
}

fn events(start: Instant, calls: &[(u64, usize, DecisionSource)]) -> Vec<Event> {
    let events = calls
        .iter()
        .map(|(millis, limiter, by)| event(start, *millis, *limiter, *by));
    events.collect()
}

fn run(start: Instant, calls: &[(u64, usize, DecisionSource)]) -> Run {
    Run::new(start, events(start, calls), SchedulerDelays::default(), 0)
}

/// The milliseconds after which a run of two limiters with these probes heals.
fn healed(start: Instant, since: u64, probes: &[(u64, usize, DecisionSource)]) -> Option<u128> {
    let calls = [(0, 0, DecisionSource::Store), (0, 1, DecisionSource::Store)];
    let run = run(start, &calls).with_probes(events(start, probes));
    let span = run.healed(start + Duration::from_millis(since))?;
    Some(span.measured.as_millis())
}

#[test]
fn run_heals_when_store_decides_probe_of_last_limiter() {
    let start = Instant::now();
    let probes = [
        (100, 0, DecisionSource::Undecided),
        (200, 0, DecisionSource::Store),
        (210, 0, DecisionSource::Undecided),
        (330, 1, DecisionSource::LocalFallback),
        (340, 1, DecisionSource::Store),
    ];
    assert_eq!(healed(start, 50, &probes), Some(300));
    assert_eq!(
        healed(start, 50, &probes[..4]),
        None,
        "the store decides no probe of the other limiter"
    );
    assert_eq!(healed(start, 50, &[]), None);
}

#[test]
fn probe_sent_before_recovery_does_not_heal_run() {
    let start = Instant::now();
    let probes = [
        (45, 0, DecisionSource::Store),
        (50, 1, DecisionSource::Store),
        (90, 0, DecisionSource::Store),
    ];
    assert_eq!(healed(start, 50, &probes[..2]), None);
    assert_eq!(healed(start, 50, &probes), Some(50));
}

#[test]
fn calls_do_not_heal_run_and_probes_are_no_calls() {
    let start = Instant::now();
    let calls = events(start, &[(100, 0, DecisionSource::Store)]);
    let probes = events(start, &[(200, 0, DecisionSource::Undecided)]);
    let run = Run::new(start, calls, SchedulerDelays::default(), 0).with_probes(probes);
    assert!(run.healed(start).is_none());
    let counts = run.calls_from(start);
    assert_eq!((counts.all, counts.unhealthy), (1, 0));
    assert_eq!(run.count(|_| true), 1);
    assert_eq!(run.failure_summary(), "no errors");
}

#[test]
fn retained_keys_apply_to_calls_and_probes() {
    let start = Instant::now();
    let with_key = |key| Event {
        key,
        ..event(start, 100, 0, DecisionSource::Store)
    };
    let run = || {
        let calls = vec![with_key(1), with_key(2)];
        Run::new(start, calls, SchedulerDelays::default(), 0).with_probes(vec![with_key(1)])
    };
    let [mut probed, mut unprobed] = [run(), run()];
    probed.retain_keys(&HashSet::from([1]));
    unprobed.retain_keys(&HashSet::from([2]));
    assert_eq!((probed.events.len(), unprobed.events.len()), (1, 1));
    assert!(probed.healed(start).is_some() && unprobed.healed(start).is_none());
}

#[test]
fn local_fallback_admissions_are_extra_and_not_lost() {
    let start = Instant::now();
    let run = run(
        start,
        &[
            (0, 0, DecisionSource::Store),
            (1, 0, DecisionSource::LocalFallback),
            (2, 0, DecisionSource::Store),
        ],
    );
    let quota = |capacity| Quota {
        capacity,
        per_second: 0,
    };
    assert_eq!(
        (run.extra(quota(1)).worst, run.lost_by_store(quota(1)).worst),
        (2, 1)
    );
    assert_eq!(
        (run.extra(quota(2)).worst, run.lost_by_store(quota(2)).worst),
        (1, 0)
    );
}

#[test]
fn later_calls_are_counted_and_only_delayed_ones_exempt() {
    let start = Instant::now();
    let run = run(
        start,
        &[
            (0, 0, DecisionSource::Undecided),
            (60, 0, DecisionSource::Undecided),
            (70, 0, DecisionSource::Store),
        ],
    );
    let sent_at = run.calls_from(start + Duration::from_millis(50));
    assert_eq!((sent_at.all, sent_at.unhealthy, sent_at.unexplained), (2, 1, 1));
}

#[test]
fn percentile_of_a_hundred_spans_is_exact() {
    let mut spans: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
    assert_eq!(percentile(&mut spans, 99), Duration::from_millis(99));
    assert_eq!(percentile(&mut [], 99), Duration::ZERO);
}
