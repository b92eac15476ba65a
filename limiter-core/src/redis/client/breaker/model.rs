//! Model check of the breaker: at most one probe at a time, one report per opening, and recovery
//! under every schedule.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::{check_dfs, check_random, thread};

use crate::redis::client::breaker::*;

const DEADLINE: Duration = Duration::from_millis(50);
const IN_TIME: Duration = Duration::from_millis(1);

/// An open breaker, and a moment at which a probe is due.
fn open() -> (Breaker, Instant) {
    let (breaker, now) = (Breaker::new(), Instant::now());
    while !breaker.admit(DEADLINE, || now).unwrap().overdue(now, DEADLINE) {}
    (breaker, now + LONGEST_PAUSE * 2)
}

/// Runs `threads` threads with one breaker until all have ended.
fn together(
    breaker: Breaker,
    threads: usize,
    run: impl Fn(&Breaker, usize) + Send + Sync + 'static,
) -> Breaker {
    let shared = Arc::new((breaker, run));
    let running: Vec<_> = (0..threads)
        .map(|number| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || (shared.1)(&shared.0, number))
        })
        .collect();
    running.into_iter().for_each(|thread| thread.join().unwrap());
    Arc::into_inner(shared).unwrap().0
}

/// A later call probes, and its reply closes the breaker.
fn recovers(breaker: &Breaker, later: Instant) {
    let much_later = later + LONGEST_PAUSE * 2;
    breaker
        .admit(DEADLINE, || much_later)
        .expect("the breaker never stays open")
        .answered(IN_TIME);
    let passes = [
        breaker.admit(DEADLINE, || much_later),
        breaker.admit(DEADLINE, || much_later),
    ];
    assert!(passes.iter().all(Option::is_some));
}

fn one_probe_at_a_time(threads: usize) {
    let (breaker, later) = open();
    let out = AtomicUsize::new(0);
    let breaker = together(breaker, threads, move |breaker, number| {
        let Some(pass) = breaker.admit(DEADLINE, || later) else {
            return;
        };
        assert_eq!(out.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
        thread::yield_now();
        out.fetch_sub(1, Ordering::SeqCst);
        if number == 0 {
            pass.overdue(later, DEADLINE);
        } else {
            drop(pass);
        }
    });
    recovers(&breaker, later);
}

fn assert_opening_is_reported_once(threads: usize, failures: usize) {
    let (breaker, now) = (Breaker::new(), Instant::now());
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let breaker = together(breaker, threads, move |breaker, _| {
        for _ in 0..failures {
            let reported = breaker
                .admit(DEADLINE, || now)
                .is_some_and(|pass| pass.overdue(now, DEADLINE));
            count.fetch_add(usize::from(reported), Ordering::SeqCst);
        }
    });
    assert_eq!(opened.load(Ordering::SeqCst), 1);
    recovers(&breaker, now);
}

/// Combines calls from before the opening, an abandoned probe and probes with every result.
fn all_call_results_interleave() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    let breaker = together(breaker, 3, move |breaker, number| {
        let early = breaker.admit(DEADLINE, || now);
        while breaker
            .admit(DEADLINE, || now)
            .is_some_and(|pass| !pass.overdue(now, DEADLINE))
        {}
        let later = now + LONGEST_PAUSE * 2;
        let probe = breaker.admit(DEADLINE, || later);
        match (number, early, probe) {
            (0, Some(early), probe) => {
                early.answered(IN_TIME);
                drop(probe);
            }
            (1, early, Some(probe)) => {
                std::mem::forget(probe);
                drop(early);
            }
            (_, early, probe) => {
                early.map(|early| early.overdue(later, DEADLINE));
                probe.map(|probe| probe.overdue(later, DEADLINE));
            }
        }
    });
    recovers(&breaker, now + LONGEST_PAUSE * 2);
}

#[test]
fn two_calls_never_probe_at_once() {
    check_dfs(|| one_probe_at_a_time(2), None);
    check_random(|| one_probe_at_a_time(4), 1_000);
}

#[test]
fn opening_by_concurrent_calls_is_reported_once() {
    check_dfs(|| assert_opening_is_reported_once(2, 3), Some(4_000));
    check_random(|| assert_opening_is_reported_once(3, 3), 1_000);
}

#[test]
fn breaker_recovers_from_all_results() {
    check_random(all_call_results_interleave, 2_000);
}
