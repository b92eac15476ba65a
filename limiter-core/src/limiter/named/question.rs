//! What is asked by the name of a policy; waits and refunds of it.

use std::pin::Pin;
use std::time::Duration;

use super::Named;
use crate::__private::Resolved;
use crate::decision::{Allowed, Rejection};
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::{Acquire, Check, Mode};
use crate::policy::Policy;
use crate::request::Ask;
use crate::units::Amount;

/// Whose permits of which policy, and how many.
#[derive(Clone, Debug)]
pub(super) struct Question<'a> {
    pub(super) named: Named<'a>,
    pub(super) key: Key<'a>,
    pub(super) cost: Result<Amount, ConfigError>,
}

impl Question<'_> {
    pub(super) fn resolve(&self, mode: Mode) -> Result<Resolved, Rejection> {
        match mode {
            Mode::Charge => self.named.limiter.resolve_call(self.named.name, &self.key),
            _ => self.named.limiter.resolve(self.named.name, &self.key),
        }
    }

    pub(super) fn check<'b>(&'b self, policy: &'b Policy, mode: Mode) -> Check<'b> {
        let mut ask = Ask::new(policy, &self.key);
        ask.set_cost(self.cost.clone());
        Check::alone(self.named.limiter, ask, mode)
    }
}

/// A wait for a permit by the name of a policy, not yet begun: await it. Made by [`Named::acquire`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked or charged until this is awaited"]
pub struct NamedAcquire<'a> {
    pub(super) question: Question<'a>,
    pub(super) up_to: Duration,
}

impl<'a> NamedAcquire<'a> {
    /// What the call costs, as [`Check::cost`]. Default: 1.
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        self.question.cost = cost.try_into().map_err(Into::into);
        self
    }

    /// How long to wait in total, as [`Acquire::up_to`]. Default: [`Acquire::DEFAULT_UP_TO`].
    pub fn up_to(self, up_to: Duration) -> Self {
        Self { up_to, ..self }
    }
}

impl<'a> IntoFuture for NamedAcquire<'a> {
    type Output = Result<Allowed, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.question.resolve(Mode::Charge)? {
                Resolved::Policy(policy) => {
                    let check = self.question.check(&policy, Mode::Charge);
                    Acquire::new(check).up_to(self.up_to).await
                }
                Resolved::Allowed(decision) => decision.require(),
            }
        })
    }
}

/// Permits to be given back by the name of their policy: await it. Made by [`Named::refund`].
#[derive(Clone, Debug)]
#[must_use = "nothing is given back until this is awaited"]
pub struct NamedRefund<'a>(pub(super) Question<'a>);

impl<'a> NamedRefund<'a> {
    /// How much is given back, as [`Refund::cost`](crate::Refund::cost). Default: 1.
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        self.0.cost = cost.try_into().map_err(Into::into);
        self
    }
}

impl<'a> IntoFuture for NamedRefund<'a> {
    type Output = Result<(), Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Question { named, key, cost } = self.0;
            match named.limiter.resolve(named.name, &key)? {
                Resolved::Policy(policy) => named.limiter.refund(&policy, key).cost(cost?).await,
                Resolved::Allowed(_) => Ok(()),
            }
        })
    }
}
