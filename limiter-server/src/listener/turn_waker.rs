//! Polls a connection again instead of waking its task while the task runs.
//!
//! hyper wakes the task of a connection from within its own poll: for each body that a request
//! reads, and for each HTTP/2 response. Such a wake puts the task into the queue of the runtime and
//! wakes an idle thread, which takes the connection from the running one. [`TurnWaker`] only
//! records a wake that arrives during a turn, and the turn then polls the connection again.
//!
//! Invariant: a wake is followed by a poll that begins after it, or by a wake of the task. Tests:
//! below.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// No turn runs, and no wake has arrived since the last one.
const WAITING: u8 = 0;
/// A turn runs, and no wake has arrived since the start of its round.
const RUNNING: u8 = 1;
/// A wake has arrived.
const WOKEN: u8 = 2;

/// The waker of a connection and of its requests.
#[derive(Debug)]
pub(super) struct TurnWaker {
    state: Arc<TurnState>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct TurnState {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Default for TurnWaker {
    fn default() -> Self {
        let state = Arc::<TurnState>::default();
        let waker = Waker::from(Arc::clone(&state));
        Self { state, waker }
    }
}

impl TurnWaker {
    /// Polls until a round ends without a wake during it, at most `max_rounds` times. Further wakes
    /// then wake the task, after the turn of other tasks.
    pub(super) fn turn<T>(
        &self,
        task: &Context<'_>,
        max_rounds: usize,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Self { state, waker } = self;
        state.task.register(task.waker());
        for _ in 0..max_rounds {
            // Reads the wakes that it discards: this poll then observes their reasons.
            state.state.swap(RUNNING, Ordering::SeqCst);
            if let Poll::Ready(ended) = poll(&mut Context::from_waker(waker)) {
                return Poll::Ready(ended);
            }
            if state.stop() {
                return Poll::Pending;
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

impl TurnState {
    /// Ends a round. Returns whether no wake has arrived during it.
    fn stop(&self) -> bool {
        let stopped = self
            .state
            .compare_exchange(RUNNING, WAITING, Ordering::SeqCst, Ordering::SeqCst);
        stopped.is_ok()
    }
}

impl Wake for TurnState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::SeqCst) == WAITING {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    /// Counts the wakes of a task.
    #[derive(Default)]
    struct CountedWakes(AtomicUsize);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wake_during_a_turn_polls_again_without_a_wake_of_the_task() {
        let wakes = Arc::<CountedWakes>::default();
        let (turns, task) = (TurnWaker::default(), Waker::from(Arc::clone(&wakes)));
        let (mut polls, mut kept) = (0, None);
        let polled = turns.turn(&Context::from_waker(&task), 8, |context| {
            polls += 1;
            kept = Some(context.waker().clone());
            if polls < 3 {
                context.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((polls, wakes.0.load(Ordering::Relaxed)), (3, 0));
        // Between turns, the first wake wakes the task.
        let kept = kept.unwrap();
        kept.wake_by_ref();
        kept.wake_by_ref();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn turn_ends_after_its_rounds_and_wakes_the_task() {
        let wakes = Arc::<CountedWakes>::default();
        let (turns, task) = (TurnWaker::default(), Waker::from(Arc::clone(&wakes)));
        let mut polls = 0;
        let polled = turns.turn(&Context::from_waker(&task), 4, |context| {
            polls += 1;
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((polls, wakes.0.load(Ordering::Relaxed)), (4, 1));
    }

    /// Other threads wake at any time: each number that they have added before a wake is seen by a
    /// later poll.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn wakes_of_other_threads_are_not_lost() {
        const NUMBERS: usize = 20_000;
        let (turns, added) = (TurnWaker::default(), Arc::new(AtomicUsize::new(0)));
        let mut adding = None;
        let all = poll_fn(|task| {
            turns.turn(task, 8, |context| {
                let seen = added.load(Ordering::SeqCst);
                if seen == NUMBERS {
                    return Poll::Ready(());
                }
                adding.get_or_insert_with(|| {
                    let (waker, added) = (context.waker().clone(), Arc::clone(&added));
                    std::thread::spawn(move || {
                        for _ in 0..NUMBERS {
                            added.fetch_add(1, Ordering::SeqCst);
                            waker.wake_by_ref();
                        }
                    })
                });
                Poll::Pending
            })
        });
        let waited = tokio::time::timeout(Duration::from_secs(60), all).await;
        assert!(waited.is_ok(), "the last wake was lost");
    }
}
