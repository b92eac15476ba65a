//! Start and shutdown of a limiter, and the number of its replicas.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::support::real_time;

impl Limiter {
    /// Prepares for traffic: dials every node, loads the scripts, and warns in the log, once for
    /// each node and where INFO is permitted, of a server that evicts live limits when its memory
    /// is full. A program that waits for it before it reports itself ready pays for neither on its
    /// first call. Readiness never depends on Redis afterwards.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when a node cannot be reached within five seconds, takes no writes, or does
    /// not permit what the scripts call, which is tried on keys `namespace|{ready}|…` that are
    /// deleted again. Its text says why, so it has no [`source`](std::error::Error::source). It may
    /// be called again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ready(&self) -> Result<(), StoreError> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let ready = self.inner.backend.ready(PATIENCE).await;
        ready.inspect(|()| tracing::debug!(within = ?PATIENCE, "ready"))
    }

    /// How many replicas share the limits, this one included: what
    /// [`RedisBuilder::replicas`](crate::RedisBuilder::replicas) says, or the limiters of this
    /// namespace that live, as Redis counts them. 1 in process.
    ///
    /// It matters while the store is out, so counting begins with the first decision that can
    /// charge, not with a peek, under a policy that says
    /// [`OnStoreFailure::Local`](crate::OnStoreFailure::Local). It goes on in a task of that call's
    /// runtime, every five seconds. A replica that joins is known after as long; one that is gone
    /// is believed to be after half a minute.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        self.inner.backend.replicas()
    }

    /// Ends all waits with [`Rejection::Unavailable`](crate::Rejection::Unavailable), waits until
    /// the waiters have left, gives back what was borrowed, and lets the other replicas know that
    /// this one has left, at most until the deadline. Calls that come later are rejected likewise.
    ///
    /// # Cancel safety
    ///
    /// The limiter is shut down from the first poll on. What is dropped with the future is the wait
    /// for the rest.
    pub async fn shutdown(&self, deadline: Duration) {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.closing.send_replace(true);
        // Every waiter holds a receiver. The deadline ends the wait for one that is not polled.
        let remaining_work = async {
            self.inner.closing.closed().await;
            self.inner.backend.shutdown().await;
        };
        let _ = real_time::timeout(deadline, remaining_work).await;
    }
}
