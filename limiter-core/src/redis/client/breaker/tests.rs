use crate::redis::client::breaker::*;

const DEADLINE: Duration = Duration::from_millis(50);
const IN_TIME: Duration = Duration::from_millis(1);

/// Returns whether calls pass. A probe that is due is dropped.
fn passes(breaker: &Arc<Breaker>, deadline: Duration, now: Instant) -> bool {
    breaker.admit(deadline, || now).is_ok()
}

/// The probe of a rejected call.
fn probe(breaker: &Arc<Breaker>, now: Instant) -> Option<Probe> {
    breaker.admit(DEADLINE, || now).unwrap_err()
}

fn fail(breaker: &Arc<Breaker>, now: Instant) -> bool {
    passes(breaker, DEADLINE, now) && breaker.on_timeout(now, DEADLINE)
}

fn open_for(breaker: &Arc<Breaker>, deadline: Duration, now: Instant) {
    while !(passes(breaker, deadline, now) && breaker.on_timeout(now, deadline)) {}
}

/// A breaker that is open for `DEADLINE`, and a time at which a probe is due.
fn open() -> (Arc<Breaker>, Instant) {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE, now);
    (breaker, now + FIRST_PAUSE * 5 / 4)
}

#[test]
fn consecutive_failures_open_breaker_and_reply_resets_count() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    for _ in 0..FAILURES_UNTIL_OPEN - 1 {
        assert!(!fail(&breaker, now));
    }
    assert!(!breaker.on_reply(IN_TIME));
    for _ in 0..FAILURES_UNTIL_OPEN - 1 {
        assert!(!fail(&breaker, now));
    }
    assert!(fail(&breaker, now));
    assert!(!passes(&breaker, DEADLINE, now));
}

#[test]
fn deadline_that_no_reply_meets_does_not_count() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    for _ in 0..3 * FAILURES_UNTIL_OPEN {
        assert!(!breaker.on_timeout(now, Duration::from_micros(1)));
    }
    assert!(passes(&breaker, Duration::from_micros(1), now));
    for _ in 0..FAILURES_UNTIL_OPEN - 1 {
        assert!(!fail(&breaker, now));
    }
    assert!(fail(&breaker, now) && breaker.rejects(DEADLINE));
}

#[test]
fn rejected_call_starts_one_probe_and_its_reply_closes_breaker() {
    let (breaker, later) = open();
    let first = probe(&breaker, later).unwrap();
    assert_eq!(first.deadline(), DEADLINE);
    assert!(probe(&breaker, later).is_none(), "one at a time");
    assert!(first.on_reply(IN_TIME, later));
    assert!(passes(&breaker, DEADLINE, later));
}

#[test]
fn failed_probes_repeat_within_300_ms() {
    let (breaker, mut now) = open();
    for _ in 0..20 {
        now += Duration::from_millis(300);
        probe(&breaker, now).unwrap().on_timeout(now);
        assert!(probe(&breaker, now + FIRST_PAUSE).is_none());
    }
}

#[test]
fn breakers_of_many_processes_do_not_probe_in_step() {
    const BREAKERS: usize = 20;
    let started = Instant::now();
    let breakers: Vec<_> = (0..BREAKERS).map(|_| Breaker::new()).collect();
    // All breakers open at the same time and are called every millisecond.
    for breaker in &breakers {
        open_for(breaker, DEADLINE, started);
    }
    let mut probes = Vec::new();
    for millis in 1..=2_500 {
        let now = started + Duration::from_millis(millis);
        let due: Vec<_> = breakers
            .iter()
            .filter_map(|breaker| probe(breaker, now))
            .collect();
        probes.push(due.len());
        due.into_iter().for_each(|probe| probe.on_timeout(now));
    }
    // The first probes still coincide.
    let at_once = probes[1_500..].windows(10).map(|window| window.iter().sum());
    let most: usize = at_once.max().unwrap();
    assert!((1..=BREAKERS / 2).contains(&most), "{most} within 10 ms");
}

#[test]
fn new_connection_ends_pause() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE, now);
    assert!(probe(&breaker, now).is_none());
    breaker.connected(now);
    let first = probe(&breaker, now).unwrap();
    breaker.connected(now);
    assert!(probe(&breaker, now).is_none(), "one at a time");
    first.on_timeout(now);
    assert!(probe(&breaker, now).is_none(), "one connection allows one probe");
}

#[test]
fn cancelled_probe_is_replaced_by_next_call() {
    let (breaker, now) = open();
    let later = now + Duration::from_secs(60);
    drop(probe(&breaker, later).unwrap());
    assert!(probe(&breaker, later).is_some());
}

#[test]
fn one_call_replaces_abandoned_probe() {
    let (breaker, later) = open();
    let forgotten = probe(&breaker, later).unwrap();
    assert!(probe(&breaker, later + DEADLINE + LONGEST_PAUSE / 2).is_none());
    let later = later + DEADLINE + LONGEST_PAUSE;
    assert!(passes(&breaker, DEADLINE, later));
    assert!(probe(&breaker, later).is_none(), "one at a time");
    assert!(!breaker.on_timeout(later, DEADLINE), "the breaker is open");
    forgotten.on_timeout(later);
    assert!(
        probe(&breaker, later).is_none(),
        "an abandoned probe has no effect"
    );
    assert!(breaker.on_reply(IN_TIME));
}

#[test]
fn abandoned_probe_does_not_affect_next_probe() {
    let (breaker, later) = open();
    let cancelled = probe(&breaker, later).unwrap();
    let later = later + DEADLINE + LONGEST_PAUSE;
    assert!(passes(&breaker, DEADLINE, later));
    let later = later + LONGEST_PAUSE * 2;
    let next = probe(&breaker, later).unwrap();
    drop(cancelled);
    assert!(probe(&breaker, later).is_none(), "one at a time");
    assert!(next.on_reply(IN_TIME, later));
}

#[test]
fn late_results_of_earlier_calls_do_not_affect_probe() {
    let (breaker, later) = open();
    let first = probe(&breaker, later).unwrap();
    assert!(!breaker.on_timeout(later, DEADLINE));
    assert!(probe(&breaker, later).is_none());
    assert!(breaker.on_reply(IN_TIME), "the server answers after all");
    first.on_timeout(later);
    assert!(passes(&breaker, DEADLINE, later));
}

#[test]
fn breaker_rejects_only_exceeded_deadlines() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE, now);
    assert!(!passes(&breaker, DEADLINE / 2, now));
    assert!(passes(&breaker, DEADLINE * 2, now));
    open_for(&breaker, DEADLINE * 2, now);
    assert!(!passes(&breaker, DEADLINE * 2, now));
    assert!(passes(&breaker, DEADLINE * 3, now));
}

/// Otherwise calls with a short deadline would keep a slow server from calls that wait for it.
#[test]
fn probe_of_short_call_waits_for_longest_exceeded_deadline() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE * 2, now);
    let later = now + LONGEST_PAUSE;
    let probe = breaker.admit(DEADLINE / 2, || later).unwrap_err().unwrap();
    assert_eq!(probe.deadline(), DEADLINE * 2);
    assert!(probe.on_reply(DEADLINE, later));
}

#[test]
fn only_reply_within_exceeded_deadline_closes_breaker() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE, now);
    assert!(passes(&breaker, DEADLINE * 2, now) && !breaker.on_reply(DEADLINE));
    assert!(breaker.rejects(DEADLINE));
    assert!(passes(&breaker, DEADLINE * 2, now) && breaker.on_reply(IN_TIME));
    assert!(!breaker.rejects(DEADLINE));
}

#[test]
fn reply_after_exceeded_deadline_does_not_reset_count() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    for _ in 0..FAILURES_UNTIL_OPEN - 1 {
        assert!(!fail(&breaker, now));
        breaker.on_reply(DEADLINE);
    }
    assert!(fail(&breaker, now));
}

#[test]
fn failed_connections_reject_all_calls_until_any_reply() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE, now);
    while !breaker.unreachable(now) {}
    assert!(!passes(&breaker, Duration::MAX, now));
    let later = now + LONGEST_PAUSE;
    let probe = probe(&breaker, later).unwrap();
    assert_eq!(probe.deadline(), DIAL_TIMEOUT);
    assert!(probe.on_reply(DEADLINE * 100, later));
    assert!(passes(&breaker, Duration::ZERO, later));
}

#[test]
fn late_reply_to_probe_counts_as_failure() {
    let (breaker, later) = open();
    assert!(!probe(&breaker, later).unwrap().on_reply(DEADLINE, later));
    assert!(probe(&breaker, later).is_none());
}

#[test]
fn probe_that_cannot_connect_rejects_all_calls() {
    let (breaker, later) = open();
    probe(&breaker, later).unwrap().unreachable(later);
    assert!(breaker.rejects(Duration::MAX));
}
