//! Refunds and charges, from their words to their end.

use std::pin::Pin;

use crate::algorithm::{Change, Mode};
use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::limiter::Limiter;
use crate::request::{DecisionRequest, LimitRequest, used_units};
use crate::units::Amount;

/// Permits to be given back: await it. Made by [`Limiter::refund`].
#[derive(Clone, Debug)]
#[must_use = "nothing is given back until this is awaited"]
pub struct Refund<'a> {
    limiter: &'a Limiter,
    ask: LimitRequest<'a>,
}

impl<'a> Refund<'a> {
    pub(crate) fn new(limiter: &'a Limiter, ask: LimitRequest<'a>) -> Self {
        Self { limiter, ask }
    }

    /// How much is given back: what the call cost. Default: 1. Nothing for 0, and what was used for
    /// more than that.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.ask.set_cost(cost.try_into().map_err(Into::into));
        self
    }
}

impl<'a> IntoFuture for Refund<'a> {
    type Output = Result<(), Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.limiter.open()?;
            // Else what others have used would be given back.
            if !self.limiter.charges(&self.ask) {
                return Ok(());
            }
            let inner = &self.limiter.inner;
            let request = DecisionRequest::new([self.ask.bounded()], Mode::Peek, inner.any_groups)?;
            if request.is_free() {
                return Ok(());
            }
            let refund = Change::Refund { whole_at: 0 };
            let name = request.queue();
            let _coming_back = inner.queues.coming_back(&name);
            self.limiter.apply_change(&request, refund).await
        })
    }
}

/// Permits to be charged whatever is left: await it. Made by [`Limiter::charge`].
#[derive(Clone, Debug)]
#[must_use = "nothing is charged until this is awaited"]
pub struct Charge<'a> {
    limiter: &'a Limiter,
    ask: LimitRequest<'a>,
    used: Result<Amount, ConfigError>,
}

impl<'a> Charge<'a> {
    pub(crate) fn new(limiter: &'a Limiter, ask: LimitRequest<'a>) -> Self {
        let used = Ok(Amount::ONE);
        Self { limiter, ask, used }
    }

    /// How much is charged. Default: 1. Nothing for 0.
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
            if !self.limiter.charges(&self.ask) {
                return Ok(());
            }
            let ask = self.ask.cost(Amount::ZERO);
            let mut request = DecisionRequest::new([ask], Mode::Peek, self.limiter.inner.any_groups)?;
            if let Some(limit) = request.limits.first_mut() {
                limit.cost = used_units(limit.policy, self.used?)?;
            }
            if request.is_free() {
                return Ok(());
            }
            self.limiter.apply_change(&request, Change::Owe).await
        })
    }
}
