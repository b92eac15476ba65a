//! Reservations that a client settles by an id, on any node.
//!
//! The record of a reservation is kept in Redis, or without Redis in a bounded table of this
//! limiter. A settlement first marks the record as settled and then changes the limits, so a
//! reservation is settled at most once; docs/design/detached.md states the bounds.
//!
//! `tests/contract/detached.rs` and `tests/detached.rs` verify the guarantees.

use std::fmt;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;

use crate::decision::{Decision, Origin, Rejection};
use crate::detachment::generations::generations;
use crate::detachment::id::{DetachedId, IdBacking, IdKind, StoredId};
use crate::detachment::record::{ReservationClaim, ReservationRecord};
use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::{LimitRequest, ValidatedLimit};
use crate::settlement::Reservation;
use crate::settlement::reserved_limit::ReservedLimit;
use crate::units::{Amount, Timestamp};

/// The longest time for which a detached reservation is kept.
const MAX_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

/// A reservation that is settled by its id. An unsettled reservation keeps its estimate.
#[derive(Clone)]
pub struct DetachedReservation {
    id: String,
    expires_at: Timestamp,
    decision: Decision,
}

/// The result of [`Limiter::settle_reservation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettlementOutcome {
    /// The reservation is settled.
    Settled,
    /// An earlier call settled the reservation, or began to; this call changed nothing.
    AlreadySettled,
    /// No reservation of this id is known: it expired, never existed or, without Redis, was settled
    /// before 100,000 others. Nothing is changed.
    Unknown,
}

impl DetachedReservation {
    /// Returns the id by which the reservation is settled. The owner of the id can settle the
    /// reservation once, so the id is a secret of the client.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the time at which the reservation expires, by the store's clock. Afterwards it stays
    /// charged at its estimate.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// Returns the decision that granted the reservation.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }
}

/// Omits the id, which is a secret.
impl fmt::Debug for DetachedReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedReservation")
            .field("expires_at", &self.expires_at)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

impl Reservation {
    /// Exchanges the reservation for an id, which a client in another process keeps until the
    /// actual cost is known. Without a [settlement](Limiter::settle_reservation) before it expires,
    /// the reservation stays charged at its estimate.
    ///
    /// With Redis any limiter of the namespace can settle it. Without Redis the id is valid for
    /// this limiter and its clones only, as are ids of reservations that were granted while Redis
    /// was unavailable ([`Origin::LocalFallback`], [`Origin::FailedOpen`]).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::detached::SettlementOutcome;
    /// use limiter_core::{LimitRequest, Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let tokens = Policy::token_bucket("tokens").capacity(1_000).rate("100/s").build()?;
    ///
    /// let reservation = limits.reserve(&tokens, "ann").cost(800).await?;
    /// let reservation = reservation.detach(Duration::from_secs(600)).await?;
    /// let used = || [LimitRequest::new(&tokens, "ann").cost(300)];
    /// assert_eq!(limits.settle_reservation(reservation.id(), used()).await?, SettlementOutcome::Settled);
    /// assert_eq!(limits.settle_reservation(reservation.id(), used()).await?, SettlementOutcome::AlreadySettled);
    /// assert_eq!(limits.peek(&tokens, "ann").await?.remaining(), 700);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for a lifetime of zero or above seven days; [`Rejection::Unavailable`]
    /// when the store does not reply, or when this process already keeps 100,000 unsettled
    /// reservations. In all of these cases the estimate is refunded in the background.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the reservation stays charged at its estimate.
    pub async fn detach(self, lifetime: Duration) -> Result<DetachedReservation, Rejection> {
        match self.store_detached(lifetime).await {
            Ok((id, expires_at)) => Ok(DetachedReservation {
                id,
                expires_at,
                decision: self.into_allowed().into_decision(),
            }),
            Err(rejection) => {
                let nothing = smallvec![Amount::ZERO; self.len()];
                // The caller receives the first error.
                let _ = self.settle_in_background(Handle::try_current().ok().as_ref(), nothing, |_, _| ());
                Err(rejection)
            }
        }
    }

    /// Stores the record of this reservation. Returns the id and the time at which it expires.
    async fn store_detached(&self, lifetime: Duration) -> Result<(String, Timestamp), Rejection> {
        if lifetime.is_zero() || lifetime > MAX_LIFETIME {
            let expected = "more than zero and at most seven days";
            let shown = format!("{lifetime:?}");
            return Err(ConfigError::invalid("lifetime of a reservation", shown, expected).into());
        }
        let limiter = self.limiter();
        let record = self.record();
        let mut charged = 0_u16;
        let mut scope = Vec::new();
        for (number, reserved) in self.limits().iter().enumerate() {
            if let Some(reserved) = reserved {
                // A decision has at most 16 limits.
                charged |= 1 << (number % 16);
                scope.push(limiter.scope(&reserved.limit(0)));
            }
        }
        let limits = u32::try_from(record.charges.len()).unwrap_or(u32::MAX);
        let mut id = DetachedId::reservation(charged, limits)?;
        let stored = id.stored(&scope);
        let now = limiter.now();
        if !record.has_charges() {
            id.backing = IdBacking::Nothing;
            return Ok((id.text(&scope), now.after(lifetime)));
        }
        let is_here = matches!(
            self.decision().origin(),
            Origin::LocalFallback | Origin::FailedOpen
        );
        if !is_here {
            let backend = &limiter.inner.backend;
            let stored_at = backend.store_reservation(stored, &record, lifetime, self.deadline());
            if let Some(stored_at) = stored_at.await? {
                return Ok((id.text(&scope), stored_at.after(lifetime)));
            }
        }
        let tables = &limiter.inner.detached;
        id.backing = IdBacking::Node;
        id.node = tables.node()?;
        let expires_at = now.after(lifetime);
        tables.keep(stored, record, expires_at, now)?;
        Ok((id.text(&scope), expires_at))
    }

    fn record(&self) -> ReservationRecord {
        let charges = self.limits().iter();
        ReservationRecord {
            in_share: self.decision().origin() == Origin::LocalFallback,
            decided_at: self.decision().decided_at(),
            charges: charges
                .map(|reserved| reserved.as_ref().map(ReservedLimit::to_charge))
                .collect(),
        }
    }
}

impl Limiter {
    /// Settles a [detached](Reservation::detach) reservation, on any node, as
    /// [`Reservation::settle_each`] does: `used` contains the policies and keys of the reservation
    /// in their order, each with the actual usage as its cost. Repeating the call is harmless.
    ///
    /// The numbers of a policy may have changed since; pass the current one. After a change that
    /// keeps the usage, nothing is refunded later than one window or refill of the current policy
    /// after the decision.
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for a text that is not a reservation id, for an id of other limits or,
    /// without Redis, of another node, and for an amount that a limit cannot count: the reservation
    /// can still be settled. [`Rejection::Unavailable`] when the store does not reply: the
    /// reservation may be settled, unsettled, or marked as settled while its estimate stays
    /// charged. Repeating the call settles it in the second case.
    ///
    /// # Cancel safety
    ///
    /// In process the reservation is settled at the first poll. With Redis the settlement continues
    /// in a task if the future is dropped after that.
    pub async fn settle_reservation<'a, A: Into<LimitRequest<'a>>>(
        &self,
        id: &str,
        used: impl IntoIterator<Item = A>,
    ) -> Result<SettlementOutcome, Rejection> {
        self.open()?;
        let mut limits = Vec::new();
        let mut actuals: SmallVec<[Amount; 1]> = SmallVec::new();
        for limit_used in used {
            let (limit, actual) = limit_used
                .into()
                .with_defaults(&self.inner.defaults)
                .into_used()?;
            limits.push(limit);
            actuals.push(actual);
        }
        let is_charged = |id: &DetachedId, number: usize| number < 16 && id.cost & (1_u16 << number) != 0;
        let (id, stored, policies) = DetachedId::parse(IdKind::Reservation, id, |id| {
            if usize::try_from(id.lease_ms) != Ok(limits.len()) {
                let expected = format!("{}, the limits of the reservation", id.lease_ms);
                return Err(ConfigError::invalid("number of limits", limits.len(), expected));
            }
            let charged = limits.iter().enumerate();
            let charged = charged.filter(|(number, _)| is_charged(id, *number));
            let charged: SmallVec<[&ValidatedLimit<'_>; 1]> = charged.map(|(_, limit)| limit).collect();
            let current = charged.iter().map(|limit| limit.policy.generation()).collect();
            Ok(generations(current).map(move |generations| {
                let limits = charged.iter().zip(generations);
                let in_generation = |(limit, generation): (&&ValidatedLimit<'_>, u32)| {
                    let policy = limit.policy.clone().with_generation(generation);
                    let scope = self.scope(&limit.under(&policy));
                    (policy, scope)
                };
                limits
                    .map(in_generation)
                    .unzip::<_, _, Vec<Policy>, Vec<String>>()
            }))
        })?;
        if id.backing == IdBacking::Nothing {
            return Ok(SettlementOutcome::Settled);
        }
        // An amount that a limit cannot count leaves the reservation unsettled.
        for (limit, actual) in limits.iter().zip(&actuals) {
            crate::request::used_units(limit.policy, *actual)?;
        }
        self.inner.detached.require_own(&id)?;
        let is_here = id.backing == IdBacking::Node;
        let deadline = limits.iter().map(|limit| limit.policy.deadline()).max();
        let deadline = deadline.unwrap_or(Policy::DEFAULT_DEADLINE);
        let mut policies = policies.into_iter();
        let limits = limits.iter().enumerate().map(|(number, limit)| {
            // The charge is in the state of this generation.
            let policy = is_charged(&id, number).then(|| policies.next()).flatten();
            ReservedLimit::of_unknown_charge(limit.under(policy.as_ref().unwrap_or(limit.policy)))
        });
        let limits = limits.collect();
        if self.is_in_process() && !is_here {
            return Err(id.of_another_node().into());
        }
        let settling = self
            .clone()
            .settle_stored(stored, is_here, limits, actuals, deadline);
        if self.is_in_process() {
            return settling.await;
        }
        // Shutdown waits for this receiver.
        let open = self.inner.closing.subscribe();
        let settling = tokio::spawn(async move {
            let settled = settling.await;
            drop(open);
            settled
        });
        settling.await.unwrap_or_else(|_| {
            let detail = "the Tokio runtime of the request has ended";
            Err(StoreError::new(StoreErrorKind::Connection, detail).into())
        })
    }

    /// Refunds a [detached](Reservation::detach) reservation completely, as a settlement with 0.
    ///
    /// # Errors
    ///
    /// As [`settle_reservation`](Self::settle_reservation).
    ///
    /// # Cancel safety
    ///
    /// As [`settle_reservation`](Self::settle_reservation).
    pub async fn cancel_reservation<'a, A: Into<LimitRequest<'a>>>(
        &self,
        id: &str,
        limits: impl IntoIterator<Item = A>,
    ) -> Result<SettlementOutcome, Rejection> {
        let nothing = limits.into_iter().map(|limit| limit.into().cost(Amount::ZERO));
        self.settle_reservation(id, nothing).await
    }

    async fn settle_stored(
        self,
        id: StoredId,
        is_here: bool,
        limits: Vec<ReservedLimit>,
        actuals: SmallVec<[Amount; 1]>,
        deadline: Duration,
    ) -> Result<SettlementOutcome, Rejection> {
        let record = match self.claim(id, is_here, deadline).await? {
            ReservationClaim::Claimed(record) => record,
            ReservationClaim::Settled => return Ok(SettlementOutcome::AlreadySettled),
            ReservationClaim::Absent => return Ok(SettlementOutcome::Unknown),
        };
        let charges = record.charges.iter().copied();
        let charged = limits.into_iter().zip(charges);
        let charged = charged.map(|(limit, charge)| Some(limit.with_charge(charge?, record.decided_at)));
        let origin = if record.in_share {
            Origin::LocalFallback
        } else {
            self.inner.backend.origin()
        };
        let allowed = Decision::without_query(origin, record.decided_at).require()?;
        let reservation = Reservation::of_reserved(&self, charged.collect(), allowed);
        reservation.settle_at(actuals).await?;
        Ok(SettlementOutcome::Settled)
    }

    /// Claims a reservation, so that this call alone settles it.
    #[cfg_attr(
        not(feature = "redis"),
        expect(
            unused_variables,
            clippy::unused_async,
            reason = "in process it takes no time"
        )
    )]
    async fn claim(
        &self,
        id: StoredId,
        is_here: bool,
        deadline: Duration,
    ) -> Result<ReservationClaim, StoreError> {
        #[cfg(feature = "redis")]
        if !is_here {
            return self.inner.backend.claim_reservation(id, deadline).await;
        }
        Ok(self.inner.detached.claim(&id, self.now()))
    }
}
