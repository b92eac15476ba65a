//! Under every schedule: every waiter gets a reply from the holder of a slot, and no state remains.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::{check_dfs, check_random, future, thread};

use crate::redis::dispatch::tests::{check, verdict};
use crate::redis::dispatch::*;

/// The threads that answer batches, one for each batch.
type Running = Arc<Mutex<Vec<thread::JoinHandle<()>>>>;

/// Several threads call at once: the last of them gives up, and so does the thread of one batch.
fn come_and_go(callers: usize, with_accident: bool) {
    let (running, sent) = (Running::default(), Arc::new(AtomicUsize::new(0)));
    let (join, batches) = (Arc::clone(&running), Arc::clone(&sent));
    let queue = BatchQueue::new(move |start| {
        let batches = Arc::clone(&batches);
        let answering = thread::spawn(move || {
            let number = batches.fetch_add(1, Ordering::SeqCst);
            if with_accident && number == 0 {
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
        join.lock().push(answering);
    });
    let calling: Vec<_> = (0..callers)
        .map(|number| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let question = check(&[("k", 1 + number as u64 % 2)]);
                match queue.enter(
                    BatchPart::default(),
                    &question,
                    CallDeadline::after(Duration::MAX),
                ) {
                    Admission::Alone(slot) => {
                        thread::yield_now();
                        drop(slot);
                    }
                    Admission::Waits(_) if number + 1 == callers => {}
                    // A schedule without a reply is a deadlock, which the checker reports.
                    Admission::Waits(answer) => assert!(future::block_on(answer).is_ok() || with_accident),
                }
            })
        })
        .collect();
    calling.into_iter().for_each(|thread| thread.join().unwrap());
    loop {
        let Some(answering) = running.lock().pop() else {
            break;
        };
        answering.join().unwrap();
    }
    let state = queue.lock();
    assert!(state.queue.is_empty() && !state.starting);
    assert_eq!(state.taken, 0, "every slot is free");
}

#[test]
fn two_callers_get_replies() {
    check_dfs(|| come_and_go(2, false), Some(20_000));
    check_dfs(|| come_and_go(2, true), Some(20_000));
}

#[test]
fn five_callers_get_replies() {
    check_random(|| come_and_go(5, false), 2_000);
    check_random(|| come_and_go(5, true), 2_000);
}
