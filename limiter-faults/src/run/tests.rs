//! Runs made by hand, and what is asked about them.

use super::*;

/// A call asked so many milliseconds after a moment, answered 10 ms later.
fn event(start: Instant, millis: u64, limiter: usize, by: By) -> Event {
    Event {
        limiter,
        key: 0,
        asked: start + Duration::from_millis(millis),
        took: Duration::from_millis(10),
        decided_at: millis * 1_000,
        allowed: true,
        by,
        trouble: None,
    }
}

fn run(start: Instant, calls: &[(u64, usize, By)]) -> Run {
    let events = calls
        .iter()
        .map(|(millis, limiter, by)| event(start, *millis, *limiter, *by));
    Run::new(start, events.collect(), Lateness::default(), 0)
}

#[test]
fn healed_is_when_the_last_limiter_is_decided_for_again() {
    let start = Instant::now();
    let calls = [
        (0, 0, By::Store),
        (0, 1, By::Store),
        (100, 0, By::Nobody),
        (200, 0, By::Store),
    ];
    let since = start + Duration::from_millis(50);
    assert!(
        run(start, &calls).healed(since).is_none(),
        "the other limiter never was"
    );
    let calls = [&calls[..], &[(340, 1, By::Store)]].concat();
    let healed = run(start, &calls).healed(since).map(|span| span.measured);
    assert_eq!(healed, Some(Duration::from_millis(300)));
}

#[test]
fn what_the_insurance_admits_is_extra_and_nothing_that_the_store_lost() {
    let start = Instant::now();
    let run = run(
        start,
        &[(0, 0, By::Store), (1, 0, By::LocalFallback), (2, 0, By::Store)],
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
fn later_calls_are_counted_and_without_a_cause_none_is_excused() {
    let start = Instant::now();
    let run = run(
        start,
        &[(0, 0, By::Nobody), (60, 0, By::Nobody), (70, 0, By::Store)],
    );
    let asked = run.asked_from(start + Duration::from_millis(50));
    assert_eq!((asked.all, asked.unhealthy, asked.unexcused), (2, 1, 1));
}

#[test]
fn ninety_nine_of_a_hundred() {
    let mut spans: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
    assert_eq!(percentile(&mut spans, 99), Duration::from_millis(99));
    assert_eq!(percentile(&mut [], 99), Duration::ZERO);
}
