//! Model check of the breaker: at most one probe at a time, one report per opening, and recovery.
//!
//! Schedules: all of two calls that probe, and 1,000 random ones of four; for openings, the first
//! 4,000 of two threads, depth first, and 1,000 random ones of three; for all results, 2,000 random
//! ones of three threads.
//!
//! Tests: `two_calls_never_probe_at_once`, `opening_by_concurrent_calls_is_reported_once`,
//! `breaker_recovers_from_all_results`, with `cargo xtask model`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::{check_dfs, check_random, thread};

use crate::redis::client::breaker::*;

const DEADLINE: Duration = Duration::from_millis(50);
const IN_TIME: Duration = Duration::from_millis(1);

/// An open breaker, and a moment at which a probe is due.
fn open() -> (Arc<Breaker>, Instant) {
    let (breaker, now) = (Breaker::new(), Instant::now());
    while !fail(&breaker, now) {}
    (breaker, now + LONGEST_PAUSE * 2)
}

/// A call without a reply. Returns whether it opened the breaker.
fn fail(breaker: &Arc<Breaker>, now: Instant) -> bool {
    breaker.admit(DEADLINE, || now).is_ok() && breaker.on_timeout(now, DEADLINE)
}

/// Runs `threads` threads with one breaker until all have ended.
fn together(
    breaker: &Arc<Breaker>,
    threads: usize,
    run: impl Fn(&Arc<Breaker>, usize) + Send + Sync + 'static,
) {
    let run = Arc::new(run);
    let running: Vec<_> = (0..threads)
        .map(|number| {
            let (breaker, run) = (Arc::clone(breaker), Arc::clone(&run));
            thread::spawn(move || run(&breaker, number))
        })
        .collect();
    running.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A later call starts a probe, and its reply closes the breaker.
fn recovers(breaker: &Arc<Breaker>, later: Instant) {
    let much_later = later + LONGEST_PAUSE * 4;
    // A call replaces an abandoned probe; a call of a closed breaker passes.
    if let Err(probe) = breaker.admit(DEADLINE, || much_later) {
        let probe = probe.expect("the breaker never stays open");
        assert!(probe.on_reply(IN_TIME, much_later));
    } else {
        breaker.on_reply(IN_TIME);
    }
    assert!((0..2).all(|_| breaker.admit(DEADLINE, || much_later).is_ok()));
}

fn one_probe_at_a_time(threads: usize) {
    let (breaker, later) = open();
    let out = AtomicUsize::new(0);
    together(&breaker, threads, move |breaker, number| {
        let Some(probe) = breaker.admit(DEADLINE, || later).unwrap_err() else {
            return;
        };
        assert_eq!(out.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
        thread::yield_now();
        out.fetch_sub(1, Ordering::SeqCst);
        if number == 0 {
            probe.on_timeout(later);
        } else {
            drop(probe);
        }
    });
    recovers(&breaker, later);
}

fn assert_opening_is_reported_once(threads: usize, failures: usize) {
    let (breaker, now) = (Breaker::new(), Instant::now());
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    together(&breaker, threads, move |breaker, _| {
        for _ in 0..failures {
            count.fetch_add(usize::from(fail(breaker, now)), Ordering::SeqCst);
        }
    });
    assert_eq!(opened.load(Ordering::SeqCst), 1);
    recovers(&breaker, now);
}

/// Combines calls from before the opening, an abandoned probe and probes with every result.
fn all_call_results_interleave() {
    let (breaker, now) = (Breaker::new(), Instant::now());
    together(&breaker, 3, move |breaker, number| {
        let early = breaker.admit(DEADLINE, || now).is_ok();
        while breaker.admit(DEADLINE, || now).is_ok() && !breaker.on_timeout(now, DEADLINE) {}
        let later = now + LONGEST_PAUSE * 2;
        let probe = breaker.admit(DEADLINE, || later).err().flatten();
        match (number, early, probe) {
            (0, true, probe) => {
                breaker.on_reply(IN_TIME);
                drop(probe);
            }
            (1, _, Some(probe)) => std::mem::forget(probe),
            (_, early, probe) => {
                if early {
                    breaker.on_timeout(later, DEADLINE);
                }
                if let Some(probe) = probe {
                    probe.on_timeout(later);
                }
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
