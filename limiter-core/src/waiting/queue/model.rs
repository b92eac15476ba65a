//! Under every schedule: whoever waits is told, a grant is taken once or comes back, and a line
//! that all have left is gone.

use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::{check_dfs, check_random, future, thread};
use smallvec::smallvec;

use crate::algorithm::{Mode, Outcome};
use crate::decision::Origin;
use crate::identity::Prefix;
use crate::request::Verdict;
use crate::waiting::queue::tests::{policy, soon, wanted};
use crate::waiting::queue::*;

const NOW: Timestamp = Timestamp::from_micros(1);

#[derive(Debug, Default)]
struct Tally {
    granted: AtomicUsize,
    taken: AtomicUsize,
    returned: AtomicUsize,
    asking: Mutex<Vec<thread::JoinHandle<()>>>,
}

fn allowed(wanted: &OwnedRequest) -> Decision {
    let outcomes = smallvec![Outcome {
        fits: true,
        ..Outcome::default()
    }];
    let decided_at = NOW;
    wanted
        .request(Mode::Charge)
        .decision(Verdict::new(decided_at, outcomes), Origin::Redis)
}

/// Has the store asked by a thread of its own, which grants all or gives up.
fn ask(place: &Place, queues: &Arc<WaitQueues>, tally: &Arc<Tally>, gives_up: bool) {
    let (asking, told) = (place.ask(queues, soon()), Arc::clone(tally));
    let store = thread::spawn(move || {
        if gives_up {
            return;
        }
        told.granted.fetch_add(asking.times, Ordering::SeqCst);
        let answers: Vec<_> = (0..asking.times).map(|_| Ok(allowed(&asking.wanted))).collect();
        let untaken = asking.hand_out(answers, |_| NOW);
        told.returned.fetch_add(untaken.len(), Ordering::SeqCst);
    });
    tally.asking.lock().unwrap().push(store);
}

/// Several wait; the first has the store asked if it is its turn, which may come to nothing, and
/// leaves.
fn come_and_go(waiters: usize, gives_up: bool) {
    let (queues, tally) = (Arc::new(WaitQueues::new(waiters)), Arc::new(Tally::default()));
    let name: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let policy = policy();
    let waiting: Vec<_> = (0..waiters)
        .map(|number| {
            let (queues, tally) = (Arc::clone(&queues), Arc::clone(&tally));
            let (name, wanted) = (name.clone(), wanted(&policy, 1));
            thread::spawn(move || {
                let mut place = queues.join(name, wanted).unwrap();
                if number == 0 {
                    match place.look(&queues, NOW) {
                        TicketState::Own(_) => ask(&place, &queues, &tally, gives_up),
                        // It was served before it could leave.
                        TicketState::Over(_) => _ = tally.returned.fetch_add(1, Ordering::SeqCst),
                        _ => {}
                    }
                    thread::yield_now();
                } else {
                    loop {
                        match place.look(&queues, NOW) {
                            TicketState::Over(answer) => {
                                assert!(answer.is_ok());
                                break;
                            }
                            TicketState::Own(_) => ask(&place, &queues, &tally, false),
                            _ => future::block_on(place.called()),
                        }
                    }
                    tally.taken.fetch_add(1, Ordering::SeqCst);
                }
                let untaken = place.leave(&queues);
                tally
                    .returned
                    .fetch_add(usize::from(untaken.is_some()), Ordering::SeqCst);
            })
        })
        .collect();
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    loop {
        let Some(asking) = tally.asking.lock().unwrap().pop() else {
            break;
        };
        asking.join().unwrap();
    }
    let count = |number: &AtomicUsize| number.load(Ordering::SeqCst);
    assert_eq!(count(&tally.taken), waiters - 1, "nobody is lost");
    assert_eq!(
        count(&tally.granted),
        count(&tally.taken) + count(&tally.returned)
    );
    let left = queues.lock();
    assert_eq!(
        (left.lines.len(), left.count),
        (0, 0),
        "an empty line does not exist"
    );
}

#[test]
fn two_come_and_go() {
    check_dfs(|| come_and_go(2, false), Some(20_000));
    check_dfs(|| come_and_go(2, true), Some(20_000));
}

#[test]
fn four_come_and_go() {
    check_dfs(|| come_and_go(3, false), Some(4_000));
    check_random(|| come_and_go(4, false), 1_000);
    check_random(|| come_and_go(4, true), 1_000);
}
