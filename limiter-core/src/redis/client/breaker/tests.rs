use crate::redis::client::breaker::*;

const DEADLINE: Duration = Duration::from_millis(50);
const IN_TIME: Duration = Duration::from_millis(1);

fn fail(breaker: &Breaker, now: Instant) -> bool {
    breaker
        .admit(DEADLINE, || now)
        .is_some_and(|pass| pass.overdue(now, DEADLINE))
}

#[test]
fn consecutive_failures_open_breaker_and_reply_resets_count() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    for _ in 0..FAILURES_UNTIL_OPEN - 1 {
        assert!(!fail(&breaker, now));
    }
    assert!(!breaker.admit(DEADLINE, || now).unwrap().answered(IN_TIME));
    for _ in 0..FAILURES_UNTIL_OPEN - 1 {
        assert!(!fail(&breaker, now));
    }
    assert!(fail(&breaker, now));
    assert!(breaker.admit(DEADLINE, || now).is_none());
}

#[test]
fn one_call_probes_and_its_reply_closes_breaker() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    while !fail(&breaker, now) {}
    let later = now + FIRST_PAUSE * 5 / 4;
    let probe = breaker.admit(DEADLINE, || later).unwrap();
    assert!(breaker.admit(DEADLINE, || later).is_none(), "one at a time");
    assert!(probe.answered(IN_TIME));
    assert!(breaker.admit(DEADLINE, || later).is_some());
}

#[test]
fn failed_probes_repeat_within_300_ms() {
    let (breaker, mut now) = (Breaker::new(), Instant::now());
    while !fail(&breaker, now) {}
    for _ in 0..20 {
        now += Duration::from_millis(300);
        assert!(!breaker.admit(DEADLINE, || now).unwrap().overdue(now, DEADLINE));
        assert!(breaker.admit(DEADLINE, || now + FIRST_PAUSE).is_none());
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
        let admitted: Vec<_> = breakers
            .iter()
            .filter_map(|breaker| breaker.admit(DEADLINE, || now))
            .collect();
        probes.push(admitted.len());
        for probe in admitted {
            probe.overdue(now, DEADLINE);
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
    assert!(breaker.admit(DEADLINE, || now).is_none());
    breaker.connected(now);
    let probe = breaker.admit(DEADLINE, || now).unwrap();
    breaker.connected(now);
    assert!(breaker.admit(DEADLINE, || now).is_none(), "one at a time");
    assert!(
        !probe.overdue(now, DEADLINE) && breaker.admit(DEADLINE, || now).is_none(),
        "one connection allows one probe"
    );
}

#[test]
fn cancelled_probe_is_replaced_by_next_call() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    while !fail(&breaker, now) {}
    let later = now + Duration::from_secs(60);
    drop(breaker.admit(DEADLINE, || later).unwrap());
    assert!(breaker.admit(DEADLINE, || later).is_some());
}

#[test]
fn abandoned_probe_is_replaced_after_longest_pause() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    while !fail(&breaker, now) {}
    let later = now + FIRST_PAUSE * 5 / 4;
    let _forgotten = breaker.admit(DEADLINE, || later).unwrap();
    assert!(breaker.admit(DEADLINE, || later + LONGEST_PAUSE / 2).is_none());
    assert!(
        breaker
            .admit(DEADLINE, || later + LONGEST_PAUSE)
            .unwrap()
            .answered(IN_TIME)
    );
}

#[test]
fn replaced_probe_does_not_affect_next_probe() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    while !fail(&breaker, now) {}
    let later = now + LONGEST_PAUSE;
    let (cancelled, failed) = (
        breaker.admit(DEADLINE, || later),
        breaker.admit(DEADLINE, || later + LONGEST_PAUSE),
    );
    let later = later + 2 * LONGEST_PAUSE;
    let _probe = breaker.admit(DEADLINE, || later).unwrap();
    drop(cancelled);
    assert!(!failed.unwrap().overdue(later, DEADLINE));
    assert!(breaker.admit(DEADLINE, || later).is_none(), "one at a time");
    assert!(breaker.admit(DEADLINE, || later + LONGEST_PAUSE).is_some());
}

#[test]
fn late_results_of_earlier_calls_do_not_affect_probe() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    let (early, earlier) = (
        breaker.admit(DEADLINE, || now).unwrap(),
        breaker.admit(DEADLINE, || now).unwrap(),
    );
    while !fail(&breaker, now) {}
    let later = now + FIRST_PAUSE * 5 / 4;
    let probe = breaker.admit(DEADLINE, || later).unwrap();
    assert!(!early.overdue(later, DEADLINE));
    assert!(breaker.admit(DEADLINE, || later).is_none());
    assert!(earlier.answered(IN_TIME), "the server answers after all");
    assert!(!probe.overdue(later, DEADLINE) && breaker.admit(DEADLINE, || later).is_some());
}

fn open_for(breaker: &Breaker, deadline: Duration, now: Instant) {
    while !breaker
        .admit(deadline, || now)
        .is_some_and(|pass| pass.overdue(now, deadline))
    {}
}

#[test]
fn breaker_rejects_only_exceeded_deadlines() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE, now);
    assert!(breaker.admit(DEADLINE / 2, || now).is_none());
    assert!(breaker.admit(DEADLINE * 2, || now).is_some());
    open_for(&breaker, DEADLINE * 2, now);
    assert!(breaker.admit(DEADLINE * 2, || now).is_none());
    assert!(breaker.admit(DEADLINE * 3, || now).is_some());
}

#[test]
fn only_reply_within_exceeded_deadline_closes_breaker() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE, now);
    assert!(!breaker.admit(DEADLINE * 2, || now).unwrap().answered(DEADLINE));
    assert!(breaker.rejects(DEADLINE));
    assert!(!breaker.answered(DEADLINE));
    assert!(breaker.rejects(DEADLINE));
    assert!(breaker.admit(DEADLINE * 2, || now).unwrap().answered(IN_TIME));
    assert!(!breaker.rejects(DEADLINE));
}

#[test]
fn reply_after_exceeded_deadline_does_not_reset_count() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    for _ in 0..FAILURES_UNTIL_OPEN - 1 {
        assert!(!fail(&breaker, now));
        breaker.answered(DEADLINE);
    }
    assert!(fail(&breaker, now));
}

#[test]
fn failed_connections_reject_all_calls_until_any_reply() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE, now);
    while !breaker.unreachable(now) {}
    assert!(breaker.admit(Duration::MAX, || now).is_none());
    assert!(breaker.answered(DEADLINE * 100));
    assert!(breaker.admit(Duration::ZERO, || now).is_some());
}

#[test]
fn late_reply_to_probe_counts_as_failure() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    open_for(&breaker, DEADLINE, now);
    let probe = breaker.admit(DEADLINE, || now + LONGEST_PAUSE).unwrap();
    assert!(!probe.answered(DEADLINE));
    assert!(breaker.admit(DEADLINE, Instant::now).is_none());
}
