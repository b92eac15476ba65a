//! The requests of one HTTP/2 connection, polled by the task of the connection.
//!
//! hyper gives the future of each request to an executor. With a task for each request, every
//! response wakes the task of the connection, which then writes that response alone: one system
//! call per response. Here the connection writes all responses that are ready at once: calls of the
//! rate limit service on Redis take a quarter less processor time (64 callers, 8 connections).
//!
//! A request waits only for the processor time of others on its connection, not for their store.
//! The requests in flight end with the connection, and a panic ends its request alone. Tests:
//! below, `tests/listeners.rs`.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::rt::Executor;

use crate::listener::turn_waker::TurnWaker;

/// The largest number of polls of a connection before other tasks run. A client that always
/// sends the next requests in time would otherwise keep the thread.
const MAX_ROUNDS: usize = 8;

type RequestFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
type Received = Mutex<Vec<RequestFuture>>;

/// Receives the requests of one connection, for [`ConnectionRequests`].
///
/// Each request of hyper has a clone. The reference is weak, since a request that was received must
/// not keep itself.
#[derive(Clone)]
pub(super) struct RequestExecutor {
    received: Weak<Received>,
}

/// The requests of one connection.
#[derive(Default)]
pub(super) struct ConnectionRequests {
    received: Arc<Received>,
    in_flight: FuturesUnordered<RequestFuture>,
    waker: TurnWaker,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for RequestExecutor {
    fn execute(&self, request: F) {
        let Some(received) = self.received.upgrade() else {
            return;
        };
        // A panic ends its request alone, as in a task of its own. Nothing reads its state again.
        let request = AssertUnwindSafe(request).catch_unwind().map(drop);
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        received.push(Box::pin(request));
    }
}

impl ConnectionRequests {
    /// Returns the executor of the connection.
    pub(super) fn executor(&self) -> RequestExecutor {
        RequestExecutor {
            received: Arc::downgrade(&self.received),
        }
    }

    /// Polls a connection and its requests until the connection ends.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the requests stay in this value.
    pub(super) async fn run<C: Future>(&mut self, mut connection: Pin<&mut C>) -> C::Output {
        let Self {
            received,
            in_flight,
            waker,
        } = self;
        poll_fn(|task| {
            waker.turn(task, MAX_ROUNDS, |context| {
                let polled = connection.as_mut().poll(context);
                // Requests that arrived with the end of the connection can still take effect.
                let has_ended = poll_requests(received, in_flight, context);
                if has_ended && polled.is_pending() {
                    // A response that is ready is written by the next poll of the connection.
                    context.waker().wake_by_ref();
                }
                polled
            })
        })
        .await
    }
}

/// Polls the requests that can progress. Returns whether one has ended.
fn poll_requests(
    received: &Received,
    in_flight: &mut FuturesUnordered<RequestFuture>,
    context: &mut Context<'_>,
) -> bool {
    in_flight.extend(std::mem::take(
        &mut *received.lock().unwrap_or_else(PoisonError::into_inner),
    ));
    if in_flight.is_empty() {
        // HTTP/1 has no requests here, and the poll of an empty collection registers the task.
        return false;
    }
    let mut has_ended = false;
    while let Poll::Ready(Some(())) = in_flight.poll_next_unpin(context) {
        has_ended = true;
    }
    has_ended
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    /// A connection that ends at its second poll.
    async fn two_polls() {
        tokio::task::yield_now().await;
    }

    #[tokio::test]
    async fn request_that_waits_does_not_delay_others() {
        let mut requests = ConnectionRequests::default();
        let (send, received) = oneshot::channel::<()>();
        let ended = Arc::new(AtomicUsize::new(0));
        requests.executor().execute(pending());
        for _ in 0..3 {
            let ended = Arc::clone(&ended);
            requests.executor().execute(async move {
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        requests.executor().execute(async move {
            let _ = send.send(());
        });
        let connection = pin!(async { received.await.is_ok() });
        assert!(requests.run(connection).await);
        assert_eq!(ended.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn panic_ends_its_request_alone() {
        let mut requests = ConnectionRequests::default();
        let (send, received) = oneshot::channel::<()>();
        requests
            .executor()
            .execute(async { panic!("a defect of a request") });
        requests.executor().execute(async move {
            let _ = send.send(());
        });
        let connection = pin!(async { received.await.is_ok() });
        assert!(requests.run(connection).await);
    }

    /// Two requests that are ready together are followed by one poll of the connection.
    #[tokio::test]
    async fn connection_writes_ready_responses_together() {
        let mut requests = ConnectionRequests::default();
        requests.executor().execute(ready(()));
        requests.executor().execute(ready(()));
        let polls = AtomicUsize::new(0);
        let connection = pin!(poll_fn(|_| match polls.fetch_add(1, Ordering::Relaxed) {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }));
        requests.run(connection).await;
        assert_eq!(polls.load(Ordering::Relaxed), 2);
        assert!(requests.in_flight.is_empty());
    }

    #[tokio::test]
    async fn requests_survive_a_cancelled_run() {
        let mut requests = ConnectionRequests::default();
        let (send, received) = oneshot::channel::<()>();
        requests.executor().execute(async move {
            let _ = received.await;
        });
        let never = pin!(pending::<()>());
        tokio::select! {
            biased;
            () = requests.run(never) => unreachable!("the connection does not end"),
            () = ready(()) => {}
        }
        send.send(()).unwrap();
        requests.run(pin!(two_polls())).await;
        assert!(requests.in_flight.is_empty());
    }

    /// hyper's future of a request contains a clone of the executor.
    #[tokio::test]
    async fn requests_that_arrive_with_the_end_are_polled_and_dropped() {
        let mut requests = ConnectionRequests::default();
        let polled = Arc::new(AtomicUsize::new(0));
        let (executor, count) = (requests.executor(), Arc::clone(&polled));
        let connection = pin!(async {
            let own = executor.clone();
            executor.execute(async move {
                count.fetch_add(1, Ordering::Relaxed);
                pending::<()>().await;
                drop(own);
            });
        });
        requests.run(connection).await;
        assert_eq!(polled.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&polled), 2);
        drop(requests);
        assert_eq!(Arc::strong_count(&polled), 1);
        executor.execute(pending());
    }

    #[tokio::test]
    async fn busy_connection_lets_other_tasks_run() {
        let mut requests = ConnectionRequests::default();
        let executor = requests.executor();
        let polls = AtomicUsize::new(0);
        let busy = pin!(poll_fn(|_| {
            polls.fetch_add(1, Ordering::Relaxed);
            executor.execute(ready(()));
            Poll::<()>::Pending
        }));
        tokio::select! {
            biased;
            () = requests.run(busy) => unreachable!("the connection does not end"),
            () = ready(()) => {}
        }
        assert_eq!(polls.load(Ordering::Relaxed), MAX_ROUNDS);
    }
}
