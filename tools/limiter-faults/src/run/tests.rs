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

fn run(start: Instant, calls: &[(u64, usize, DecisionSource)]) -> Run {
    let events = calls
        .iter()
        .map(|(millis, limiter, by)| event(start, *millis, *limiter, *by));
    Run::new(start, events.collect(), SchedulerDelays::default(), 0)
}

#[test]
fn run_heals_when_store_decides_for_last_limiter() {
    let start = Instant::now();
    let calls = [
        (0, 0, DecisionSource::Store),
        (0, 1, DecisionSource::Store),
        (100, 0, DecisionSource::Undecided),
        (200, 0, DecisionSource::Store),
    ];
    let since = start + Duration::from_millis(50);
    assert!(
        run(start, &calls).healed(since).is_none(),
        "the other limiter has no decision by the store"
    );
    let calls = [&calls[..], &[(340, 1, DecisionSource::Store)]].concat();
    let healed = run(start, &calls).healed(since).map(|span| span.measured);
    assert_eq!(healed, Some(Duration::from_millis(300)));
}

/// The shares of reconciling limits deny most calls without the store.
#[test]
fn run_heals_with_last_failure_before_reconciling_calls() {
    let start = Instant::now();
    let healed = |calls: &[_]| {
        let span = run(start, calls).healed(start);
        span.map(|span| span.measured.as_millis())
    };
    let calls = [
        (10, 0, DecisionSource::Reconciling),
        (200, 0, DecisionSource::LocalFallback),
        (300, 0, DecisionSource::Reconciling),
        (700, 0, DecisionSource::Store),
    ];
    assert_eq!(healed(&calls), Some(210));
    assert_eq!(healed(&calls[..3]), None);
    let calls = [&calls[..], &[(650, 0, DecisionSource::LocalFallback)]].concat();
    assert_eq!(healed(&calls), Some(710));
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
