//! How layers answer, said once for several of them.

use std::borrow::Cow;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Response};
use limiter_core::Rejection;

use super::answer_body::IntoResponseBytes;
use super::responder::Responder;
use super::response_fn::ResponseFn;
use crate::headers::RateLimitHeaders;

/// How a layer answers: each setter is that of [`RateLimitLayer`](crate::RateLimitLayer), and has
/// its default.
///
/// ```
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::{ResponseConfig, ConcurrencyLimitLayer, RateLimitLayer, key};
///
/// let answers = ResponseConfig::new().plain_text().grpc_domain("shop.example.com");
/// let limits = Limiter::in_process().build();
/// let rate = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
/// let exports = Policy::concurrency("export").max(3).build()?;
/// let app: axum::Router = axum::Router::new()
///     .layer(ConcurrencyLimitLayer::new(&limits, exports).key(key::header("x-api-key")).responses(&answers))
///     .layer(RateLimitLayer::new(&limits, rate).key(key::header("x-api-key")).responses(&answers));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "it says nothing until a layer is given it"]
pub struct ResponseConfig(Responder);

impl ResponseConfig {
    /// As layers answer by default.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`RateLimitLayer::headers`](crate::RateLimitLayer::headers).
    pub fn headers(mut self, dialect: RateLimitHeaders) -> Self {
        self.0.dialect = dialect;
        self
    }

    /// As [`RateLimitLayer::plain_text`](crate::RateLimitLayer::plain_text).
    pub fn plain_text(mut self) -> Self {
        self.0.plain_text = true;
        self
    }

    /// As [`RateLimitLayer::respond_with`](crate::RateLimitLayer::respond_with).
    pub fn respond_with<F, T>(mut self, form: F) -> Self
    where
        F: Fn(&Rejection, Response<Bytes>) -> Response<T> + Send + Sync + 'static,
        T: IntoResponseBytes,
    {
        self.0.hook = Some(Arc::new(ResponseFn::new(form)));
        self
    }

    /// As [`RateLimitLayer::grpc_domain`](crate::RateLimitLayer::grpc_domain).
    pub fn grpc_domain(mut self, domain: impl Into<Cow<'static, str>>) -> Self {
        self.0.domain = domain.into();
        self
    }

    /// As [`RateLimitLayer::with_origin_header`](crate::RateLimitLayer::with_origin_header).
    pub fn with_origin_header(mut self, name: HeaderName) -> Self {
        self.0.origin = Some(name);
        self
    }
}

impl Responder {
    pub(crate) fn change(&mut self, change: impl FnOnce(ResponseConfig) -> ResponseConfig) {
        *self = change(ResponseConfig(mem::take(self))).0;
    }
}
