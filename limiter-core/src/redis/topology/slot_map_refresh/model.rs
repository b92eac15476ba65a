//! Under every schedule: one learns at a time, and whoever waits is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shuttle::{check_dfs, check_random, future, thread};

use crate::redis::topology::slot_map_refresh::SlotMapRefresh;

const LONG_AGO: Duration = Duration::from_secs(1);

/// Several wait at once; whoever gets the right learns, in a task of its own, and succeeds or gives
/// up.
fn everybody_is_told(waiters: u64) {
    let (learner, now) = (SlotMapRefresh::new(), Instant::now());
    let at_it = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..waiters)
        .map(|number| {
            let (learner, at_it) = (Arc::clone(&learner), Arc::clone(&at_it));
            thread::spawn(move || {
                let mut next = learner.next();
                // Moments differ, as they do.
                let started = now + Duration::from_micros(number);
                let learning = learner.start(Duration::ZERO, started).map(|learning| {
                    assert_eq!(at_it.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                    thread::spawn(move || {
                        thread::yield_now();
                        at_it.fetch_sub(1, Ordering::SeqCst);
                        if number % 2 == 0 {
                            learning.finish(Ok(()));
                        } else {
                            drop(learning);
                        }
                    })
                });
                // A schedule in which nobody tells is a deadlock, which the checker reports.
                future::block_on(next.changed()).unwrap();
                learning.map(thread::JoinHandle::join)
            })
        })
        .collect();
    for waiting in waiting {
        let _learned = waiting.join().unwrap();
    }
    assert!(
        learner.start(Duration::ZERO, now + LONG_AGO).is_some(),
        "not busy for ever"
    );
}

#[test]
fn two_who_wait_are_told() {
    check_dfs(|| everybody_is_told(2), Some(5_000));
}

#[test]
fn four_who_wait_are_told() {
    check_random(|| everybody_is_told(4), 1_000);
}
