//! What each runtime has of a node: connections live and die with the runtime in which they were
//! dialled, and so do the tasks that send what waits for one.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use bb8_redis::bb8::Pool;
use tokio::runtime;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::client::connection::{Connection, Dialer};
use crate::redis::dispatch::BatchQueue;

/// A program with more runtimes than this at a time has the pool of the oldest made anew: far more
/// than any has, and as many as a server has connections for.
const MOST_RUNTIMES: usize = 1024;

/// Those of the runtimes that have used a server, the newest last.
#[derive(Debug, Default)]
pub(crate) struct RuntimePools(RwLock<Vec<RuntimeEntry>>);

/// What one runtime has.
#[derive(Debug)]
pub(crate) struct RuntimeConnections {
    pub(crate) pool: Pool<Dialer>,
    pub(crate) lane: Arc<BatchQueue>,
    /// The connection over which all calls go as long as it is good, so that the server sees them
    /// in order. The others of the pool stand by.
    used: Mutex<Option<Connection>>,
}

struct RuntimeEntry {
    runtime: runtime::Id,
    local: Arc<RuntimeConnections>,
    /// A task that does nothing, and ends when the runtime does.
    parked: AbortHandle,
}

impl RuntimePools {
    /// What the current runtime has, made by `new` where it has nothing.
    pub(crate) fn current(
        &self,
        new: impl FnOnce(Handle) -> RuntimeConnections,
    ) -> Result<Arc<RuntimeConnections>, StoreError> {
        let no_runtime = |_| {
            StoreError::new(
                StoreErrorKind::Connection,
                "call the limiter from within a Tokio runtime",
            )
        };
        let runtime = Handle::try_current().map_err(no_runtime)?;
        let find = |pools: &[RuntimeEntry]| {
            let own = pools.iter().find(|kept| kept.is_of(runtime.id()));
            own.map(|kept| Arc::clone(&kept.local))
        };
        // Every call comes here, and nearly every one finds what it looks for.
        if let Some(local) = find(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(local);
        }
        let mut pools = self.write();
        // Another thread of the runtime may have been faster.
        if let Some(local) = find(&pools) {
            return Ok(local);
        }
        pools.retain(|kept| !kept.parked.is_finished());
        if pools.len() >= MOST_RUNTIMES {
            pools.remove(0);
        }
        let local = Arc::new(new(runtime.clone()));
        pools.push(RuntimeEntry {
            runtime: runtime.id(),
            local: Arc::clone(&local),
            parked: runtime.spawn(pending::<()>()).abort_handle(),
        });
        Ok(local)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<RuntimeEntry>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RuntimeConnections {
    pub(crate) fn new(pool: Pool<Dialer>, lane: Arc<BatchQueue>) -> Self {
        let used = Mutex::new(None);
        Self { pool, lane, used }
    }

    /// The connection in use, if it is good for a call of this deadline.
    pub(crate) fn in_use(&self, deadline: Duration) -> Option<Connection> {
        let mut used = self.lock();
        if used
            .as_ref()
            .is_some_and(|connection| !connection.is_healthy(deadline))
        {
            *used = None;
        }
        used.clone()
    }

    /// Uses another one from now on.
    pub(crate) fn switch_to(&self, connection: Connection) {
        *self.lock() = Some(connection);
        self.lane.forget_round_trip();
    }

    /// The next call goes over another one, if this is still in use.
    pub(crate) fn discard(&self, connection: &Connection) {
        let mut used = self.lock();
        if used.as_ref().is_some_and(|used| used.is(connection)) {
            *used = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RuntimeEntry {
    /// Whether a runtime has it. One that was started after another has ended may have that one's
    /// number.
    fn is_of(&self, runtime: runtime::Id) -> bool {
        self.runtime == runtime && !self.parked.is_finished()
    }
}

impl Drop for RuntimeEntry {
    fn drop(&mut self) {
        self.parked.abort();
    }
}

impl fmt::Debug for RuntimeEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.runtime).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use crate::redis::client::endpoint::Endpoint;
    use crate::redis::client::pools::*;
    use crate::redis::client::tls::Certificates;

    fn use_in(runtime: &Runtime, pools: &RuntimePools) -> Arc<RuntimeConnections> {
        let endpoint = Endpoint::parse(&"redis://127.0.0.1:1/".into(), &Certificates::default()).unwrap();
        // Without tasks of its own.
        let builder = Pool::builder().max_lifetime(None).idle_timeout(None);
        let new = |_| {
            RuntimeConnections::new(
                builder.build_unchecked(Dialer::To(endpoint)),
                BatchQueue::new(drop),
            )
        };
        runtime.block_on(async { pools.current(new).unwrap() })
    }

    /// As if another runtime had had the same number.
    #[test]
    fn what_a_runtime_left_behind_is_not_found_by_one_of_the_same_number() {
        let pools = RuntimePools::default();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let first = use_in(&runtime, &pools);
        assert!(Arc::ptr_eq(&first, &use_in(&runtime, &pools)));
        pools.write()[0].parked.abort();
        runtime.block_on(tokio::task::yield_now());
        assert!(!Arc::ptr_eq(&first, &use_in(&runtime, &pools)));
        assert_eq!(pools.write().len(), 1);
    }

    #[test]
    fn pools_go_with_their_runtimes_and_nothing_stays_in_a_runtime_that_goes_on() {
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
        let kept: Vec<_> = pools.write().iter().map(|kept| kept.runtime).collect();
        assert_eq!((kept.len(), kept.first()), (2, Some(&stays.handle().id())));

        assert_eq!(stays.metrics().num_alive_tasks(), 1);
        drop(pools);
        stays.block_on(tokio::task::yield_now());
        assert_eq!(stays.metrics().num_alive_tasks(), 0);
    }
}
