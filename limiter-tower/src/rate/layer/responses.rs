//! The setter of the layer's responses.

use std::sync::Arc;

use super::RateLimitLayer;
use crate::responses::ResponseConfig;

impl<K, P> RateLimitLayer<K, P> {
    /// Configures the layer's responses and rate limit headers. Default: [`ResponseConfig::new`].
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{RateLimitHeaders, RateLimitLayer, ResponseConfig, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let responses = ResponseConfig::new().headers(RateLimitHeaders::Legacy).plain_text();
    /// let layer = RateLimitLayer::new(&limits, policy).key(key::global()).responses(&responses);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn responses(mut self, config: &ResponseConfig) -> Self {
        *Arc::make_mut(&mut self.limits).responder_mut() = config.responder();
        self
    }
}
