//! Model check in 600 random schedules: decisions on several keys never wait for each other, and
//! each is atomic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shuttle::{check_random, thread};

use crate::memory::*;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::clock::ManualClock;

fn bucket(name: &str, capacity: u64) -> Policy {
    Policy::token_bucket(name)
        .capacity(capacity)
        .rate(1)
        .build()
        .unwrap()
}

/// Threads that name the same limits in different orders, while others move the clock, look, and
/// forget.
fn two_limits_in_any_order() {
    let clock = ManualClock::new();
    let store = Arc::new(MemoryStore::new(Clock::Manual(clock.clone()), usize::MAX));
    let admitted = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let (store, admitted, clock) = (Arc::clone(&store), Arc::clone(&admitted), clock.clone());
            thread::spawn(move || {
                let policies = [bucket("small", 3), bucket("large", 5), bucket("other", 1)];
                let mut requests = [
                    LimitRequest::new(&policies[0], "k"),
                    LimitRequest::new(&policies[1], "k"),
                ];
                if number % 2 == 1 {
                    requests.reverse();
                }
                for _ in 0..2 {
                    let request = DecisionRequest::new(requests.clone(), Mode::Charge, false).unwrap();
                    let verdict = store.decide_now(&request).unwrap();
                    let fits = verdict.outcomes.iter().all(|outcome| outcome.fits);
                    admitted.fetch_add(u64::from(fits), Ordering::SeqCst);
                }
                if number == 0 {
                    // The sweep's turn, without a token more: less than the time that one takes.
                    clock.advance(Duration::from_millis(20));
                    let other =
                        DecisionRequest::new([LimitRequest::new(&policies[2], "k")], Mode::Charge, false)
                            .unwrap();
                    store.decide_now(&other).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(admitted.load(Ordering::SeqCst), 3, "six calls for three tokens");
    let large = bucket("large", 5);
    let left = DecisionRequest::new([LimitRequest::new(&large, "k")], Mode::Peek, false).unwrap();
    let left = store.decide_now(&left).unwrap().outcomes[0].remaining;
    assert!(
        (2_000..=2_020).contains(&left),
        "denials by the small limit charge the large limit nothing: {left}"
    );
}

#[test]
fn concurrent_decisions_finish_and_are_atomic() {
    check_random(two_limits_in_any_order, 600);
}
