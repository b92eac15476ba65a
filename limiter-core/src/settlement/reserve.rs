//! Reservations: permits charged by an estimate and settled with the actual cost.
//!
//! The cost of a call, such as the tokens of a language model, is often known only after the call.
//! A reservation charges an estimate as one decision; its settlement refunds the difference, or
//! charges it unconditionally, as debt.
//!
//! Invariant: a settlement creates no permits. A refund is at most the part of the estimate that is
//! used and has not been refilled since. Tests: `tests/reservations.rs`,
//! `tests/contract/reservations.rs`, `tests/contract/settlement.rs`.

pub(crate) mod balance;
mod deadline;
#[cfg(feature = "redis")]
mod pending_refund;

use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;

use crate::algorithm::UsageCorrection;
use crate::decision::{Allowed, Decision, Origin, Rejection};
use crate::error::ConfigError;
use crate::error::{StoreError, StoreErrorKind};
use crate::limiter::Limiter;
use crate::observe::AsDecision;
use crate::request::{DecisionRequest, LimitRequest, ValidatedLimit};
pub use crate::settlement::reserve::balance::Settled;
use crate::settlement::reserved_limit::{CurrentPolicy, ReservedLimit};
use crate::units::Amount;

/// Permits that were charged by an estimate. A reservation owns its data, so a task, a stream or a
/// response can keep it until the actual cost is known.
///
/// A dropped reservation stays charged at its estimate.
#[must_use = "the estimate stays charged unless the reservation is settled or cancelled"]
pub struct Reservation {
    limiter: Limiter,
    /// The limits to settle, in the order of the request.
    limits: SmallVec<[Option<ReservedLimit>; 1]>,
    allowed: Allowed,
}

impl AsDecision for Reservation {
    fn as_decision(&self) -> &Decision {
        self.decision()
    }
}

impl Reservation {
    /// Creates a reservation without charges, which settles nothing.
    pub(crate) fn unlimited(limiter: &Limiter, allowed: Allowed) -> Self {
        Self {
            limiter: limiter.clone(),
            limits: smallvec![None],
            allowed,
        }
    }

    /// Returns the decision that granted the reservation.
    pub fn decision(&self) -> &Decision {
        &self.allowed
    }

    /// Replaces the estimate by `actual` under each limit: the difference is refunded or charged
    /// unconditionally. If the charge exceeds the remaining permits, the limit is in debt, and
    /// later calls wait until the debt is refilled.
    ///
    /// A settlement refunds no more than the reservation charged, no more than the usage, and no
    /// permits that were already refilled. A bucket or a funnel refunds the whole difference if
    /// less time has passed than the refill of the remaining usage takes; for long calls, configure
    /// a capacity of at least the estimate plus the refill during the call. A window refunds
    /// permits until they have left it. Over any time T, the admitted actual cost is therefore at
    /// most capacity + rate·T, plus debts and refunds within T of estimates that were charged
    /// before it. A debt of a sliding window lasts for one window and is capped at the limit, that
    /// of a fixed window ends with its period, and that of a counter window after two windows at
    /// most; a debt of a bucket or a funnel is at most 2^52 thousandths.
    ///
    /// A reservation that the local fallback granted ([`Origin::LocalFallback`]) is settled against
    /// this replica's share, also after the store is available again. A reservation that was
    /// granted without a decision ([`Origin::FailedOpen`]) was not charged: nothing is refunded,
    /// and usage above the estimate is charged in the store. A limit that denied the call in shadow
    /// mode was not charged and is not settled.
    ///
    /// If the limiter's [registry](Limiter::registry) has changed the policy
    /// [proportionally](crate::Policy::proportional_to) since, the difference is scaled to the new
    /// quota. Nothing is refunded if the window length has changed or after several such changes,
    /// and after several changes a charge is not scaled. If the registry has changed the policy and
    /// kept the usage, no permits are refunded that one of both policies has refilled.
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for an invalid amount or an amount that the limit cannot count;
    /// [`Rejection::Unavailable`] if the store does not reply. The settlement may have been applied
    /// in that case and is not repeated.
    ///
    /// # Cancel safety
    ///
    /// In process the settlement happens at the first poll. With Redis it continues in a task if
    /// the future is dropped after the first poll. A reservation is never settled twice.
    ///
    /// A call of this limiter that Redis denies during a settlement waits for the settlement and
    /// queries again within its deadline. Limiters in other processes see the settlement only after
    /// Redis has applied it: until then they deny by the estimate, with a
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

    /// Settles each limit with its own amount, in the order of the request.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    ///
    /// use limiter_core::{LimitRequest, Limiter, ManualClock, Policy};
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
    /// // Above the remaining tokens: a debt of 100.
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
    /// As [`settle`](Self::settle), and [`Rejection::Config`] if the number of amounts differs from
    /// the number of limits.
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

    /// Refunds the whole reservation, as [`settle`](Self::settle) with 0.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] if the store does not reply. The refund may have been applied in
    /// that case.
    ///
    /// # Cancel safety
    ///
    /// As [`settle`](Self::settle).
    pub async fn cancel(self) -> Result<(), Rejection> {
        self.settle(0_u32).await
    }

    /// Creates a reservation from the limit requests of a call.
    pub(crate) fn from_requests<'a>(
        limiter: &Limiter,
        requests: impl IntoIterator<Item = LimitRequest<'a>>,
        allowed: Allowed,
    ) -> Self {
        let limits = requests
            .into_iter()
            .map(|limit| limit.with_defaults(&limiter.inner.defaults));
        Self::from_limits(limiter, limits.map(ValidatedLimit::of), allowed)
    }

    /// Creates a reservation from a decision request.
    pub(crate) fn of_request(limiter: &Limiter, request: &DecisionRequest<'_>, allowed: Allowed) -> Self {
        let limits = request.limits.iter().filter(|limit| limit.blocks.is_none());
        Self::from_limits(limiter, limits.cloned().map(Some), allowed)
    }

    fn from_limits<'a>(
        limiter: &Limiter,
        limits: impl IntoIterator<Item = Option<ValidatedLimit<'a>>>,
        allowed: Allowed,
    ) -> Self {
        Self {
            limiter: limiter.clone(),
            limits: ReservedLimit::for_limits(limits, &allowed).collect(),
            allowed,
        }
    }

    /// Returns the reservation of limits with known charges.
    pub(crate) fn of_reserved(
        limiter: &Limiter,
        limits: SmallVec<[Option<ReservedLimit>; 1]>,
        allowed: Allowed,
    ) -> Self {
        Self {
            limiter: limiter.clone(),
            limits,
            allowed,
        }
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(crate) fn limits(&self) -> &[Option<ReservedLimit>] {
        &self.limits
    }

    /// Returns the longest deadline of its policies.
    pub(crate) fn deadline(&self) -> Duration {
        let limits = self.limits.iter().flatten();
        let longest = limits.map(ReservedLimit::deadline).max();
        longest.unwrap_or(crate::Policy::DEFAULT_DEADLINE)
    }

    /// Returns the number of limits.
    pub(crate) fn len(&self) -> usize {
        self.limits.len()
    }

    /// Returns the decision and keeps the charge.
    pub(crate) fn into_allowed(self) -> Allowed {
        self.allowed
    }

    /// Settles with an amount for each limit in the background: at once in process and for this
    /// replica's share, otherwise in a task of `runtime`, which a shutdown of the limiter waits
    /// for. Without a runtime the estimate stays charged. An error is passed to `failed`, with the
    /// decision that charged the estimate. In process, returns the settled reservation.
    pub(crate) fn settle_in_background(
        self,
        runtime: Option<&Handle>,
        actuals: SmallVec<[Amount; 1]>,
        failed: impl FnOnce(&Decision, Rejection) + Send + 'static,
    ) -> Option<Settled> {
        let in_process = self.limiter.is_in_process();
        let actuals = match self.units(&actuals) {
            Ok(actuals) => actuals,
            Err(rejection) => {
                failed(&self.allowed, rejection);
                return in_process.then_some(Settled(self));
            }
        };
        if in_process || self.allowed.origin() == Origin::LocalFallback {
            // Neither the memory store nor this replica's share awaits.
            let settled = pin!(self.apply_actuals(actuals)).poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(Err(rejection)) = settled {
                failed(&self.allowed, rejection);
            }
            return in_process.then_some(Settled(self));
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

    pub(crate) async fn settle_at(self, actuals: SmallVec<[Amount; 1]>) -> Result<(), Rejection> {
        // An amount that a limit cannot count leaves all limits unchanged.
        let actuals = self.units(&actuals)?;
        if self.limiter.is_in_process() {
            return self.apply_actuals(actuals).await;
        }
        // Shutdown waits for this receiver.
        let open = self.limiter.inner.closing.subscribe();
        #[cfg(feature = "redis")]
        let pending = self.announce_refund(&actuals);
        let task = tokio::spawn(async move {
            let settled = self.apply_actuals(actuals).await;
            #[cfg(feature = "redis")]
            drop(pending);
            drop(open);
            settled
        });
        task.await.unwrap_or_else(|_| {
            let detail = "the Tokio runtime of the request has ended";
            Err(StoreError::new(StoreErrorKind::Connection, detail).into())
        })
    }

    /// Converts the amounts to the units of the limits; amounts of unsettled limits are ignored.
    fn units(&self, amounts: &[Amount]) -> Result<SmallVec<[u64; 1]>, Rejection> {
        let limits = self.limits.iter().zip(amounts);
        let units = limits.map(|(reserved, amount)| match reserved {
            Some(reserved) => reserved.units(*amount),
            None => Ok(0),
        });
        units.collect()
    }

    /// Replaces the estimate of each limit by the actual cost.
    async fn apply_actuals(&self, actuals: SmallVec<[u64; 1]>) -> Result<(), Rejection> {
        let mut settled = Ok(());
        for (reserved, actual) in self.limits.iter().zip(actuals) {
            let Some(reserved) = reserved else { continue };
            // A failed limit does not prevent the settlement of the others.
            settled = settled.and(self.change_one(reserved, actual).await);
        }
        settled
    }

    async fn change_one(&self, reserved: &ReservedLimit, actual: u64) -> Result<(), Rejection> {
        let Some((limit, change)) = reserved.settlement_change(actual) else {
            return Ok(());
        };
        let in_share = self.allowed.origin() == Origin::LocalFallback;
        let is_refund = change != UsageCorrection::ForceCharge;
        let backend = &self.limiter.inner.backend;
        let current = reserved.successor(&self.limiter, &limit);
        let (policy, change) = match &current {
            // Its current value is unknown, and a refund must not create permits.
            CurrentPolicy::Unknown(_) if is_refund => return Ok(()),
            // This replica's share is not converted.
            CurrentPolicy::Proportional(_) if in_share && is_refund => return Ok(()),
            CurrentPolicy::Successor(policy) if !in_share && is_refund => match reserved.refund_under(policy)
            {
                Some(refund) => (policy, refund),
                None => (limit.policy, change),
            },
            // The level may exceed the capacity of the earlier policy.
            CurrentPolicy::Successor(policy)
            | CurrentPolicy::Unknown(policy)
            | CurrentPolicy::Proportional(policy)
                if !in_share =>
            {
                (policy, change)
            }
            _ => (limit.policy, change),
        };
        let request = ValidatedLimit { policy, ..limit }.alone();
        let is_converted = matches!(current, CurrentPolicy::Proportional(_));
        if !(is_converted && is_refund) {
            backend.correct_share(&request, change, (&self.allowed, reserved.estimate()));
        }
        let changed = match (in_share, is_converted) {
            (true, _) => Ok(backend.change_share(&request, change)?),
            (false, true) => self.limiter.change_proportional(&request, change).await,
            (false, false) => self.limiter.apply_change(&request, change).await,
        };
        self.limiter
            .inner
            .queues
            .notify_refund(&smallvec![reserved.identity()]);
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
