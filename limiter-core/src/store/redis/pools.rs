//! A pool of connections for each runtime: they live and die with the one in which they were dialled.

use std::fmt;
use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bb8_redis::bb8::Pool;
use tokio::runtime::{self, Handle};
use tokio::task::AbortHandle;

use super::connection::Dialer;
use crate::error::{StoreError, StoreErrorKind};

/// A program with more runtimes than this at a time has the pool of the oldest made anew: far more than any has, and as
/// many as a server has connections for.
const MOST_RUNTIMES: usize = 1024;

/// Those of the runtimes that have used a server, the newest last.
#[derive(Debug, Default)]
pub(super) struct Pools(Mutex<Vec<Kept>>);

struct Kept {
    runtime: runtime::Id,
    pool: Pool<Dialer>,
    /// A task that does nothing, and ends when the runtime does.
    parked: AbortHandle,
}

impl Pools {
    /// The pool of the current runtime.
    pub(super) fn current(&self, new: impl FnOnce() -> Pool<Dialer>) -> Result<Pool<Dialer>, StoreError> {
        let no_runtime = |_| {
            StoreError::new(
                StoreErrorKind::Connection,
                "Redis can be asked in a Tokio runtime only",
            )
        };
        let runtime = Handle::try_current().map_err(no_runtime)?;
        let mut pools = self.lock();
        if let Some(kept) = pools.iter().find(|kept| kept.runtime == runtime.id()) {
            return Ok(kept.pool.clone());
        }
        pools.retain(|kept| !kept.parked.is_finished());
        if pools.len() >= MOST_RUNTIMES {
            pools.remove(0);
        }
        let pool = new();
        pools.push(Kept {
            runtime: runtime.id(),
            pool: pool.clone(),
            parked: runtime.spawn(pending::<()>()).abort_handle(),
        });
        Ok(pool)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.parked.abort();
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.runtime).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::super::endpoint::Endpoint;
    use super::super::tls::Certificates;
    use super::*;

    fn use_in(runtime: &Runtime, pools: &Pools) {
        let endpoint = Endpoint::parse("redis://127.0.0.1:1/", &Certificates::default()).unwrap();
        // Without tasks of its own.
        let builder = Pool::builder().max_lifetime(None).idle_timeout(None);
        let new = || builder.build_unchecked(Dialer::To(endpoint));
        runtime.block_on(async { pools.current(new).unwrap() });
    }

    #[test]
    fn pools_go_with_their_runtimes_and_nothing_stays_in_a_runtime_that_goes_on() {
        let pools = Pools::default();
        let new = || Builder::new_current_thread().enable_all().build().unwrap();
        let stays = new();
        use_in(&stays, &pools);
        for _ in 0..5 {
            let ends = Builder::new_multi_thread().worker_threads(1).enable_all().build();
            use_in(&ends.unwrap(), &pools);
            assert!(pools.lock().len() <= 2);
        }
        use_in(&stays, &pools);
        use_in(&new(), &pools);
        let kept: Vec<_> = pools.lock().iter().map(|kept| kept.runtime).collect();
        assert_eq!((kept.len(), kept.first()), (2, Some(&stays.handle().id())));

        assert_eq!(stays.metrics().num_alive_tasks(), 1);
        drop(pools);
        stays.block_on(tokio::task::yield_now());
        assert_eq!(stays.metrics().num_alive_tasks(), 0);
    }
}
