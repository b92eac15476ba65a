//! Calls that wait for permits: in lines, first come, first served, and each for its own time.

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

/// By how much a timer may be late, and a little for the answer.
pub(crate) const LATE_TIMER: Duration = Duration::from_millis(10);

impl Limiter {
    /// Waits for a permit of `policy` for `key`: first come, first served among the waiters of this
    /// process.
    ///
    /// Only who has come first asks the store, at the moment at which it said that there would be a
    /// permit, and asks at once for up to 64 that wait for the same; so Redis hears about one
    /// command for each moment at which permits come, and one a second where they are long in
    /// coming. What comes back before, of a call that came to nothing or by a reset, is seen at
    /// once in this process, and within a second or so from another one. A call that costs little
    /// does not overtake one before it that costs much. Those who wait for the same limits, in the
    /// same order, stand in one queue, and wait as the policies say with which the last of them
    /// came; queues that have a limit in common (see [`acquire_all`](Self::acquire_all)) are not in
    /// order with each other. Under a [paced](crate::PolicyBuilder::paced) funnel it waits for the
    /// delay, too; where that ends too late, or is not waited for, the permit is given back.
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
    /// [`Rejection::TimedOut`](crate::Rejection::TimedOut) when no permit comes in time, and
    /// [`Rejection::Limited`](crate::Rejection::Limited) for a timeout of zero. The former is told
    /// when the time is over, though the permits may be due later: they may come back before. Only
    /// who is [blocked](crate::Decision::is_blocked) by a penalty is told at once.
    /// [`Rejection::NeverFits`](crate::Rejection::NeverFits) for a cost that the policy never
    /// admits, at once, or, where a call comes later with such a policy, when this one is first in
    /// line; [`Rejection::Unavailable`](crate::Rejection::Unavailable) after
    /// [`shutdown`](Self::shutdown), and when too many calls wait already
    /// ([`InProcessBuilder::max_waiting`](crate::InProcessBuilder::max_waiting),
    /// [`RedisBuilder::max_waiting`](crate::RedisBuilder::max_waiting)); else as
    /// [`check`](Self::check).
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time.
    ///
    /// # Cancel safety
    ///
    /// A waiter that is dropped, or whose time is over, leaves the queue, and the next takes its
    /// place. Where Redis is being asked on its behalf, the question goes on without it, in a task
    /// of its runtime: what is granted goes to the next that wants the same, else it is given back.
    /// Only where that runtime ends in the meantime, or Redis does not answer, a permit may be
    /// spent for nobody.
    ///
    /// # Not polled
    ///
    /// A waiter that is kept and not polled (a future that a `select!` goes on without, more
    /// futures than are awaited) keeps its place. When it is first and leaves undone what is its
    /// turn to do, one that waits behind it asks in its place, one to two seconds later (and a
    /// millisecond for each who was before that one when it came): the permit is the waiter's, and
    /// the line goes on. So it holds up the others for that time, and a permit until it is polled
    /// or dropped. Drop what is not awaited any more.
    pub fn acquire<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Acquire<'a> {
        Acquire::new(self.check(policy, key))
    }

    /// Waits for permits of several limits, taken as one decision. See
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
