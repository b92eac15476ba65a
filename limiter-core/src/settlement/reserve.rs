//! Permits that are taken by an estimate, and settled when the true cost is known.

pub(crate) mod balance;
#[cfg(feature = "redis")]
mod pending;

use std::fmt;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;

use crate::algorithm::Change;
use crate::check::Check;
use crate::decision::{Allowed, Decision, Origin, Rejection};
use crate::error::ConfigError;
#[cfg(feature = "redis")]
use crate::error::{StoreError, StoreErrorKind};
use crate::limiter::{Backend, Limiter};
use crate::observe::{self, AsDecision};
use crate::request::{DecisionRequest, LimitRequest, RequestedLimit};
pub use crate::settlement::reserve::balance::Settled;
use crate::settlement::reserved_limit::{CurrentPolicy, ReservedLimit};
pub(crate) use crate::units::Amount;
use crate::waiting::Acquire;

/// A reservation, not yet made: await it. Made by [`Limiter::reserve`] and
/// [`Limiter::reserve_all`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked or charged until this is awaited"]
pub struct Reserve<'a> {
    check: Check<'a>,
    timeout: Option<Duration>,
}

impl<'a> Reserve<'a> {
    pub(crate) fn new(check: Check<'a>) -> Self {
        Self { check, timeout: None }
    }

    /// The estimate, as [`Check::cost`]. Default: 1, or what each
    /// [`LimitRequest`](crate::LimitRequest) says. With an estimate of 0 nothing is taken
    /// beforehand, and all of the true cost is charged when it is settled.
    pub fn cost<C>(self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        Self {
            check: self.check.cost(cost),
            ..self
        }
    }

    /// Waits for the permits, as [`Acquire::timeout`](crate::Acquire::timeout). Default: no wait.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }
}

impl<'a> IntoFuture for Reserve<'a> {
    type Output = Result<Reservation, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let (first, limiter) = (self.check.first_policy(), self.check.limiter);
        let asks_at_once = limiter.is_in_process() && self.timeout.is_none();
        let reserved = async move {
            let asked = self.check.clone();
            let allowed = match self.timeout {
                Some(timeout) => Acquire::new(self.check).timeout(timeout).await?,
                None => self.check.await?.require()?,
            };
            Ok(Reservation::from_allowed(&asked, allowed))
        };
        if asks_at_once {
            Box::pin(reserved)
        } else {
            observe::reserving(first, reserved)
        }
    }
}

/// Permits that were taken by an estimate. Owned: it may be kept in a task, a stream or a response
/// until the true cost is known.
///
/// One that is dropped stays charged at its estimate.
#[must_use = "it stays charged at its estimate unless it is settled or cancelled"]
pub struct Reservation {
    limiter: Limiter,
    /// What there is to be settled of each limit, in the order of asking.
    limits: SmallVec<[Option<ReservedLimit>; 1]>,
    allowed: Allowed,
}

impl AsDecision for Reservation {
    fn as_decision(&self) -> &Decision {
        self.decision()
    }
}

impl Reservation {
    /// One by which nothing was taken, and nothing is settled.
    pub(crate) fn of_nothing(limiter: &Limiter, allowed: Allowed) -> Self {
        Self {
            limiter: limiter.clone(),
            limits: smallvec![None],
            allowed,
        }
    }

    /// The decision by which it was granted.
    pub fn decision(&self) -> &Decision {
        &self.allowed
    }

    /// Has `actual` be charged in place of the estimate, under each of its limits: the difference
    /// is given back, or charged whatever is left. Where less is left, the limit is in debt, and
    /// later calls wait until that has come back.
    ///
    /// A settlement gives back no more than the reservation took, no more than is used, and nothing
    /// that had come back by itself: of a bucket or a funnel the difference comes back whole as
    /// long as less time has passed than the rest of what was used then takes to come back, so give
    /// calls that take long a capacity of at least the estimate and what comes back meanwhile; of a
    /// window until the permits have left it. So over any time T no more is admitted, by its true
    /// cost, than capacity + rate·T, beside debts and what is given back in T of estimates that
    /// were taken before it. A debt of a window lasts for one window, and beyond the limit nothing
    /// of it is remembered; one of a bucket or a funnel is at most 2^52 thousandths.
    ///
    /// What this replica's share allowed in place of the store ([`Origin::LocalFallback`]) is
    /// settled there and at once, also when the store is back. What nobody decided
    /// ([`Origin::FailedOpen`]) was not charged, so that nothing of it is given back, and what is
    /// used beyond the estimate is charged in the store. A limit that denies the call in shadow has
    /// charged nothing, and nothing of it is settled.
    ///
    /// Where the limiter's [book](Limiter::registry) has changed the policy [in
    /// proportion](crate::Policy::proportional_to) since, the difference is the same part of the
    /// new quota. Of a window whose length is another one now, and across several such changes,
    /// nothing is given back.
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for an amount that is none, or that the limit cannot count;
    /// [`Rejection::Unavailable`] when the store gives no answer. It may be settled all the same,
    /// and is not settled again.
    ///
    /// # Cancel safety
    ///
    /// In process it is settled at the first poll. With Redis it goes on in a task of its own when
    /// the future is dropped after that. It is never settled twice.
    ///
    /// A call of this limiter that Redis denies while the settlement is on its way waits for it and
    /// asks once more, within its deadline. Limiters in other processes do not know of the
    /// settlement until Redis has applied it: until then they deny by the estimate, with a
    /// [`retry_after`](crate::Decision::retry_after) that is an upper bound.
    pub async fn settle<C>(self, actual: C) -> Result<(), Rejection>
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let actual = actual
            .try_into()
            .map_err(|error| Rejection::Config(error.into()))?;
        let actuals = smallvec![actual; self.limits.len()];
        self.settle_at(actuals).await
    }

    /// The same with an amount for each limit, in the order of asking.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{LimitRequest, Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let calls = Policy::sliding_window("calls").limit(60).window("1m").build()?;
    /// let tokens = Policy::token_bucket("tokens").capacity(1_000).rate("100/s").build()?;
    /// let asks = || [LimitRequest::new(&calls, "ann"), LimitRequest::new(&tokens, "ann").cost(800)];
    ///
    /// // One call, and fewer tokens than estimated.
    /// limits.reserve_all(asks()).await?.settle_each([1, 300]).await?;
    /// assert_eq!(limits.peek(&calls, "ann").await?.remaining(), 59);
    /// assert_eq!(limits.peek(&tokens, "ann").await?.remaining(), 700);
    ///
    /// // More of them than was left: a debt of 100.
    /// let denied = limits.reserve_all(asks()).await.unwrap_err();
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
    /// clock.advance(Duration::from_secs(3));
    /// limits.reserve_all(asks()).await?.settle_each([1, 1_100]).await?;
    /// assert_eq!(limits.check(&tokens, "ann").await?.retry_after(), Some(Duration::from_millis(1_010)));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`settle`](Self::settle), and [`Rejection::Config`] if there is not one amount for each
    /// limit.
    ///
    /// # Cancel safety
    ///
    /// As [`settle`](Self::settle).
    pub async fn settle_each<C>(self, actuals: impl IntoIterator<Item = C>) -> Result<(), Rejection>
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let amounts = actuals.into_iter().map(C::try_into);
        let amounts: Result<SmallVec<[Amount; 1]>, _> = amounts.collect();
        let amounts = amounts.map_err(|error| Rejection::Config(error.into()))?;
        if amounts.len() != self.limits.len() {
            let expected = format!("{}, one for each limit", self.limits.len());
            let error = ConfigError::invalid("number of amounts", amounts.len(), expected);
            return Err(Rejection::Config(error));
        }
        self.settle_at(amounts).await
    }

    /// Gives all of it back, as [`settle`](Self::settle) with 0.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when the store gives no answer. It may have been given back all
    /// the same.
    ///
    /// # Cancel safety
    ///
    /// As [`settle`](Self::settle).
    pub async fn cancel(self) -> Result<(), Rejection> {
        self.settle(0_u32).await
    }

    /// The reservation of a call that was decided, whichever way.
    pub(crate) fn from_allowed(check: &Check<'_>, allowed: Allowed) -> Self {
        Self::of_asks(check.limiter, check.asks().iter().cloned(), allowed)
    }

    /// The same of what was asked for.
    pub(crate) fn of_asks<'a>(
        limiter: &Limiter,
        asks: impl IntoIterator<Item = LimitRequest<'a>>,
        allowed: Allowed,
    ) -> Self {
        Self::of_limits(limiter, asks.into_iter().map(RequestedLimit::of), allowed)
    }

    /// The same of a request.
    pub(crate) fn of_request(limiter: &Limiter, request: &DecisionRequest<'_>, allowed: Allowed) -> Self {
        let limits = request.limits.iter().filter(|limit| limit.blocks.is_none());
        Self::of_limits(limiter, limits.cloned().map(Some), allowed)
    }

    fn of_limits<'a>(
        limiter: &Limiter,
        limits: impl IntoIterator<Item = Option<RequestedLimit<'a>>>,
        allowed: Allowed,
    ) -> Self {
        Self {
            limiter: limiter.clone(),
            limits: ReservedLimit::each(limits, &allowed).collect(),
            allowed,
        }
    }

    /// How many limits were asked for.
    pub(crate) fn len(&self) -> usize {
        self.limits.len()
    }

    /// The decision alone: what was taken is taken for good.
    pub(crate) fn into_allowed(self) -> Allowed {
        self.allowed
    }

    /// Settles with an amount for each limit in the background: at once in process and for this
    /// replica's share, else in a task of `runtime`, which a shutdown of the limiter waits for.
    /// Without a runtime the estimate stays charged. An error is passed to `failed`, with the
    /// decision that charged the estimate. In process, returns the limits as they stand then.
    pub(crate) fn settle_in(
        self,
        runtime: Option<&Handle>,
        actuals: SmallVec<[Amount; 1]>,
        failed: impl FnOnce(&Decision, Rejection) + Send + 'static,
    ) -> Option<Settled> {
        let in_memory = self.limiter.is_in_process();
        let actuals = match self.units(&actuals) {
            Ok(actuals) => actuals,
            Err(rejection) => {
                failed(&self.allowed, rejection);
                return in_memory.then_some(Settled(self));
            }
        };
        if in_memory || self.allowed.origin() == Origin::LocalFallback {
            // Neither the memory store nor this replica's share waits for anything.
            let settled = pin!(self.apply_actuals(actuals)).poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(Err(rejection)) = settled {
                failed(&self.allowed, rejection);
            }
            return in_memory.then_some(Settled(self));
        }
        if let Some(runtime) = runtime {
            let open = self.limiter.inner.closing.subscribe();
            #[cfg(feature = "redis")]
            let pending = self.announce_refund(&actuals);
            runtime.spawn(async move {
                if let Err(rejection) = self.apply_actuals(actuals).await {
                    failed(&self.allowed, rejection);
                }
                #[cfg(feature = "redis")]
                drop(pending);
                drop(open);
            });
        }
        None
    }

    async fn settle_at(self, actuals: SmallVec<[Amount; 1]>) -> Result<(), Rejection> {
        // An amount that a limit cannot count leaves all limits as they are.
        let actuals = self.units(&actuals)?;
        match &self.limiter.inner.backend {
            Backend::Memory(_) => self.apply_actuals(actuals).await,
            #[cfg(feature = "redis")]
            Backend::Redis(_) => {
                // Whoever shuts the limiter down waits for it, too.
                let open = self.limiter.inner.closing.subscribe();
                let pending = self.announce_refund(&actuals);
                let settling = tokio::spawn(async move {
                    let settled = self.apply_actuals(actuals).await;
                    drop((pending, open));
                    settled
                });
                settling.await.unwrap_or_else(|_| {
                    let detail = "the Tokio runtime of the request has ended";
                    Err(StoreError::new(StoreErrorKind::Connection, detail).into())
                })
            }
        }
    }

    /// The amounts in the limits' own units; what is not settled may be any.
    fn units(&self, amounts: &[Amount]) -> Result<SmallVec<[u64; 1]>, Rejection> {
        let limits = self.limits.iter().zip(amounts);
        let units = limits.map(|(reserved, amount)| match reserved {
            Some(reserved) => reserved.units(*amount),
            None => Ok(0),
        });
        units.collect()
    }

    /// Makes of each limit's estimate what was used.
    async fn apply_actuals(&self, actuals: SmallVec<[u64; 1]>) -> Result<(), Rejection> {
        let mut settled = Ok(());
        for (reserved, actual) in self.limits.iter().zip(actuals) {
            let Some(reserved) = reserved else { continue };
            // One that fails keeps no other from being settled.
            settled = settled.and(self.change_one(reserved, actual).await);
        }
        settled
    }

    async fn change_one(&self, reserved: &ReservedLimit, actual: u64) -> Result<(), Rejection> {
        let Some((limit, change)) = reserved.settlement_change(actual) else {
            return Ok(());
        };
        let in_share = self.allowed.origin() == Origin::LocalFallback;
        let is_refund = change != Change::Owe;
        let changed = match reserved.successor(&self.limiter, &limit) {
            // What it is worth now is not known, and nothing is minted.
            CurrentPolicy::Unknown if is_refund => return Ok(()),
            // This replica's share is not converted.
            CurrentPolicy::Proportional(_) if in_share && is_refund => return Ok(()),
            CurrentPolicy::Proportional(policy) if !in_share => {
                let limit = RequestedLimit {
                    policy: &policy,
                    ..limit
                };
                self.limiter.change_in_proportion(&limit.alone(), change).await
            }
            _ if in_share => self.limiter.change_share(&limit.alone(), change),
            _ => self.limiter.apply_change(&limit.alone(), change).await,
        };
        self.limiter
            .inner
            .queues
            .came_back(&smallvec![reserved.identity()]);
        changed
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("limits", &self.limits)
            .field("decision", self.decision())
            .finish_non_exhaustive()
    }
}
