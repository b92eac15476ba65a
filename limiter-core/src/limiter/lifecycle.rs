//! Start and shutdown of a limiter, and the number of its replicas.

use std::time::Duration;

use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::support::real_time;

impl Limiter {
    /// Prepares for traffic: connects to every primary, loads the scripts of decisions, refunds and
    /// concurrency permits, and logs a warning, once per node and if INFO is permitted, about a
    /// server that evicts live limits when its memory is full. A program that awaits it before it
    /// reports itself ready has no connection setup in its first call. Later readiness never
    /// depends on Redis.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when a primary cannot be reached within five seconds, rejects writes, or
    /// denies a command of decisions or refunds. These commands are tried on keys
    /// `namespace|{ready}|…`, in a cluster on keys `namespace|{readyN}|…` of each primary, which
    /// are deleted again. The commands of concurrency permits, of usage and of the registry are not
    /// tried, nor those of a cluster's replicas. The error's text contains the cause, so it has no
    /// [`source`](std::error::Error::source). The method may be called again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ready(&self) -> Result<(), StoreError> {
        const READY_TIMEOUT: Duration = Duration::from_secs(5);
        let ready = self.inner.backend.ready(READY_TIMEOUT).await;
        ready.inspect(|()| tracing::debug!(within = ?READY_TIMEOUT, "ready"))
    }

    /// Returns the number of replicas that share the limits, including this one: the value of
    /// [`RedisBuilder::replicas`](crate::RedisBuilder::replicas), or the number of live limiters in
    /// this namespace that Redis counts. 1 in process.
    ///
    /// The number is needed while the store is unavailable, so counting starts with the first
    /// decision that can charge (not with a peek) under a policy with
    /// [`OnStoreFailure::Local`](crate::OnStoreFailure::Local). A task in that call's runtime then
    /// updates it every five seconds. A new replica is counted within five seconds; a replica that
    /// stopped without [`shutdown`](Self::shutdown) is counted for up to half a minute.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        self.inner.backend.replicas()
    }

    /// Ends all waits with [`Rejection::Unavailable`](crate::Rejection::Unavailable), waits until
    /// the waiters have left their queues, returns leased permits, and unregisters this replica,
    /// within the deadline. Waiters that are not polled keep their places: after half of the
    /// deadline, the other work continues without them. Later calls are rejected likewise.
    ///
    /// # Cancel safety
    ///
    /// The limiter is shut down from the first poll on. Dropping the future stops only the wait for
    /// the remaining work.
    pub async fn shutdown(&self, deadline: Duration) {
        self.inner.enforcement.close();
        self.inner.closing.send_replace(true);
        let remaining_work = async {
            // Every waiter holds a receiver, also one that is not polled.
            let _ = real_time::timeout(deadline / 2, self.inner.closing.closed()).await;
            Box::pin(self.inner.backend.shutdown()).await;
        };
        let _ = real_time::timeout(deadline, remaining_work).await;
    }
}
