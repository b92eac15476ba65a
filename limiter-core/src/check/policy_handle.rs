//! The calls of a policy that is given by name.
//!
//! A handle holds the limiter and the name. Each operation creates the builder of the operation of
//! the same name of `Limiter`, which looks the policy up when it is awaited, so a change of the
//! registry applies to the next call. Tests: `tests/contract/named.rs`, `tests/entry_points.rs`.

use crate::algorithm::Mode;
use crate::check::registry_lookup::ResolvedPolicies;
use crate::check::{Acquire, AcquireConcurrency, Admit, Charge, Check, Refund, Reserve};
use crate::decision::Rejection;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::request::LimitRequest;
use crate::units::Timestamp;

/// A policy by its name, which is looked up at each call. Returned by [`Limiter::named`].
#[derive(Clone, Copy, Debug)]
pub struct PolicyHandle<'a> {
    limiter: &'a Limiter,
    name: &'a str,
}

impl Limiter {
    /// Returns a handle that looks up the policy of this name in the [registry](Self::registry) at
    /// each call.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::{OnUnknownPolicy, PolicyEntry, PolicyRegistry};
    /// use limiter_core::{Limiter, ManualClock, Origin, Policy, Rejection};
    ///
    /// let search = Policy::token_bucket("search").capacity(2).rate("1/s").build()?;
    /// let mail = Policy::sliding_window("mail").limit(5).window("1m").build()?;
    /// let registry = PolicyRegistry::new().with(search).with(PolicyEntry::new(mail).for_apps(["newsletter"])?);
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).registry(&registry).app("checkout").build();
    /// assert_eq!(limits.named("search").check("ann").await?.remaining(), 1);
    /// for name in ["serach", "mail"] {
    ///     let decision = limits.named(name).check("ann").await?;
    ///     assert!(decision.is_allowed());
    ///     assert_eq!(decision.origin(), Origin::NotConfigured);
    /// }
    /// assert_eq!(registry.not_configured(), 2);
    ///
    /// let strict = Limiter::in_process().registry(&registry).on_unknown_policy(OnUnknownPolicy::Deny).build();
    /// let refused = strict.named("serach").check("ann").await;
    /// assert!(matches!(refused, Err(Rejection::NotConfigured { policy }) if policy == "serach"));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn named<'a>(&'a self, policy: &'a str) -> PolicyHandle<'a> {
        PolicyHandle {
            limiter: self,
            name: policy,
        }
    }
}

impl<'a> PolicyHandle<'a> {
    /// Checks as [`Limiter::check`] does.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown policy with
    /// [`OnUnknownPolicy::Deny`](crate::registry::OnUnknownPolicy::Deny); otherwise the errors of
    /// [`Limiter::check`].
    pub fn check(&self, key: impl Into<Key<'a>>) -> Check<'a, &'a str> {
        Check::alone(self.limiter, self.request(key), Mode::Charge)
    }

    /// Peeks as [`Limiter::peek`] does.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek(&self, key: impl Into<Key<'a>>) -> Check<'a, &'a str> {
        Check::alone(self.limiter, self.request(key), Mode::Peek)
    }

    /// Deletes the usage of a key as [`Limiter::reset`] does; does nothing if no policy is
    /// configured.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown policy with
    /// [`OnUnknownPolicy::Deny`](crate::registry::OnUnknownPolicy::Deny); otherwise the errors of
    /// [`Limiter::reset`].
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::reset`].
    pub async fn reset(&self, key: impl Into<Key<'a>>) -> Result<(), Rejection> {
        let key = key.into();
        match self.limiter.resolve(self.name, &key)? {
            ResolvedPolicies::Policy(policy) => self.limiter.reset(&policy, key).await,
            ResolvedPolicies::Allowed(_) => Ok(()),
        }
    }

    /// Checks and applies the policy's reaction to a denial, as
    /// [`Limiter::admit`](crate::Limiter::admit) does.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::PolicyRegistry;
    /// use limiter_core::{Limiter, ManualClock, OnDenial, Policy};
    ///
    /// let search = Policy::token_bucket("search").capacity(1).rate("1/min").on_denial(OnDenial::Degrade).build()?;
    /// let registry = PolicyRegistry::new().with(search);
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).registry(&registry).build();
    /// assert!(!limits.named("search").admit("ann").await?.is_degraded());
    /// assert!(limits.named("search").admit("ann").await?.is_degraded());
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown policy with
    /// [`OnUnknownPolicy::Deny`](crate::registry::OnUnknownPolicy::Deny); otherwise the errors of
    /// [`Limiter::admit`](crate::Limiter::admit).
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::admit`](crate::Limiter::admit).
    pub fn admit(&self, key: impl Into<Key<'a>>) -> Admit<'a, &'a str> {
        Admit::new(self.check(key))
    }

    /// Waits for permits as [`Limiter::acquire`](crate::Limiter::acquire) does. A change of the
    /// policy in the registry applies to waiting calls, which may change their order then.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::PolicyRegistry;
    /// use limiter_core::{Limiter, Policy};
    /// use std::time::Duration;
    ///
    /// let mail = Policy::token_bucket("mail").capacity(1).rate("100/s").build()?;
    /// let limits = Limiter::in_process().registry(&PolicyRegistry::new().with(mail)).build();
    /// for _ in 0..3 {
    ///     limits.named("mail").acquire("ann").timeout(Duration::from_millis(500)).await?;
    /// }
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown policy with
    /// [`OnUnknownPolicy::Deny`](crate::registry::OnUnknownPolicy::Deny); otherwise the errors of
    /// [`Limiter::acquire`](crate::Limiter::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::acquire`](crate::Limiter::acquire).
    pub fn acquire(&self, key: impl Into<Key<'a>>) -> Acquire<'a, &'a str> {
        Acquire::new(self.check(key))
    }

    /// Acquires a concurrency permit as
    /// [`Limiter::acquire_concurrency`](crate::Limiter::acquire_concurrency) does. If no policy is
    /// configured, the permit has no effect.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::PolicyRegistry;
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let export = Policy::concurrency("export").max(1).build()?;
    /// let limits = Limiter::in_process().registry(&PolicyRegistry::new().with(export)).build();
    /// let permit = limits.named("export").acquire_concurrency("ann").await?;
    /// assert!(limits.named("export").acquire_concurrency("ann").await.is_err());
    /// drop(permit);
    /// assert!(limits.named("export").acquire_concurrency("ann").await.is_ok());
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown policy with
    /// [`OnUnknownPolicy::Deny`](crate::registry::OnUnknownPolicy::Deny); otherwise the errors of
    /// [`Limiter::acquire_concurrency`](crate::Limiter::acquire_concurrency).
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::acquire_concurrency`](crate::Limiter::acquire_concurrency).
    pub fn acquire_concurrency(&self, key: impl Into<Key<'a>>) -> AcquireConcurrency<'a, &'a str> {
        AcquireConcurrency::new(self.limiter, self.request(key))
    }

    /// Reserves permits as [`Limiter::reserve`](crate::Limiter::reserve) does. The reservation is
    /// settled under the policy that made it. If no policy is configured, nothing is charged, and
    /// its settlement has no effect.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::PolicyRegistry;
    /// use limiter_core::{Limiter, ManualClock, Policy};
    ///
    /// let tokens = Policy::token_bucket("tokens").capacity(1_000).rate("100/s").build()?;
    /// let registry = PolicyRegistry::new().with(tokens);
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).registry(&registry).build();
    /// let reservation = limits.named("tokens").reserve("ann").cost(800).await?;
    /// reservation.settle(300).await?;
    /// assert_eq!(limits.named("tokens").peek("ann").await?.remaining(), 700);
    ///
    /// limits.named("tokens").charge("ann").cost(800).await?; // more than the remaining 700: a debt of 100
    /// assert_eq!(limits.named("tokens").peek("ann").await?.remaining(), 0);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown policy with
    /// [`OnUnknownPolicy::Deny`](crate::registry::OnUnknownPolicy::Deny); otherwise the errors of
    /// [`Limiter::reserve`](crate::Limiter::reserve).
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::reserve`](crate::Limiter::reserve).
    pub fn reserve(&self, key: impl Into<Key<'a>>) -> Reserve<'a, &'a str> {
        Reserve::new(self.check(key))
    }

    /// Refunds permits as [`Limiter::refund`](crate::Limiter::refund) does; does nothing if no
    /// policy is configured.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown policy with
    /// [`OnUnknownPolicy::Deny`](crate::registry::OnUnknownPolicy::Deny); otherwise the errors of
    /// [`Limiter::refund`](crate::Limiter::refund).
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::refund`](crate::Limiter::refund).
    pub fn refund(&self, key: impl Into<Key<'a>>) -> Refund<'a, &'a str> {
        Refund::new(self.limiter, self.request(key))
    }

    /// Charges permits as [`Limiter::charge`](crate::Limiter::charge) does; does nothing if no
    /// policy is configured.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown policy with
    /// [`OnUnknownPolicy::Deny`](crate::registry::OnUnknownPolicy::Deny); otherwise the errors of
    /// [`Limiter::charge`](crate::Limiter::charge).
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::charge`](crate::Limiter::charge).
    pub fn charge(&self, key: impl Into<Key<'a>>) -> Charge<'a, &'a str> {
        Charge::new(self.limiter, self.request(key))
    }

    /// Returns the end of a penalty's block as
    /// [`Limiter::blocked_until`](crate::Limiter::blocked_until) does; `None` if no policy is
    /// configured.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] for an unknown policy with
    /// [`OnUnknownPolicy::Deny`](crate::registry::OnUnknownPolicy::Deny); otherwise the errors of
    /// [`Limiter::blocked_until`](crate::Limiter::blocked_until).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn blocked_until(&self, key: impl Into<Key<'a>>) -> Result<Option<Timestamp>, Rejection> {
        let key = key.into();
        match self.limiter.resolve(self.name, &key)? {
            ResolvedPolicies::Policy(policy) => self.limiter.blocked_until(&policy, key).await,
            ResolvedPolicies::Allowed(_) => Ok(None),
        }
    }

    fn request(&self, key: impl Into<Key<'a>>) -> LimitRequest<'a, &'a str> {
        LimitRequest::with_ref(self.name, key.into())
    }
}
