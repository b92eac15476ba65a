//! Under every schedule: one holds the turn of a queue, everybody gets it, and a queue that all have left is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::{check_dfs, check_random, future, thread};
use smallvec::smallvec;

use super::Queues;
use crate::identity::Prefix;

/// Some wait for their turn, one of them gives up after it has begun to wait, or before.
fn come_and_go(waiters: usize) {
    let queues = Arc::new(Queues::new(waiters));
    let name = Prefix::new("tb", "p").identity(None, "name");
    let (holding, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let waiting: Vec<_> = (0..waiters)
        .map(|number| {
            let (queues, holding, served) = (Arc::clone(&queues), Arc::clone(&holding), Arc::clone(&served));
            thread::spawn(move || {
                let place = queues.join(smallvec![name]).unwrap();
                if number == 0 {
                    // Polled once at most: a caller whose time is over.
                    let mut turn = Box::pin(place.turn().lock());
                    let waker = std::task::Waker::noop();
                    let _ = turn.as_mut().poll(&mut std::task::Context::from_waker(waker));
                    thread::yield_now();
                    return;
                }
                let turn = future::block_on(place.turn().lock());
                assert_eq!(holding.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                thread::yield_now();
                holding.fetch_sub(1, Ordering::SeqCst);
                served.fetch_add(1, Ordering::SeqCst);
                drop(turn);
            })
        })
        .collect();
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(served.load(Ordering::SeqCst), waiters - 1, "nobody is lost");
    let left = queues.lock();
    assert_eq!(
        (left.turns.len(), left.count),
        (0, 0),
        "an empty queue does not exist"
    );
}

#[test]
fn two_come_and_go() {
    check_dfs(|| come_and_go(2), Some(20_000));
}

#[test]
fn four_come_and_go() {
    check_dfs(|| come_and_go(3), Some(4_000));
    check_random(|| come_and_go(4), 1_000);
}
