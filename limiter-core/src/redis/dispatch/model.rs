//! Model check: every waiter gets a reply from the holder of a slot, and no state remains.
//!
//! Schedules, each with and without a dropped batch: the first 20,000 of two callers, depth first,
//! and 2,000 random ones of five callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::{check_dfs, check_random, future, thread};

use crate::redis::dispatch::tests::{check, verdict};
use crate::redis::dispatch::*;

/// The threads that reply to batches, one per batch.
type Running = Arc<Mutex<Vec<thread::JoinHandle<()>>>>;

/// Several threads call concurrently; the last one is cancelled. `drops_first_batch` also drops the
/// thread of the first batch without a reply.
fn run_callers(callers: usize, drops_first_batch: bool) {
    let (running, sent) = (Running::default(), Arc::new(AtomicUsize::new(0)));
    let (join, batches) = (Arc::clone(&running), Arc::clone(&sent));
    let queue = BatchQueue::new(move |start| {
        let batches = Arc::clone(&batches);
        let replying = thread::spawn(move || {
            let number = batches.fetch_add(1, Ordering::SeqCst);
            if drops_first_batch && number == 0 {
                return drop(start);
            }
            let (entries, mut slot) = start.take_batch().unwrap();
            thread::yield_now();
            if number == 1 {
                slot.release();
            }
            for entry in entries {
                let count = entry.callers.len();
                entry.send_replies((0..count).map(|_| Ok(verdict(0))));
            }
        });
        join.lock().push(replying);
    });
    let calling: Vec<_> = (0..callers)
        .map(|number| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let input = check(&[("k", 1 + number as u64 % 2)]);
                match queue.enter(BatchPart::default(), &input, CallDeadline::after(Duration::MAX)) {
                    Admission::Alone(slot) => {
                        thread::yield_now();
                        drop(slot);
                    }
                    Admission::Waits(_) if number + 1 == callers => {}
                    // A schedule without a reply is a deadlock, which the checker reports.
                    Admission::Waits(answer) => {
                        assert!(future::block_on(answer).is_ok() || drops_first_batch)
                    }
                }
            })
        })
        .collect();
    calling.into_iter().for_each(|thread| thread.join().unwrap());
    loop {
        let Some(replying) = running.lock().pop() else {
            break;
        };
        replying.join().unwrap();
    }
    let state = queue.lock();
    assert!(state.queue.entries.is_empty() && !state.starting);
    assert_eq!(state.taken, 0, "every slot is free");
}

#[test]
fn two_callers_get_replies() {
    check_dfs(|| run_callers(2, false), Some(20_000));
    check_dfs(|| run_callers(2, true), Some(20_000));
}

#[test]
fn five_callers_get_replies() {
    check_random(|| run_callers(5, false), 2_000);
    check_random(|| run_callers(5, true), 2_000);
}
