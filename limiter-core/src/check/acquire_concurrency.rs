//! The builder and the future of a concurrency acquisition.
//!
//! An acquisition without a timeout is one request to the store; with a timeout, it waits in the
//! queue of its limit until a permit is released, the timeout ends, or the limiter is shut down.
//! The future first tries to acquire in process, so that such a call completes at its first poll
//! without an allocation. Rules outside the store (overlays, key lists, shadow mode, `Off`) are
//! applied in `enforcement/permit_rules.rs`. Tests: `tests/contract/concurrency.rs`,
//! `tests/concurrency.rs`, `tests/entry_points.rs`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, mem, slice};

use crate::algorithm::Mode;
use crate::check::PolicyRef;
use crate::check::registry_lookup::{RegisteredLimits, ResolvedPolicies};
use crate::decision::Rejection;
use crate::detachment::id::StoredId;
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::{Limiter, shut_down};
use crate::observe::{self, ReportedLimit};
use crate::permits::acquire_deadline::AcquireDeadline;
use crate::permits::permit::{ConcurrencyPermit, PermitBacking};
use crate::permits::request::ConcurrencyRequest;
use crate::policy::{Enforcement, Policy};
use crate::request::LimitRequest;
use crate::support::one_or_many::OneOrMany;
use crate::units::Amount;

/// An acquisition of concurrency permits that has not started: await it. Created by
/// [`Limiter::acquire_concurrency`] and
/// [`PolicyHandle::acquire_concurrency`](crate::PolicyHandle::acquire_concurrency).
#[derive(Clone, Debug)]
#[must_use = "no permit is acquired until this is awaited"]
pub struct AcquireConcurrency<'a, P = &'a Policy> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) request: LimitRequest<'a, P>,
    pub(super) timeout: Duration,
    /// The digest under which Redis keeps a detached permit.
    pub(super) detached: Option<StoredId>,
    /// The limit, if the registry has its policy.
    registered: RegisteredLimits,
}

impl Limiter {
    /// Acquires a permit of a [`concurrency`](Policy::concurrency) policy for `key`. The permit is
    /// held until it is dropped.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let export = Policy::concurrency("export").max(3).build()?;
    ///
    /// let permit = limits.acquire_concurrency(&export, "ann").cost(2).await?;
    /// assert_eq!(permit.decision().remaining(), 1);
    /// let denied = limits.acquire_concurrency(&export, "ann").cost(2).await.unwrap_err();
    /// assert!(denied.is_limited());
    /// clock.advance(Duration::from_secs(3_600));
    /// assert_eq!(limits.peek(&export, "ann").await?.remaining(), 1, "a permit does not expire");
    /// drop(permit);
    /// assert_eq!(limits.peek(&export, "ann").await?.remaining(), 3);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// A denial has no [`retry_after`](crate::Decision::retry_after), because no one can predict
    /// when a holder releases its permit. The [`retry_after`](crate::LimitOutcome::retry_after) of
    /// the limit's own outcome is the time until the first lease ends if its holder does not renew
    /// it.
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`](crate::Rejection::Limited) if all permits are held, or
    /// [`Rejection::TimedOut`](crate::Rejection::TimedOut) if none was released within
    /// [`AcquireConcurrency::timeout`]; [`Rejection::NeverFits`](crate::Rejection::NeverFits) for a
    /// cost above the policy's maximum; [`Rejection::Config`](crate::Rejection::Config) for a
    /// fractional cost, a cost above 1,024, and a rate policy;
    /// [`Rejection::Unavailable`](crate::Rejection::Unavailable) as for [`acquire`](Self::acquire).
    /// While the store is unavailable, the policy's failure mode applies: by default this replica
    /// admits its share, max(1, ⌈max/replicas⌉), and counts the permits that it already holds.
    ///
    /// # Panics
    ///
    /// With Redis or with a timeout, if called outside of a Tokio runtime with time and I/O.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the permit: a permit that Redis may have admitted for it is
    /// released in the background, and if the release fails, the lease expires.
    pub fn acquire_concurrency<'a>(
        &'a self,
        policy: &'a Policy,
        key: impl Into<Key<'a>>,
    ) -> AcquireConcurrency<'a> {
        AcquireConcurrency::new(self, LimitRequest::new(policy, key))
    }
}

impl<'a, P> AcquireConcurrency<'a, P> {
    pub(crate) fn new(limiter: &'a Limiter, request: LimitRequest<'a, P>) -> Self {
        Self {
            limiter,
            request,
            timeout: Duration::ZERO,
            detached: None,
            registered: RegisteredLimits::default(),
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
}

impl<'a> AcquireConcurrency<'a> {
    /// Sets whether the policy was looked up in the registry, so that a wait follows its changes.
    pub(crate) fn registered(self, is_registered: impl IntoIterator<Item = bool>) -> Self {
        let registered = is_registered.into_iter().collect();
        Self { registered, ..self }
    }

    /// Acquires permits in process if the call does not wait. `None` has acquired nothing.
    pub(crate) fn try_acquire(&self) -> Option<Result<ConcurrencyPermit, Rejection>> {
        // A call with a timeout has to queue behind earlier waiters.
        if !self.limiter.is_in_process() || !self.timeout.is_zero() || !self.is_plain() {
            return None;
        }
        let request = self.limiter.open().map_err(Rejection::from).and_then(|()| {
            let request = self.request.clone();
            ConcurrencyRequest::new(request, Mode::Charge)
        });
        let result = match request {
            Ok(request) => self.limiter.inner.backend.try_acquire(&request)?,
            Err(rejection) => Err(rejection),
        };
        let limit = ReportedLimit::without_key(self.request.policy());
        observe::record_acquire(None, limit, &result);
        Some(result)
    }

    /// Acquires permits from the store, with metrics.
    async fn acquire(self) -> Result<ConcurrencyPermit, Rejection> {
        let limiter = self.limiter;
        let limit = limiter.reported_limit(&self.request);
        let result = if self.registered.is_empty() || self.timeout.is_zero() {
            self.attempt().await
        } else {
            Box::pin(self.wait_and_follow_registry()).await
        };
        observe::record_acquire(limiter.inner.backend.usage(), limit, &result);
        result
    }

    async fn attempt(self) -> Result<ConcurrencyPermit, Rejection> {
        if self.is_plain() {
            self.run().await
        } else {
            self.run_with_rules().await
        }
    }

    /// Waits under the current policy of the registry. When it replaces the policy, the call leaves
    /// its queue and waits under the replacement for the rest of its time.
    async fn wait_and_follow_registry(self) -> Result<ConcurrencyPermit, Rejection> {
        let (limiter, requests) = (self.limiter, slice::from_ref(&self.request));
        let (started, mut policies) = (limiter.now(), limiter.policies_of(requests));
        loop {
            let waited = limiter.now().since(started);
            let attempt = AcquireConcurrency {
                request: LimitRequest {
                    policy: policies.first().unwrap_or(self.request.policy),
                    ..self.request.borrowed()
                },
                timeout: self.timeout.saturating_sub(waited),
                registered: RegisteredLimits::NONE,
                ..self
            };
            let answer = tokio::select! {
                biased;
                replacements = limiter.replaced(requests, self.registered, &policies) => {
                    policies = replacements;
                    continue;
                }
                answer = attempt.attempt() => answer,
            };
            return answer.map_err(|rejection| rejection.of_whole_wait(self.timeout, waited));
        }
    }

    /// Returns whether the store alone decides the call.
    fn is_plain(&self) -> bool {
        let (limiter, policy) = (self.limiter, self.request.policy());
        policy.is_store_only()
            && (limiter.enforces() || limiter.is_free_of_overlays(&OneOrMany::One(self.request.borrowed())))
    }

    /// Acquires permits under the rules. In shadow mode no call waits.
    async fn run_with_rules(self) -> Result<ConcurrencyPermit, Rejection> {
        let Self {
            limiter,
            request,
            timeout,
            detached,
            registered,
        } = self;
        let attempt = |request, enforcement| {
            let timeout = match enforcement {
                Enforcement::Enforce => timeout,
                _ => Duration::ZERO,
            };
            let call = Self {
                limiter,
                request,
                timeout,
                detached,
                registered,
            };
            call.run()
        };
        limiter.acquire_under_rules(request, attempt).await
    }

    async fn run(self) -> Result<ConcurrencyPermit, Rejection> {
        let limiter = self.limiter;
        let backend = &limiter.inner.backend;
        limiter.open()?;
        let request = ConcurrencyRequest::new(self.request, Mode::Charge)?;
        if request.terms().cost == 0 {
            let decision = backend.peek_permits(&request).await?;
            return Ok(ConcurrencyPermit::new(decision, PermitBacking::Nothing));
        }
        if self.timeout.is_zero() {
            let deadline = request.decision_request().deadline();
            return match self.detached {
                Some(id) => backend.acquire_detached(&request, id, deadline).await,
                None => backend.acquire(&request, deadline).await,
            };
        }
        let wait = AcquireDeadline {
            started: limiter.inner.clock.now(),
            timeout: self.timeout,
            clock: &limiter.inner.clock,
        };
        let mut closing = limiter.inner.closing.subscribe();
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
            result = backend.acquire_in_turn(&request, &wait) => result,
        }
    }
}

impl<'a, P: PolicyRef + 'a> AcquireConcurrency<'a, P> {
    /// Acquires permits without waiting, or returns `Pending` and writes the future that queries
    /// the store.
    fn start(self, query: &mut Option<PendingAcquire<'a>>) -> Poll<Result<ConcurrencyPermit, Rejection>> {
        let found = match self.request.look_up(self.limiter)? {
            ResolvedPolicies::Policy(found) => found,
            ResolvedPolicies::Allowed(decision) => {
                return Poll::Ready(Ok(ConcurrencyPermit::unlimited(decision)));
            }
        };
        let limiter = self.limiter;
        if let Some(result) = self.borrowed().resolved(&found).try_acquire() {
            return Poll::Ready(result);
        }
        let policy = self.request.policy;
        let is_immediate = limiter.is_in_process() && self.timeout.is_zero();
        let acquire = async move { self.resolved(&found).acquire().await };
        *query = Some(if is_immediate {
            Box::pin(acquire)
        } else {
            observe::entering(Some(policy.name()), acquire)
        });
        Poll::Pending
    }

    /// Returns the acquisition with the policy that was looked up.
    fn resolved<'b>(self, found: &'b P::Found) -> AcquireConcurrency<'b>
    where
        'a: 'b,
    {
        AcquireConcurrency {
            limiter: self.limiter,
            request: self
                .request
                .resolved(found)
                .with_defaults(&self.limiter.inner.defaults),
            timeout: self.timeout,
            detached: self.detached,
            registered: self.registered.and(P::REGISTERED),
        }
    }

    /// Returns the acquisition with its key borrowed.
    fn borrowed(&self) -> AcquireConcurrency<'_, P> {
        AcquireConcurrency {
            request: self.request.borrowed(),
            ..*self
        }
    }
}

impl<'a, P: PolicyRef + 'a> IntoFuture for AcquireConcurrency<'a, P> {
    type Output = Result<ConcurrencyPermit, Rejection>;
    type IntoFuture = ConcurrencyFuture<'a, P>;

    fn into_future(self) -> ConcurrencyFuture<'a, P> {
        ConcurrencyFuture(AcquireProgress::Unstarted(self))
    }
}

/// The future of an [`AcquireConcurrency`]. In process and without a timeout, the future completes
/// at the first poll without an allocation.
#[must_use = "futures do nothing unless polled"]
pub struct ConcurrencyFuture<'a, P = &'a Policy>(AcquireProgress<'a, P>);

enum AcquireProgress<'a, P> {
    Unstarted(AcquireConcurrency<'a, P>),
    Pending(PendingAcquire<'a>),
    Completed,
}

type PendingAcquire<'a> = Pin<Box<dyn Future<Output = Result<ConcurrencyPermit, Rejection>> + Send + 'a>>;

impl<'a, P: PolicyRef + 'a> Future for ConcurrencyFuture<'a, P> {
    type Output = Result<ConcurrencyPermit, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        #[expect(clippy::panic, reason = "polling a completed future is a caller error")]
        let mut future = match mem::replace(&mut self.0, AcquireProgress::Completed) {
            AcquireProgress::Unstarted(acquire) => {
                let mut query = None;
                let result = acquire.start(&mut query);
                match query {
                    Some(query) => query,
                    None => return result,
                }
            }
            AcquireProgress::Pending(future) => future,
            AcquireProgress::Completed => panic!("`ConcurrencyFuture` polled after completion"),
        };
        let result = future.as_mut().poll(context);
        if result.is_pending() {
            self.0 = AcquireProgress::Pending(future);
        }
        result
    }
}

impl<P> fmt::Debug for ConcurrencyFuture<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConcurrencyFuture")
    }
}
