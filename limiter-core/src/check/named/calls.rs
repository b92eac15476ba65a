//! The calls of a policy handle, with the behavior for a missing policy.

use crate::algorithm::Mode;
use crate::check::Acquire;
use crate::check::Reserve;
use crate::check::named::call::{Answering, NamedCall, NamedWait};
use crate::check::named::{PolicyHandle, ResolvedPolicies};
use crate::concurrency::ConcurrencyPermit;
use crate::decision::{Allowed, Rejection};
use crate::key::Key;
use crate::settlement::{Charge, Refund, Reservation};
use crate::units::Timestamp;

impl<'a> PolicyHandle<'a> {
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
    pub fn admit(&self, key: impl Into<Key<'a>>) -> NamedCall<'a, Allowed> {
        self.call(key.into(), |question| {
            Box::pin(async move {
                match question.resolve(Mode::Charge)? {
                    ResolvedPolicies::Policy(policy) => {
                        question.check(&policy, Mode::Charge).admitted().await
                    }
                    ResolvedPolicies::Allowed(decision) => decision.require(),
                }
            })
        })
    }

    /// Waits for permits as [`Limiter::acquire`](crate::Limiter::acquire) does. A waiting call
    /// keeps the policy with which it started.
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
    pub fn acquire(&self, key: impl Into<Key<'a>>) -> NamedWait<'a, Allowed> {
        self.wait(key.into(), |question, timeout| {
            Box::pin(async move {
                match question.resolve(Mode::Charge)? {
                    ResolvedPolicies::Policy(policy) => {
                        let acquire = Acquire::new(question.check(&policy, Mode::Charge));
                        acquire.timeout(timeout.unwrap_or(Acquire::DEFAULT_TIMEOUT)).await
                    }
                    ResolvedPolicies::Allowed(decision) => decision.require(),
                }
            })
        })
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
    pub fn acquire_concurrency(&self, key: impl Into<Key<'a>>) -> NamedWait<'a, ConcurrencyPermit> {
        self.wait(key.into(), |question, timeout| {
            Box::pin(async move {
                match question.resolve(Mode::Charge)? {
                    ResolvedPolicies::Policy(policy) => {
                        let enter = question
                            .named
                            .limiter
                            .acquire_concurrency_for(question.ask(&policy));
                        enter.timeout(timeout.unwrap_or_default()).await
                    }
                    ResolvedPolicies::Allowed(decision) => Ok(ConcurrencyPermit::unlimited(decision)),
                }
            })
        })
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
    pub fn reserve(&self, key: impl Into<Key<'a>>) -> NamedWait<'a, Reservation> {
        self.wait(key.into(), |question, timeout| {
            Box::pin(async move {
                match question.resolve(Mode::Charge)? {
                    ResolvedPolicies::Policy(policy) => {
                        let reserve = Reserve::new(question.check(&policy, Mode::Charge));
                        match timeout {
                            Some(timeout) => reserve.timeout(timeout).await,
                            None => reserve.await,
                        }
                    }
                    ResolvedPolicies::Allowed(decision) => Ok(Reservation::unlimited(
                        question.named.limiter,
                        decision.require()?,
                    )),
                }
            })
        })
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
    pub fn refund(&self, key: impl Into<Key<'a>>) -> NamedCall<'a, ()> {
        self.call(key.into(), |question| {
            Box::pin(async move {
                match question.resolve(Mode::Charge)? {
                    ResolvedPolicies::Policy(policy) => {
                        Refund::new(question.named.limiter, question.ask(&policy)).await
                    }
                    ResolvedPolicies::Allowed(_) => Ok(()),
                }
            })
        })
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
    pub fn charge(&self, key: impl Into<Key<'a>>) -> NamedCall<'a, ()> {
        self.call(key.into(), |question| {
            Box::pin(async move {
                match question.resolve(Mode::Charge)? {
                    ResolvedPolicies::Policy(policy) => {
                        let charge = Charge::new(question.named.limiter, question.ask(&policy));
                        charge.cost(question.cost.clone()?).await
                    }
                    ResolvedPolicies::Allowed(_) => Ok(()),
                }
            })
        })
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

    fn call<T>(
        &self,
        key: Key<'a>,
        run: fn(crate::check::named::Question<'a>) -> Answering<'a, T>,
    ) -> NamedCall<'a, T> {
        let question = self.question(key);
        NamedCall { question, run }
    }

    fn wait<T>(
        &self,
        key: Key<'a>,
        run: fn(crate::check::named::Question<'a>, Option<std::time::Duration>) -> Answering<'a, T>,
    ) -> NamedWait<'a, T> {
        NamedWait {
            question: self.question(key),
            timeout: None,
            run,
        }
    }
}
