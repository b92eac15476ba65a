//! Builders and futures of refunds and charges.

use std::pin::Pin;

use crate::algorithm::{Change, Mode};
use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::limiter::Limiter;
use crate::request::{DecisionRequest, LimitRequest, used_units};
use crate::units::Amount;

/// A refund that has not started: await it. Created by [`Limiter::refund`].
#[derive(Clone, Debug)]
#[must_use = "nothing is refunded until this is awaited"]
pub struct Refund<'a> {
    limiter: &'a Limiter,
    request: LimitRequest<'a>,
}

impl<'a> Refund<'a> {
    pub(crate) fn new(limiter: &'a Limiter, request: LimitRequest<'a>) -> Self {
        Self { limiter, request }
    }

    /// Sets the amount to refund: the cost of the call. Default: 1. A cost of 0 refunds nothing; a
    /// cost above the usage refunds the usage.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.request.set_cost(cost.try_into().map_err(Into::into));
        self
    }
}

impl<'a> IntoFuture for Refund<'a> {
    type Output = Result<(), Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.limiter.open()?;
            // Otherwise the refund would reduce the usage of other calls.
            if !self.limiter.charges(&self.request) {
                return Ok(());
            }
            let inner = &self.limiter.inner;
            let request = DecisionRequest::new([self.request.bounded()], Mode::Peek, inner.any_groups)?;
            if request.is_free() {
                return Ok(());
            }
            let refund = Change::Refund { whole_at: 0 };
            let name = request.queue();
            let _notifier = inner.queues.refund_notifier(&name);
            self.limiter.apply_change(&request, refund).await
        })
    }
}

/// An unconditional charge that has not started: await it. Created by [`Limiter::charge`].
#[derive(Clone, Debug)]
#[must_use = "nothing is charged until this is awaited"]
pub struct Charge<'a> {
    limiter: &'a Limiter,
    request: LimitRequest<'a>,
    used: Result<Amount, ConfigError>,
}

impl<'a> Charge<'a> {
    pub(crate) fn new(limiter: &'a Limiter, request: LimitRequest<'a>) -> Self {
        let used = Ok(Amount::ONE);
        Self {
            limiter,
            request,
            used,
        }
    }

    /// Sets the amount to charge. Default: 1. A cost of 0 charges nothing.
    pub fn cost(self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        Self {
            used: cost.try_into().map_err(Into::into),
            ..self
        }
    }
}

impl<'a> IntoFuture for Charge<'a> {
    type Output = Result<(), Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.limiter.open()?;
            if !self.limiter.charges(&self.request) {
                return Ok(());
            }
            let limit = self.request.cost(Amount::ZERO);
            let mut request = DecisionRequest::new([limit], Mode::Peek, self.limiter.inner.any_groups)?;
            if let Some(limit) = request.limits.first_mut() {
                limit.cost = used_units(limit.policy, self.used?)?;
            }
            if request.is_free() {
                return Ok(());
            }
            self.limiter.apply_change(&request, Change::ForceCharge).await
        })
    }
}
