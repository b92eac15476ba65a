//! The builder of a wait for permits.
//!
//! `Acquire` combines a check with a timeout, an outer bound and an optional limit on the number of
//! waiting calls. Its future looks the policy up and then waits in the queue of the limits
//! (`waiting/acquire.rs`), directly if the store alone decides the call, else through an
//! `EnforcementPlan`. Tests: `tests/contract/waiting.rs`, `tests/contract/failed_waits.rs`,
//! `tests/waiting.rs`.

use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::time::Duration;

use crate::check::registry_lookup::ResolvedPolicies;
use crate::check::{Check, PolicyRef};
use crate::decision::{Allowed, Rejection};
use crate::enforcement::EnforcementPlan;
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::observe;
use crate::policy::Policy;
use crate::request::LimitRequest;
use crate::support::sync::atomic::{AtomicBool, Ordering};
use crate::units::Amount;
use crate::waiting::{FollowedWait, WaitBudget, WaitLimit};

/// A wait for a permit that has not started: await it. Created by [`Limiter::acquire`],
/// [`Limiter::acquire_all`] and [`PolicyHandle::acquire`](crate::PolicyHandle::acquire).
#[derive(Clone, Debug)]
#[must_use = "nothing is charged until this is awaited"]
pub struct Acquire<'a, P = &'a Policy> {
    check: Check<'a, P>,
    timeout: Duration,
    /// An outer bound of the timeout, which does not depend on the store.
    bound: Option<Duration>,
    /// The shared bound on waiting calls, if there is one.
    wait_limit: Option<&'a WaitLimit>,
    rejects_early: bool,
}

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
        requests: impl IntoIterator<Item = A>,
    ) -> Acquire<'a> {
        Acquire::new(self.check_all(requests))
    }
}

impl Acquire<'_> {
    /// Default maximum wait: one minute.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
}

impl<'a, P> Acquire<'a, P> {
    pub(crate) fn new(check: Check<'a, P>) -> Self {
        Self {
            check,
            timeout: Acquire::DEFAULT_TIMEOUT,
            bound: None,
            wait_limit: None,
            rejects_early: false,
        }
    }

    /// Rejects the call at once if its permit is due after its timeout, even though permits might
    /// be refunded before.
    pub(crate) fn rejecting_early(self) -> Self {
        Self {
            rejects_early: true,
            ..self
        }
    }

    /// Waits only if a slot is free; otherwise the call is denied at once.
    pub(crate) fn within(self, wait_limit: &'a WaitLimit) -> Self {
        let wait_limit = Some(wait_limit);
        Self { wait_limit, ..self }
    }

    /// Bounds the wait for permits and for the queue. A store reply is still awaited for the
    /// deadline of the policies.
    pub(crate) fn bounded_by(self, bound: Option<Duration>) -> Self {
        Self { bound, ..self }
    }

    /// Sets the cost of the call, as [`Check::cost`].
    pub fn cost<C>(self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        Self {
            check: self.check.cost(cost),
            ..self
        }
    }

    /// Sets the maximum total wait, which includes the queue and all store calls. Default:
    /// [`DEFAULT_TIMEOUT`](Acquire::DEFAULT_TIMEOUT).
    ///
    /// A timeout of zero is a check, bounded by the policy's deadline: a denial is
    /// [`Rejection::Limited`], because the call has not waited. After a wait it is
    /// [`Rejection::TimedOut`]. [`Reserve::timeout`](crate::future::Reserve::timeout) and
    /// [`AcquireConcurrency::timeout`](crate::concurrency::AcquireConcurrency::timeout) behave
    /// alike.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

impl<'a, P: PolicyRef + 'a> IntoFuture for Acquire<'a, P> {
    type Output = Result<Allowed, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let first = self.check.first_ref();
        observe::acquiring(first.as_ref().map(P::name), async move {
            let found = match P::look_up_for(&self.check)? {
                ResolvedPolicies::Policy(found) => found,
                ResolvedPolicies::Allowed(decision) => return decision.require(),
            };
            let acquire = Acquire {
                check: self.check.resolved(&found),
                timeout: self.timeout,
                bound: self.bound,
                wait_limit: self.wait_limit,
                rejects_early: self.rejects_early,
            };
            if acquire.check.registered.is_empty() {
                acquire.wait(None).await
            } else {
                Box::pin(acquire.wait_and_follow_registry()).await
            }
        })
    }
}

impl Acquire<'_> {
    /// Waits under the policies of the call.
    async fn wait(self, followed: Option<FollowedWait<'_>>) -> Result<Allowed, Rejection> {
        let Self { check, .. } = self;
        let budget = WaitBudget::new(self.timeout, self.bound, check.deadline(), self.wait_limit);
        let budget = WaitBudget {
            rejects_early: self.rejects_early,
            followed,
            ..budget
        };
        if !check.is_plain() {
            let (limiter, limits, mode) = check.into_parts();
            return EnforcementPlan::new(limiter, limits, mode).acquire(budget).await;
        }
        let limiter = check.limiter;
        let request = check.request(None)?;
        limiter.wait(&request, budget).await
    }

    /// Waits under the current policies of the registry. When it replaces one, a queued call leaves
    /// its queue, which charges nothing, and waits under the replacement for the rest of its time.
    /// A call with a grant keeps it, and its delay.
    async fn wait_and_follow_registry(self) -> Result<Allowed, Rejection> {
        let (limiter, requests) = (self.check.limiter, self.check.requests());
        let (started, mut policies) = (limiter.now(), limiter.policies_of(requests));
        let mut is_restart = false;
        loop {
            let waited = limiter.now().since(started);
            let left = self.timeout.saturating_sub(waited);
            let attempt = Acquire {
                check: self.check.under(&policies),
                timeout: left,
                bound: self.bound.map(|bound| bound.saturating_sub(waited)),
                wait_limit: self.wait_limit,
                rejects_early: self.rejects_early,
            };
            let is_queued = AtomicBool::new(false);
            let followed = FollowedWait {
                is_queued: &is_queued,
                is_restart,
            };
            let next = {
                let mut attempt = pin!(attempt.wait(Some(followed)));
                tokio::select! {
                    biased;
                    replacements = limiter.replaced(requests, self.check.registered, &policies) => {
                        match is_queued.load(Ordering::Relaxed) {
                            true => ControlFlow::Continue(replacements),
                            false => ControlFlow::Break(attempt.await),
                        }
                    }
                    answer = &mut attempt => ControlFlow::Break(answer),
                }
            };
            let answer = match next {
                ControlFlow::Continue(replacements) => {
                    (policies, is_restart) = (replacements, true);
                    continue;
                }
                ControlFlow::Break(answer) => answer,
            };
            let timeout = self.bound.map_or(self.timeout, |bound| bound.min(self.timeout));
            return answer.map_err(|rejection| rejection.of_whole_wait(timeout, waited));
        }
    }
}

impl<'a> Check<'a> {
    /// Sets the limits whose policies were looked up in the registry, so that a wait follows its
    /// changes.
    pub(crate) fn registered(self, are_registered: impl IntoIterator<Item = bool>) -> Self {
        let registered = are_registered.into_iter().collect();
        Self { registered, ..self }
    }

    /// Returns the check under other policies.
    fn under<'b>(&'b self, policies: &'b [Policy]) -> Check<'b> {
        let requests = self.requests().iter().zip(policies);
        let requests = requests.map(|(request, policy)| LimitRequest {
            policy,
            ..request.borrowed()
        });
        Check::of(self.limiter, requests.collect(), self.mode)
    }
}
