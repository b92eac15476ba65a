//! Connections and batch queues of a node, one set for each Tokio runtime. A connection and its
//! tasks end with the runtime that opened the connection.
//!
//! One connection carries all calls of a runtime, so that the server receives them in order. The
//! pool keeps spares, and a call takes another connection only if the one in use is unhealthy. An
//! idle task marks the end of a runtime; then the set is removed.
//!
//! Tests: below, `tests/connections.rs`.

use std::fmt;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bb8_redis::bb8::{CustomizeConnection, Pool, RunError};
use bb8_redis::redis::RedisError;
use tokio::runtime;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::client::breaker::Breaker;
use crate::redis::client::connection::Connection;
use crate::redis::dispatch::BatchQueue;
use crate::redis::node::dial_failures::DialFailures;
use crate::redis::topology::dialer::Dialer;
use crate::support::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

/// Upper bound of runtimes per node. Beyond it, the set of the oldest runtime is dropped and
/// created again on its next call.
const MAX_RUNTIMES: usize = 1024;

/// Entries of the runtimes that used the node, the newest last.
#[derive(Debug, Default)]
pub(crate) struct RuntimePools(RwLock<Vec<RuntimeEntry>>);

/// Connections and batch queue of one runtime.
#[derive(Debug)]
pub(crate) struct RuntimeConnections {
    pool: Pool<Dialer>,
    failures: Arc<DialFailures>,
    pub(crate) batch_queue: Arc<BatchQueue>,
    /// The connection that carries all calls while it is healthy, so that the server receives them
    /// in order. The other connections of the pool are spares.
    used: Mutex<Option<Connection>>,
}

struct RuntimeEntry {
    runtime: runtime::Id,
    local: Arc<RuntimeConnections>,
    /// An idle task that ends together with its runtime.
    runtime_probe: AbortHandle,
}

impl RuntimePools {
    /// Returns the entry of the current runtime; creates it with `new` on the first call.
    pub(crate) fn current(
        &self,
        new: impl FnOnce(Handle) -> RuntimeConnections,
    ) -> Result<Arc<RuntimeConnections>, StoreError> {
        let no_runtime = |_| {
            StoreError::new(
                StoreErrorKind::Connection,
                "call the limiter from within a Tokio runtime",
            )
            .unsent()
        };
        let runtime = Handle::try_current().map_err(no_runtime)?;
        let find = |pools: &[RuntimeEntry]| {
            let entry = pools.iter().find(|entry| entry.is_of(runtime.id()));
            entry.map(|entry| Arc::clone(&entry.local))
        };
        // Fast path: nearly every call finds its entry.
        if let Some(local) = find(&self.0.read()) {
            return Ok(local);
        }
        let mut pools = self.write();
        // Another thread of the runtime may have created the entry.
        if let Some(local) = find(&pools) {
            return Ok(local);
        }
        pools.retain(|entry| !entry.runtime_probe.is_finished());
        if pools.len() >= MAX_RUNTIMES {
            pools.remove(0);
        }
        let local = Arc::new(new(runtime.clone()));
        pools.push(RuntimeEntry {
            runtime: runtime.id(),
            local: Arc::clone(&local),
            runtime_probe: runtime.spawn(pending::<()>()).abort_handle(),
        });
        Ok(local)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<RuntimeEntry>> {
        self.0.write()
    }
}

impl RuntimeConnections {
    /// Creates a set from a pool that reports its failed dials to `failures`.
    pub(crate) fn new(pool: Pool<Dialer>, failures: Arc<DialFailures>, batch_queue: Arc<BatchQueue>) -> Self {
        Self {
            pool,
            failures,
            batch_queue,
            used: Mutex::new(None),
        }
    }

    /// Returns a healthy connection for a call with this deadline, and dials one if there is none.
    /// Sends nothing of the call.
    pub(crate) async fn connection(&self, deadline: Duration) -> Result<Connection, StoreError> {
        match self.in_use(deadline) {
            Some(connection) => Ok(connection),
            // On the heap, since it is rare and would enlarge the future of every call.
            None => Box::pin(self.another_connection(deadline)).await,
        }
    }

    async fn another_connection(&self, deadline: Duration) -> Result<Connection, StoreError> {
        loop {
            // Registered before `pool.get()`, so that a failure in between is not lost.
            let failed = self.failures.next();
            tokio::pin!(failed);
            failed.as_mut().enable();
            let connection = tokio::select! {
                biased;
                connection = self.pool.get() => connection.map_err(|error| match error {
                    RunError::User(error) => StoreError::from(error).unsent(),
                    RunError::TimedOut => StoreError::new(StoreErrorKind::Timeout, "timed out waiting for a connection").unsent(),
                })?,
                () = failed => return Err(self.failures.last().unsent()),
            };
            // The pool discards a broken connection when it is dropped.
            if connection.is_healthy(deadline) {
                self.switch_to(connection.clone());
                return Ok(connection.clone());
            }
        }
    }

    /// Returns the connection in use, if it is healthy enough for this deadline.
    fn in_use(&self, deadline: Duration) -> Option<Connection> {
        let mut used = self.lock();
        if used
            .as_ref()
            .is_some_and(|connection| !connection.is_healthy(deadline))
        {
            *used = None;
        }
        used.clone()
    }

    /// Makes this connection the one in use.
    fn switch_to(&self, connection: Connection) {
        *self.lock() = Some(connection);
        self.batch_queue.forget_round_trip();
    }

    /// Stops using this connection, if it is still in use.
    pub(crate) fn discard(&self, connection: &Connection) {
        let mut used = self.lock();
        if used.as_ref().is_some_and(|used| used.is_same(connection)) {
            *used = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.used.lock()
    }
}

/// Reports each new connection to the breaker.
#[derive(Debug)]
pub(crate) struct BreakerNotifier(pub(crate) Arc<Breaker>);

impl CustomizeConnection<Connection, RedisError> for BreakerNotifier {
    fn on_acquire<'a>(
        &'a self,
        _connection: &'a mut Connection,
    ) -> Pin<Box<dyn Future<Output = Result<(), RedisError>> + Send + 'a>> {
        self.0.connected(Instant::now());
        Box::pin(std::future::ready(Ok(())))
    }
}

impl RuntimeEntry {
    /// Returns whether the entry belongs to a live runtime. A new runtime may reuse the id of an
    /// ended one.
    fn is_of(&self, runtime: runtime::Id) -> bool {
        self.runtime == runtime && !self.runtime_probe.is_finished()
    }
}

impl Drop for RuntimeEntry {
    fn drop(&mut self) {
        self.runtime_probe.abort();
    }
}

impl fmt::Debug for RuntimeEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RuntimeEntry").field(&self.runtime).finish()
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::ErrorKind;
    use tokio::runtime::{Builder, Runtime};

    use crate::redis::client::endpoint::Endpoint;
    use crate::redis::client::tls::Certificates;
    use crate::redis::node::pools::*;
    use crate::redis::node::tests::node_at;

    fn use_in(runtime: &Runtime, pools: &RuntimePools) -> Arc<RuntimeConnections> {
        let endpoint = Endpoint::parse(&"redis://127.0.0.1:1/".into(), &Certificates::default()).unwrap();
        // Without background tasks.
        let builder = Pool::builder().max_lifetime(None).idle_timeout(None);
        let dialer = Dialer::To(endpoint);
        let failures = DialFailures::new(dialer.clone());
        let new =
            |_| RuntimeConnections::new(builder.build_unchecked(dialer), failures, BatchQueue::new(drop));
        runtime.block_on(async { pools.current(new).unwrap() })
    }

    /// The call's own dial is pending.
    #[test]
    fn failed_dial_of_another_runtime_fails_no_call() {
        let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}/", silent.local_addr().unwrap());
        let node = node_at(&url, 8);
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let (one, other) = (runtime(), runtime());
        let theirs = other.block_on(async { node.local().unwrap() });
        one.block_on(async {
            let mut call = Box::pin(node.connection(Duration::from_secs(60)));
            let is_pending = async |call: &mut Pin<Box<_>>| {
                tokio::time::timeout(Duration::from_millis(20), call)
                    .await
                    .is_err()
            };
            assert!(is_pending(&mut call).await);
            theirs
                .failures
                .sink()
                .sink((ErrorKind::Io, "too many open files").into());
            assert!(is_pending(&mut call).await);
        });
    }

    /// Simulates a runtime that reuses an id.
    #[test]
    fn runtime_with_reused_id_gets_new_connections() {
        let pools = RuntimePools::default();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let first = use_in(&runtime, &pools);
        assert!(Arc::ptr_eq(&first, &use_in(&runtime, &pools)));
        pools.write()[0].runtime_probe.abort();
        runtime.block_on(tokio::task::yield_now());
        assert!(!Arc::ptr_eq(&first, &use_in(&runtime, &pools)));
        assert_eq!(pools.write().len(), 1);
    }

    #[test]
    fn pools_end_with_runtime_and_leave_no_tasks() {
        let pools = RuntimePools::default();
        let new = || Builder::new_current_thread().enable_all().build().unwrap();
        let stays = new();
        use_in(&stays, &pools);
        for _ in 0..5 {
            let ends = Builder::new_multi_thread().worker_threads(1).enable_all().build();
            use_in(&ends.unwrap(), &pools);
            assert!(pools.write().len() <= 2);
        }
        use_in(&stays, &pools);
        use_in(&new(), &pools);
        let entry: Vec<_> = pools.write().iter().map(|entry| entry.runtime).collect();
        assert_eq!((entry.len(), entry.first()), (2, Some(&stays.handle().id())));

        assert_eq!(stays.metrics().num_alive_tasks(), 1);
        drop(pools);
        stays.block_on(tokio::task::yield_now());
        assert_eq!(stays.metrics().num_alive_tasks(), 0);
    }
}
