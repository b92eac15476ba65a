//! Model check of the refresh: refreshes do not overlap, and each waiter receives a result.
//!
//! Schedules: the first 5,000 of two waiters, depth first, and 1,000 random ones of four.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shuttle::{check_dfs, check_random, future, thread};

use crate::redis::cluster::slot_map_refresh::SlotMapRefresh;

const LONG_AGO: Duration = Duration::from_secs(1);

/// Several callers wait at once. The caller with the permission refreshes in its own task, which
/// succeeds or is dropped.
fn all_waiters_receive_result(waiters: u64) {
    let (refresh, now) = (SlotMapRefresh::new(), Instant::now());
    let running = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..waiters)
        .map(|number| {
            let (refresh, running) = (Arc::clone(&refresh), Arc::clone(&running));
            thread::spawn(move || {
                let mut next = refresh.next();
                // Moments differ, as they do.
                let started = now + Duration::from_micros(number);
                let learning = refresh.start(Duration::ZERO, started).map(|learning| {
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                    thread::spawn(move || {
                        thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                        if number % 2 == 0 {
                            learning.finish(Ok(()));
                        } else {
                            drop(learning);
                        }
                    })
                });
                // A schedule without a report is a deadlock, which the checker detects.
                future::block_on(next.changed()).unwrap();
                learning.map(thread::JoinHandle::join)
            })
        })
        .collect();
    for waiting in waiting {
        let _learned = waiting.join().unwrap();
    }
    assert!(
        refresh.start(Duration::ZERO, now + LONG_AGO).is_some(),
        "the permission is available again"
    );
}

#[test]
fn two_waiters_receive_result() {
    check_dfs(|| all_waiters_receive_result(2), Some(5_000));
}

#[test]
fn four_waiters_receive_result() {
    check_random(|| all_waiters_receive_result(4), 1_000);
}
