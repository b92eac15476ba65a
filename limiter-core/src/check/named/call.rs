//! Calls by policy name other than checks.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use crate::algorithm::Mode;
use crate::check::Check;
use crate::check::named::PolicyHandle;
use crate::check::named::ResolvedPolicies;
use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::key::Key;
use crate::policy::Policy;
use crate::request::LimitRequest;
use crate::units::Amount;

/// The policy, key and cost of a call.
#[derive(Clone, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) named: PolicyHandle<'a>,
    pub(crate) key: Key<'a>,
    pub(crate) cost: Result<Amount, ConfigError>,
}

impl Question<'_> {
    pub(crate) fn resolve(&self, mode: Mode) -> Result<ResolvedPolicies, Rejection> {
        match mode {
            Mode::Charge => self.named.limiter.resolve_call(self.named.name, &self.key),
            _ => self.named.limiter.resolve(self.named.name, &self.key),
        }
    }

    pub(crate) fn ask<'b>(&'b self, policy: &'b Policy) -> LimitRequest<'b> {
        let mut ask = LimitRequest::new(policy, &self.key);
        ask.set_cost(self.cost.clone());
        ask
    }

    pub(crate) fn check<'b>(&'b self, policy: &'b Policy, mode: Mode) -> Check<'b> {
        Check::alone(self.named.limiter, self.ask(policy), mode)
    }
}

pub(crate) type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, Rejection>> + Send + 'a>>;

/// A call by policy name; it is sent when the value is awaited. Returned by
/// [`PolicyHandle::admit`], [`PolicyHandle::refund`] and [`PolicyHandle::charge`].
#[must_use = "nothing is sent or charged until this is awaited"]
pub struct NamedCall<'a, T> {
    pub(crate) question: Question<'a>,
    pub(crate) run: fn(Question<'a>) -> Answering<'a, T>,
}

impl<T> NamedCall<'_, T> {
    /// Sets the number of permits, as [`Check::cost`] does. Default: 1.
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        self.question.cost = cost.try_into().map_err(Into::into);
        self
    }
}

impl<'a, T> IntoFuture for NamedCall<'a, T> {
    type Output = Result<T, Rejection>;
    type IntoFuture = Answering<'a, T>;

    fn into_future(self) -> Self::IntoFuture {
        (self.run)(self.question)
    }
}

/// A call by policy name that may wait; it is sent when the value is awaited. Returned by
/// [`PolicyHandle::acquire`], [`PolicyHandle::reserve`] and [`PolicyHandle::acquire_concurrency`].
#[must_use = "nothing is sent or charged until this is awaited"]
pub struct NamedWait<'a, T> {
    pub(crate) question: Question<'a>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) run: fn(Question<'a>, Option<Duration>) -> Answering<'a, T>,
}

impl<T> NamedWait<'_, T> {
    /// Sets the cost of the call, as [`Check::cost`] does. Default: 1.
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        self.question.cost = cost.try_into().map_err(Into::into);
        self
    }

    /// Sets the maximum duration of the call, including the requests to the store. Default:
    /// [`Acquire::DEFAULT_TIMEOUT`](crate::future::Acquire::DEFAULT_TIMEOUT) for
    /// [`PolicyHandle::acquire`], zero for the others.
    pub fn timeout(self, timeout: Duration) -> Self {
        let timeout = Some(timeout);
        Self { timeout, ..self }
    }
}

impl<'a, T> IntoFuture for NamedWait<'a, T> {
    type Output = Result<T, Rejection>;
    type IntoFuture = Answering<'a, T>;

    fn into_future(self) -> Self::IntoFuture {
        (self.run)(self.question, self.timeout)
    }
}

impl<T> Clone for NamedCall<'_, T> {
    fn clone(&self) -> Self {
        Self {
            question: self.question.clone(),
            run: self.run,
        }
    }
}

impl<T> Clone for NamedWait<'_, T> {
    fn clone(&self) -> Self {
        Self {
            question: self.question.clone(),
            ..*self
        }
    }
}

impl<T> fmt::Debug for NamedCall<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NamedCall").field(&self.question).finish()
    }
}

impl<T> fmt::Debug for NamedWait<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedWait")
            .field("question", &self.question)
            .field("timeout", &self.timeout)
            .finish()
    }
}
