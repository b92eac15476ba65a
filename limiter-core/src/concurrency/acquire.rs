//! The builder and the future of a concurrency acquisition.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, mem};

use crate::algorithm::Mode;
use crate::concurrency::deadline::AcquireDeadline;
#[cfg(feature = "redis")]
use crate::concurrency::distributed::wait_for_redis;
#[cfg(feature = "redis")]
use crate::concurrency::permit::into_permit;
use crate::concurrency::permit::{ConcurrencyPermit, PermitBacking};
use crate::concurrency::request::ConcurrencyRequest;
use crate::decision::{Decision, Rejection};
use crate::detachment::id::StoredId;
use crate::error::ConfigError;
use crate::limiter::{Backend, Limiter, shut_down};
use crate::observe;
use crate::policy::Policy;
use crate::request::LimitRequest;
pub(crate) use crate::units::Amount;

/// An acquisition of concurrency permits that has not started: await it. Created by
/// [`Limiter::acquire_concurrency`].
#[derive(Clone, Debug)]
#[must_use = "no permit is acquired until this is awaited"]
pub struct AcquireConcurrency<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) request: LimitRequest<'a>,
    pub(super) timeout: Duration,
    /// The digest under which Redis keeps a detached permit.
    pub(super) detached: Option<StoredId>,
}

impl<'a> AcquireConcurrency<'a> {
    pub(crate) fn new(limiter: &'a Limiter, request: LimitRequest<'a>) -> Self {
        Self {
            limiter,
            request,
            timeout: Duration::ZERO,
            detached: None,
        }
    }

    /// Sets the number of permits: a whole number up to 1,024 and at most the policy's maximum.
    /// Default: 1. A cost of 0 takes no permit and is always allowed.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.request.set_cost(cost.try_into().map_err(Into::into));
        self
    }

    /// Sets the maximum total wait, which includes the queue and all store calls. Default: zero, so
    /// that a denial is [`Rejection::Limited`]; after a wait it is [`Rejection::TimedOut`].
    ///
    /// Waiters of this process are served first come, first served. A permit released in this
    /// process passes directly to the next waiter if that waiter requests the same number of
    /// permits, for at most one second in a row; then the permit returns to Redis, so that other
    /// processes get a turn. The first waiter of a process queries Redis again when the first lease
    /// ends, or after pauses that double from 10 to 160 ms plus up to a quarter of jitter. There is
    /// no order between processes.
    ///
    /// If the timeout ends before the policy's store deadline, the result is a timeout and the
    /// failure mode of the policy does not apply: a short wait without a reply is no evidence of a
    /// store failure.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the result if it needs only the memory of this process.
    fn try_now(&self) -> Option<Result<ConcurrencyPermit, Rejection>> {
        // A call with a timeout has to queue behind earlier waiters.
        match &self.limiter.inner.backend {
            Backend::Memory(_) if self.timeout.is_zero() && self.is_plain() => Some(self.try_local()),
            _ => None,
        }
    }

    /// Like [`try_now`](Self::try_now), with metrics, for callers that do not await.
    pub(crate) fn try_acquire_now(&self) -> Option<Result<ConcurrencyPermit, Rejection>> {
        let result = self.try_now()?;
        observe::record_acquire(self.request.policy(), &result);
        Some(result)
    }

    fn try_local(&self) -> Result<ConcurrencyPermit, Rejection> {
        self.limiter.open()?;
        let request = ConcurrencyRequest::new(self.request.clone(), Mode::Charge)?;
        self.limiter.try_acquire_local(&request)
    }

    fn into_boxed(self) -> PendingAcquire<'a> {
        let policy = self.request.policy();
        match (
            self.limiter.is_in_process() && self.timeout.is_zero(),
            self.is_plain(),
        ) {
            (true, true) => Box::pin(self.run()),
            (true, false) => Box::pin(self.run_with_rules()),
            (false, true) => observe::entering(Some(policy), self.run()),
            (false, false) => observe::entering(Some(policy), self.run_with_rules()),
        }
    }

    pub(crate) async fn run(self) -> Result<ConcurrencyPermit, Rejection> {
        let limiter = self.limiter;
        limiter.open()?;
        let request = ConcurrencyRequest::new(self.request, Mode::Charge)?;
        if request.terms().cost == 0 {
            let decision = limiter.peek_permits(&request).await?;
            return Ok(ConcurrencyPermit::new(decision, PermitBacking::Nothing));
        }
        if self.timeout.is_zero() {
            return limiter
                .acquire_once(&request, self.detached, request.decision_request().deadline())
                .await;
        }
        let mut closing = limiter.inner.closing.subscribe();
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
            result = limiter.acquire_with_wait(&request, self.timeout) => result,
        }
    }
}

impl<'a> IntoFuture for AcquireConcurrency<'a> {
    type Output = Result<ConcurrencyPermit, Rejection>;
    type IntoFuture = ConcurrencyFuture<'a>;

    fn into_future(self) -> ConcurrencyFuture<'a> {
        ConcurrencyFuture {
            policy: self.request.policy(),
            progress: AcquireProgress::Unstarted(self),
        }
    }
}

/// The future of an [`AcquireConcurrency`]. In process and without a timeout, the future completes
/// at the first poll without an allocation.
#[must_use = "futures do nothing unless polled"]
pub struct ConcurrencyFuture<'a> {
    policy: &'a Policy,
    progress: AcquireProgress<'a>,
}

enum AcquireProgress<'a> {
    Unstarted(AcquireConcurrency<'a>),
    Pending(PendingAcquire<'a>),
    Completed,
}

type PendingAcquire<'a> = Pin<Box<dyn Future<Output = Result<ConcurrencyPermit, Rejection>> + Send + 'a>>;

impl Future for ConcurrencyFuture<'_> {
    type Output = Result<ConcurrencyPermit, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = self.progress.poll(context);
        if let Poll::Ready(result) = &result {
            observe::record_acquire(self.policy, result);
        }
        result
    }
}

impl AcquireProgress<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<ConcurrencyPermit, Rejection>> {
        #[expect(clippy::panic, reason = "polling a completed future is a caller error")]
        let mut future = match mem::replace(self, Self::Completed) {
            AcquireProgress::Unstarted(acquire) => match acquire.try_now() {
                Some(result) => return Poll::Ready(result),
                None => acquire.into_boxed(),
            },
            AcquireProgress::Pending(future) => future,
            AcquireProgress::Completed => panic!("`ConcurrencyFuture` polled after completion"),
        };
        let result = future.as_mut().poll(context);
        if result.is_pending() {
            *self = AcquireProgress::Pending(future);
        }
        result
    }
}

impl fmt::Debug for ConcurrencyFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConcurrencyFuture")
    }
}

impl Limiter {
    /// Queries the store once, until the deadline at most.
    #[cfg_attr(
        not(feature = "redis"),
        expect(
            unused_variables,
            clippy::unused_async,
            reason = "the in-process store does not await"
        )
    )]
    async fn acquire_once(
        &self,
        request: &ConcurrencyRequest<'_>,
        detached: Option<StoredId>,
        deadline: Duration,
    ) -> Result<ConcurrencyPermit, Rejection> {
        match &self.inner.backend {
            Backend::Memory(_) => self.try_acquire_local(request),
            #[cfg(feature = "redis")]
            Backend::Redis(redis) => {
                if let Some(id) = detached {
                    let (decision, backing) = Box::pin(redis.enter_detached(request, id, deadline)).await?;
                    return into_permit(decision, backing);
                }
                // Boxed to keep the futures of waiting calls small.
                let (decision, permit) = Box::pin(redis.enter(request, deadline)).await?;
                into_permit(
                    decision,
                    permit.map_or(PermitBacking::Nothing, PermitBacking::Leased),
                )
            }
        }
    }

    /// Waits in the queue, then acquires permits.
    async fn acquire_with_wait(
        &self,
        request: &ConcurrencyRequest<'_>,
        timeout: Duration,
    ) -> Result<ConcurrencyPermit, Rejection> {
        let clock = &self.inner.clock;
        let wait = AcquireDeadline {
            started: clock.now(),
            timeout,
            clock,
        };
        match &self.inner.backend {
            Backend::Memory(_) => self.wait_local(request, &wait).await,
            #[cfg(feature = "redis")]
            Backend::Redis(redis) => wait_for_redis(redis, request, &wait).await,
        }
    }

    /// Removes the permits of other processes, which may no longer exist, and detached permits.
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unused_async, reason = "the in-process store does not await")
    )]
    pub(crate) async fn reset_permits(&self, request: LimitRequest<'_>) -> Result<(), Rejection> {
        let request = ConcurrencyRequest::new(request, Mode::Peek)?;
        let (identity, tables) = (request.limit().identity, &self.inner.detached);
        drop(tables.permits.take_matching(|hold| hold.identity == identity));
        match &self.inner.backend {
            Backend::Memory(_) => {}
            #[cfg(feature = "redis")]
            Backend::Redis(redis) => redis.reset_redis_permits(&request).await?,
        }
        Ok(())
    }

    /// Returns the decision of an acquisition without acquiring permits.
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unused_async, reason = "the in-process store does not await")
    )]
    pub(crate) async fn peek_permits(&self, request: &ConcurrencyRequest<'_>) -> Result<Decision, Rejection> {
        match &self.inner.backend {
            Backend::Memory(_) => Ok(self.peek_local(request)),
            #[cfg(feature = "redis")]
            Backend::Redis(redis) => {
                redis
                    .peek_redis_permits(request, request.decision_request().deadline())
                    .await
            }
        }
    }
}
