//! Permits that a client holds by an id, instead of a guard in this process.
//!
//! In Redis such a permit is a lease like any other; its members are named by the digest of the id.
//! No task renews it. Without Redis, and for permits of this replica's share in an outage, a table
//! of this limiter keeps the guard until the permit is released or expires.
//!
//! `tests/contract/detached.rs` and `tests/detached.rs` verify the guarantees.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;

use crate::algorithm::Mode;
use crate::check::AcquireConcurrency;
use crate::decision::{Decision, Rejection};
use crate::detachment::DetachedHold;
use crate::detachment::generations::generations;
use crate::detachment::id::{DetachedId, IdBacking, IdKind, StoredId};
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::memory::permit_table::MAX_PERMIT_COST;
use crate::permits::permit::PermitBacking;
use crate::permits::request::ConcurrencyRequest;
use crate::policy::Policy;
use crate::request::LimitRequest;
use crate::units::Timestamp;

/// An acquisition of a detached permit; it starts when the value is awaited. Returned by
/// [`AcquireConcurrency::detached`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until this is awaited"]
pub struct AcquireDetached<'a>(AcquireConcurrency<'a>);

/// A permit that is held until it is released by its id, or until it expires.
///
/// Dropping this value releases nothing.
#[derive(Clone)]
pub struct DetachedPermit {
    id: String,
    expires_at: Timestamp,
    decision: Decision,
}

/// The result of [`Limiter::renew_permit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermitRenewal {
    /// The permit is held for another lease.
    Renewed {
        /// The new time at which it expires, by the store's clock.
        expires_at: Timestamp,
    },
    /// No permit of this id is held: it expired, was released or reset, or never existed.
    NotHeld,
}

/// The result of [`Limiter::release_permit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermitRelease {
    /// The permit was held and is now released.
    Released,
    /// No permit of this id is held: it expired, was released or reset, or never existed.
    NotHeld,
}

impl DetachedPermit {
    /// Returns the id by which the permit is renewed and released. The owner of the id can do both,
    /// so the id is a secret of the client.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the time at which the permit expires unless it is renewed, by the store's clock.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// Returns the decision that admitted the call.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }
}

/// Omits the id, which is a secret.
impl fmt::Debug for DetachedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedPermit")
            .field("expires_at", &self.expires_at)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

impl<'a> AcquireConcurrency<'a> {
    /// Returns an id instead of a guard, for a client in another process, which releases the permit
    /// itself.
    ///
    /// The permit is held for the policy's lease. [`Limiter::renew_permit`] holds it for another
    /// lease, [`Limiter::release_permit`] releases it; nothing renews it automatically. With Redis
    /// any limiter of the namespace can do both. Without Redis the id is valid for this limiter and
    /// its clones only, as are ids of permits that this replica admitted while Redis was
    /// unavailable ([`Origin::LocalFallback`](crate::Origin::LocalFallback)).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::detached::{PermitRelease, PermitRenewal};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let export = Policy::concurrency("export").max(1).lease("30s").build()?;
    ///
    /// let permit = limits.acquire_concurrency(&export, "ann").detached().await?;
    /// assert!(limits.acquire_concurrency(&export, "ann").await.is_err());
    /// clock.advance(Duration::from_secs(20));
    /// let renewed = limits.renew_permit(&export, "ann", permit.id()).await?;
    /// assert!(matches!(renewed, PermitRenewal::Renewed { .. }));
    /// assert_eq!(limits.release_permit(&export, "ann", permit.id()).await?, PermitRelease::Released);
    /// assert_eq!(limits.release_permit(&export, "ann", permit.id()).await?, PermitRelease::NotHeld);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire_concurrency`]; [`Rejection::Config`] with a
    /// [`timeout`](Self::timeout), since detached permits cannot be waited for; and
    /// [`Rejection::Unavailable`] when this process already holds 100,000 ids.
    ///
    /// # Cancel safety
    ///
    /// A permit that Redis may have admitted for a dropped future is released in the background; if
    /// the release fails, the permit expires.
    pub fn detached(self) -> AcquireDetached<'a> {
        AcquireDetached(self)
    }
}

impl<'a> IntoFuture for AcquireDetached<'a> {
    type Output = Result<DetachedPermit, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl AcquireDetached<'_> {
    async fn run(self) -> Result<DetachedPermit, Rejection> {
        let Self(mut acquire) = self;
        if !acquire.timeout.is_zero() {
            let expected = "none, since detached permits are not waited for: repeat the call instead";
            let timeout = format!("{:?}", acquire.timeout);
            return Err(ConfigError::invalid("timeout", timeout, expected).into());
        }
        let limiter = acquire.limiter;
        if !limiter.is_in_process() {
            // The tasks of permits of an outage end with their runtime.
            drop(limiter.inner.detached.permits.take_expired(|| limiter.now()));
        }
        let one = LimitRequest::new(acquire.request.policy(), acquire.request.key().clone());
        let one = ConcurrencyRequest::new(one, Mode::Peek)?;
        let identity = one.limit().identity;
        let scope = [limiter.scope(one.limit())];
        // In shadow mode an invalid cost is allowed, and no permit is held.
        let terms = ConcurrencyRequest::new(acquire.request.clone(), Mode::Peek)
            .map_or(one.terms(), |request| request.terms());
        let cost = u16::try_from(terms.cost).unwrap_or(u16::MAX);
        let lease = Duration::from_millis(terms.lease_ms.into());
        let mut id = DetachedId::permit(cost, terms.lease_ms)?;
        let stored = id.stored(&scope);
        acquire.detached = Some(stored);
        let (decision, backing) = acquire.await?.into_parts();
        #[cfg_attr(
            not(feature = "redis"),
            expect(unused_mut, reason = "only Redis has another clock")
        )]
        let mut expires_at = limiter.now().after(lease);
        match backing {
            PermitBacking::Nothing => id.backing = IdBacking::Nothing,
            #[cfg(feature = "redis")]
            PermitBacking::Detached => expires_at = decision.decided_at().after(lease),
            held => {
                id.backing = IdBacking::Node;
                id.node = limiter.inner.detached.node()?;
                let hold = DetachedHold {
                    identity,
                    _permit: Box::new(held),
                    expiry: None,
                };
                limiter.hold_detached(stored, hold, expires_at)?;
            }
        }
        Ok(DetachedPermit {
            id: id.text(&scope),
            expires_at,
            decision,
        })
    }
}

impl Limiter {
    /// Renews a [detached](AcquireConcurrency::detached) permit for another lease, on any node.
    /// Repeating the call is harmless.
    ///
    /// The length of the lease is the one of the acquisition, also after a change of the policy.
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for a text that is not a permit id, or an id of another namespace,
    /// policy or key or, without Redis, of another node; [`Rejection::Unavailable`] when the store
    /// does not reply. The permit may be renewed nevertheless.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while a request to Redis is in flight, the permit is renewed or
    /// not.
    pub async fn renew_permit<'a>(
        &self,
        policy: &'a Policy,
        key: impl Into<Key<'a>>,
        id: &str,
    ) -> Result<PermitRenewal, Rejection> {
        self.open()?;
        let limit = LimitRequest::new(policy, key).with_defaults(&self.inner.defaults);
        let (id, stored, policy) = self.parse_permit(&limit, id)?;
        let request = permit_request(&policy, &limit)?;
        let now = self.now();
        let expires_at = now.after(Duration::from_millis(id.lease_ms.into()));
        let renewed = match id.backing {
            IdBacking::Nothing => true,
            IdBacking::Node => self.inner.detached.permits.renew(&stored, now, expires_at),
            IdBacking::Store => {
                let renewed = self.inner.backend.renew_detached(&request, &id, stored).await?;
                return Ok(
                    renewed.map_or(PermitRenewal::NotHeld, |expires_at| PermitRenewal::Renewed {
                        expires_at,
                    }),
                );
            }
        };
        Ok(if renewed {
            PermitRenewal::Renewed { expires_at }
        } else {
            PermitRenewal::NotHeld
        })
    }

    /// Releases a [detached](AcquireConcurrency::detached) permit, on any node. Repeating the call
    /// is harmless.
    ///
    /// # Errors
    ///
    /// As [`renew_permit`](Self::renew_permit). A permit whose release failed expires with its
    /// lease.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while a request to Redis is in flight, the permit is released or
    /// not.
    pub async fn release_permit<'a>(
        &self,
        policy: &'a Policy,
        key: impl Into<Key<'a>>,
        id: &str,
    ) -> Result<PermitRelease, Rejection> {
        self.open()?;
        let limit = LimitRequest::new(policy, key).with_defaults(&self.inner.defaults);
        let (id, stored, policy) = self.parse_permit(&limit, id)?;
        let request = permit_request(&policy, &limit)?;
        let released = match id.backing {
            IdBacking::Nothing => true,
            IdBacking::Node => {
                // Dropped outside of the table's lock.
                let hold = self.inner.detached.permits.remove(&stored, self.now());
                hold.is_some()
            }
            IdBacking::Store => self.inner.backend.release_detached(&request, &id, stored).await?,
        };
        Ok(if released {
            PermitRelease::Released
        } else {
            PermitRelease::NotHeld
        })
    }

    fn parse_permit(
        &self,
        limit: &LimitRequest<'_>,
        text: &str,
    ) -> Result<(DetachedId, StoredId, Policy), Rejection> {
        // The error of a policy that has no permits.
        permit_request(limit.policy(), limit)?;
        let scopes = |_: &DetachedId| {
            let generations = generations(smallvec![limit.policy().generation()]).flatten();
            Ok(generations.filter_map(|generation| {
                let policy = limit.policy().clone().with_generation(generation);
                let scope = self.scope(permit_request(&policy, limit).ok()?.limit());
                Some((policy, vec![scope]))
            }))
        };
        let (id, stored, policy) = DetachedId::parse(IdKind::Permit, text, scopes)?;
        if u64::from(id.cost) > MAX_PERMIT_COST {
            let expected = "an id as it was returned";
            return Err(ConfigError::invalid("permit id", "an id with too large a cost", expected).into());
        }
        self.inner.detached.require_own(&id)?;
        Ok((id, stored, policy))
    }

    fn hold_detached(
        &self,
        id: StoredId,
        hold: DetachedHold,
        expires_at: Timestamp,
    ) -> Result<(), Rejection> {
        let (permits, identity) = (&self.inner.detached.permits, hold.identity);
        permits.insert(id, hold, expires_at)?;
        let (permits, clock) = (Arc::clone(permits), self.inner.clock.clone());
        let expire = async move {
            // A renewal moves the expiry.
            while let Some(expires_at) = permits.expiry(&id) {
                let now = clock.now();
                clock.sleep(now, expires_at.since(now)).await;
                drop(permits.take_expired(|| clock.now()));
            }
        };
        let expiry = self.inner.backend.schedule_expiry(identity, expire);
        let permits = &self.inner.detached.permits;
        permits.with(&id, self.now(), |hold| hold.expiry = expiry);
        Ok(())
    }
}

/// Returns the request for the permits of a policy.
fn permit_request<'a>(
    policy: &'a Policy,
    limit: &'a LimitRequest<'_>,
) -> Result<ConcurrencyRequest<'a>, Rejection> {
    let one = LimitRequest::new(policy, limit.key());
    ConcurrencyRequest::new(one, Mode::Peek)
}
