//! Waiting for permits: queues per limit, served first come, first served, each call with its own
//! timeout.
//!
//! Only the first waiter of a queue queries the store ([`poller`]); a query belongs to its queue,
//! so its grants go to the waiters that are first when the reply arrives. [`wait_limit`] bounds the
//! waiting calls and [`backlog`] estimates `retry_after` behind them.
//!
//! Invariants: a waiter is in its queue or has its result, never both; a grant is used once or
//! refunded. Tests: `tests/waiting.rs`, `tests/contract/waiting.rs`, `queue/tests.rs`, and the
//! model in `queue/model.rs`.

mod acquire;
pub(crate) mod backlog;
pub(crate) mod pacing;
pub(crate) mod poller;
mod queue;
pub(crate) mod sleep;
pub(crate) mod wait_budget;
pub(crate) mod wait_limit;

use std::time::Duration;

use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::LimitRequest;
pub use crate::waiting::acquire::Acquire;
pub(crate) use crate::waiting::queue::WaitQueues;
pub(crate) use crate::waiting::wait_budget::WaitBudget;
pub use crate::waiting::wait_limit::WaitLimit;

/// Allowance for a timer that fires late.
pub(crate) const LATE_TIMER: Duration = Duration::from_millis(10);

impl Limiter {
    /// Waits for a permit of `policy` for `key`, first come, first served among the waiters of this
    /// process.
    ///
    /// Only the first waiter of a queue queries the store: at the time at which the store expects a
    /// permit, and for up to 64 waiters with the same request at once. Redis therefore receives
    /// about one command each time permits become available, and at most one per second while none
    /// are. Permits that return earlier, by a refund or a reset, are noticed at once in this
    /// process and within about a second from another one. A cheap call does not overtake an
    /// earlier expensive one. Calls for the same limits in the same order share a queue and wait
    /// under the policies of its newest call; queues that share a limit (see
    /// [`acquire_all`](Self::acquire_all)) are not ordered with each other. Under a
    /// [paced](crate::PolicyBuilder::paced) funnel the call also waits for the delay; if the delay
    /// ends after the timeout, or the call is cancelled, the permit is refunded.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    /// use std::time::Duration;
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::token_bucket("mail").capacity(1).rate("100/s").build()?;
    /// for _ in 0..3 {
    ///     limits.acquire(&policy, "ann").timeout(Duration::from_millis(500)).await?;
    /// }
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::TimedOut`](crate::Rejection::TimedOut) if no permit becomes available in time,
    /// and [`Rejection::Limited`](crate::Rejection::Limited) for a timeout of zero. A timeout is
    /// returned at its end even if the permits are due later, because a refund may release them
    /// earlier. A caller that a penalty [blocks](crate::Decision::is_blocked) is rejected at once.
    /// [`Rejection::NeverFits`](crate::Rejection::NeverFits) for a cost that the policy never
    /// admits: at once, or, if a later call brings such a policy, when this call becomes first;
    /// [`Rejection::Unavailable`](crate::Rejection::Unavailable) after [`shutdown`](Self::shutdown)
    /// and when too many calls are waiting
    /// ([`InProcessBuilder::max_waiting`](crate::InProcessBuilder::max_waiting),
    /// [`RedisBuilder::max_waiting`](crate::RedisBuilder::max_waiting)); otherwise as
    /// [`check`](Self::check).
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time.
    ///
    /// # Cancel safety
    ///
    /// A waiter that is dropped or times out leaves the queue, and the next waiter takes its place.
    /// A Redis query that is in flight for it continues in a task of its runtime: its grants go to
    /// the next waiter with the same request; without one they are refunded. Only if that runtime
    /// ends meanwhile, or Redis does not reply, can a permit be charged without a user.
    ///
    /// # Not polled
    ///
    /// A waiter that is kept but not polled (a future that a `select!` abandons, more futures than
    /// are awaited) keeps its place. If the first waiter is not polled for one to two seconds, the
    /// next waiter queries the store on its behalf (each waiter adds 1 ms per predecessor, so that
    /// only one takes over). The permit still belongs to the first waiter, and the queue continues.
    /// An unpolled waiter therefore delays the others for that time, and occupies a permit until it
    /// is polled or dropped. Drop futures that are no longer awaited.
    pub fn acquire<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Acquire<'a> {
        Acquire::new(self.check(policy, key))
    }

    /// Waits for permits of several limits, charged as one decision. See
    /// [`check_all`](Self::check_all).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_all<'a, A: Into<LimitRequest<'a>>>(
        &'a self,
        asks: impl IntoIterator<Item = A>,
    ) -> Acquire<'a> {
        Acquire::new(self.check_all(asks))
    }
}
