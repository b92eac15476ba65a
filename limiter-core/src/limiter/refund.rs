//! A refund, from its words to its end.

use std::pin::Pin;

use super::{Backend, Limiter};
use crate::algorithm::Mode;
use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::request::{Ask, Request};
use crate::store::Store;
use crate::units::Amount;

/// Permits to be given back: await it. Made by [`Limiter::refund`].
#[derive(Clone, Debug)]
#[must_use = "nothing is given back until this is awaited"]
pub struct Refund<'a> {
    limiter: &'a Limiter,
    ask: Ask<'a>,
}

impl<'a> Refund<'a> {
    pub(super) fn new(limiter: &'a Limiter, ask: Ask<'a>) -> Self {
        Self { limiter, ask }
    }

    /// How much is given back: what the call cost. Default: 1. Nothing for 0, and what was used for more than that.
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
            let request = Request::new([self.ask.bounded()], Mode::Peek, inner.any_groups)?;
            if request.is_free() {
                return Ok(());
            }
            match &inner.backend {
                Backend::Memory(store) => {
                    for limit in &request.limits {
                        store.refund(limit).await?;
                    }
                }
                #[cfg(feature = "redis")]
                Backend::Redis(guard) => guard.refund(&request).await?,
            }
            Ok(())
        })
    }
}
