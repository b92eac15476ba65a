//! Model check of the queues: each waiter gets a result, each grant is used once or refunded, and a
//! queue without waiters is removed.
//!
//! Schedules: the first 20,000 of two waiters, depth first, and 1,000 random ones of four, each
//! with and without an abandoned query; the first 4,000 of three waiters, depth first.
//!
//! Tests: `two_waiters_join_and_leave`, `four_waiters_join_and_leave`, with `cargo xtask model`.

use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::{check_dfs, check_random, future, thread};
use smallvec::smallvec;

use crate::algorithm::{Mode, StepOutcome};
use crate::decision::Origin;
use crate::identity::Prefix;
use crate::request::Verdict;
use crate::wait_queue::tests::{policy, soon, wanted};
use crate::wait_queue::*;

const NOW: Timestamp = Timestamp::from_micros(1);

#[derive(Debug, Default)]
struct Tally {
    granted: AtomicUsize,
    taken: AtomicUsize,
    returned: AtomicUsize,
    stores: Mutex<Vec<thread::JoinHandle<()>>>,
}

fn allowed(request: &OwnedRequest) -> Decision {
    let outcomes = smallvec![StepOutcome {
        fits: true,
        ..StepOutcome::default()
    }];
    let decided_at = NOW;
    request
        .request(Mode::Charge)
        .decision(Verdict::new(decided_at, outcomes), Origin::Redis)
}

/// Starts a thread in the role of the store, which grants the query or abandons it.
fn start_query(ticket: &Ticket, queues: &Arc<WaitQueues>, tally: &Arc<Tally>, abandoned: bool) {
    let (query, store_tally) = (ticket.begin_query(queues, soon()), Arc::clone(tally));
    let store = thread::spawn(move || {
        if abandoned {
            return;
        }
        store_tally.granted.fetch_add(query.repetitions, Ordering::SeqCst);
        let results: Vec<_> = (0..query.repetitions)
            .map(|_| Ok(allowed(&query.requested)))
            .collect();
        let unused = query.hand_out(results, |_| RetryTimes::when_due(NOW));
        store_tally.returned.fetch_add(unused.len(), Ordering::SeqCst);
    });
    tally.stores.lock().push(store);
}

/// Several calls wait; the first one starts a query if it has to, which may be abandoned, and
/// leaves.
fn join_and_leave(waiters: usize, abandoned: bool) {
    let (queues, tally) = (Arc::new(WaitQueues::new(waiters)), Arc::new(Tally::default()));
    let name: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let policy = policy();
    let waiting: Vec<_> = (0..waiters)
        .map(|number| {
            let (queues, tally) = (Arc::clone(&queues), Arc::clone(&tally));
            let (name, request) = (name.clone(), wanted(&policy, 1));
            thread::spawn(move || {
                let mut ticket = queues.join(name, request).unwrap();
                if number == 0 {
                    match ticket.poll_state(&queues, NOW) {
                        TicketState::MustQuery(_) => start_query(&ticket, &queues, &tally, abandoned),
                        // It was served before it could leave.
                        TicketState::Resolved(_) => _ = tally.returned.fetch_add(1, Ordering::SeqCst),
                        _ => {}
                    }
                    thread::yield_now();
                } else {
                    loop {
                        match ticket.poll_state(&queues, NOW) {
                            TicketState::Resolved(result) => {
                                assert!(result.is_ok());
                                break;
                            }
                            TicketState::MustQuery(_) => start_query(&ticket, &queues, &tally, false),
                            _ => future::block_on(ticket.notified()),
                        }
                    }
                    tally.taken.fetch_add(1, Ordering::SeqCst);
                }
                let unused = ticket.remove(&queues);
                tally
                    .returned
                    .fetch_add(usize::from(unused.is_some()), Ordering::SeqCst);
            })
        })
        .collect();
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    loop {
        let Some(store) = tally.stores.lock().pop() else {
            break;
        };
        store.join().unwrap();
    }
    let count = |number: &AtomicUsize| number.load(Ordering::SeqCst);
    assert_eq!(count(&tally.taken), waiters - 1, "every waiter is served");
    assert_eq!(
        count(&tally.granted),
        count(&tally.taken) + count(&tally.returned)
    );
    let remaining = queues.lock();
    assert_eq!(
        (remaining.by_id.len(), remaining.count),
        (0, 0),
        "an empty queue is removed"
    );
}

#[test]
fn two_waiters_join_and_leave() {
    check_dfs(|| join_and_leave(2, false), Some(20_000));
    check_dfs(|| join_and_leave(2, true), Some(20_000));
}

#[test]
fn four_waiters_join_and_leave() {
    check_dfs(|| join_and_leave(3, false), Some(4_000));
    check_random(|| join_and_leave(4, false), 1_000);
    check_random(|| join_and_leave(4, true), 1_000);
}
