//! The response configuration, shared by all layers.
//!
//! Problem: several layers of one service answer clients, and their answers must look alike.
//! Each layer takes a reference to one [`ResponseConfig`] and copies its [`Responder`]. A layer has
//! no response setters of its own, so there is one place to change an answer.
//! Tests: `tests/http/answers.rs`, `tests/grpc/details.rs`, `tests/frozen.rs`.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Response};
use limiter_core::Rejection;

use super::custom_body::IntoResponseBytes;
use super::responder::Responder;
use super::response_fn::ResponseFn;
use crate::headers::RateLimitHeaders;

/// Configures the responses of layers: the rate limit headers, the body of a rejection, and the
/// details of gRPC.
///
/// ```
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::{ResponseConfig, ConcurrencyLimitLayer, RateLimitLayer, key};
///
/// let responses = ResponseConfig::new().plain_text().grpc_domain("shop.example.com");
/// let limits = Limiter::in_process().build();
/// let rate = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
/// let exports = Policy::concurrency("export").max(3).build()?;
/// let app: axum::Router = axum::Router::new()
///     .layer(ConcurrencyLimitLayer::new(&limits, exports).key(key::header("x-api-key")).responses(&responses))
///     .layer(RateLimitLayer::new(&limits, rate).key(key::header("x-api-key")).responses(&responses));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a response configuration has no effect until it is passed to a layer"]
pub struct ResponseConfig(Responder);

impl ResponseConfig {
    /// Creates the default responses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects the rate limit headers of HTTP responses, both of allowed and of denied requests.
    /// Default: [`RateLimitHeaders::Draft11`].
    ///
    /// Each of several nested layers appends its limits to the lists of drafts 10 and 11, the inner
    /// layer's first. Headers with a single value show the limit with fewer remaining permits. A
    /// header of the same name in another form, set by the inner service, is not changed.
    ///
    /// A browser exposes these headers to scripts of other origins only if
    /// `Access-Control-Expose-Headers` lists them (`RateLimit`, `RateLimit-Policy`,
    /// `Retry-After`).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::{RateLimitHeaders, RateLimitLayer, ResponseConfig, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let layer = RateLimitLayer::new(&limits, policy).key(key::global());
    /// let send = async |layer: RateLimitLayer<_>| {
    ///     let inner = tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    ///     layer.layer(inner).oneshot(Request::new(())).await.unwrap()
    /// };
    /// let response = send(layer.clone()).await;
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""api";q=20;w=2"#);
    /// assert_eq!(response.headers()["ratelimit"], r#""api";r=19;t=2"#);
    ///
    /// let legacy = ResponseConfig::new().headers(RateLimitHeaders::Legacy);
    /// let response = send(layer.responses(&legacy)).await;
    /// assert_eq!(response.headers()["x-ratelimit-remaining"], "18");
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn headers(mut self, headers: RateLimitHeaders) -> Self {
        self.0.dialect = headers;
        self
    }

    /// Sends rejections as one sentence of plain text. Default: a JSON problem
    /// (`application/problem+json`, RFC 9457), built by [`Rejection::problem_json`].
    pub fn plain_text(mut self) -> Self {
        self.0.plain_text = true;
        self
    }

    /// Replaces the response to a rejected request by the closure's result. Default: the response
    /// is not changed.
    ///
    /// The closure receives the default response with its status, its headers (`Retry-After` and
    /// the [rate limit headers](Self::headers)) and its body. Its own response may have a body of
    /// any type that implements [`Into<Bytes>`], such as a `String` or a `Vec<u8>`. An axum
    /// `Response` is not accepted, because its body may be a stream. The content type
    /// stays `application/problem+json` unless the closure replaces it; a body that is not a
    /// problem of RFC 9457 needs another type.
    ///
    /// A gRPC client receives headers only: the closure's headers are sent as metadata, its status
    /// and its body are not sent, and `grpc-status` is not changed.
    ///
    /// The closure is not called for requests without a key. Their response comes from the
    /// extractor ([`key::KeyRejection`](crate::key::KeyRejection)).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, Policy, Rejection};
    /// use limiter_tower::{RateLimitLayer, ResponseConfig, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt};
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::sliding_window("send").limit(1).window("1m").build()?;
    /// let page = ResponseConfig::new().respond_with(|rejection: &Rejection, response| {
    ///     let (mut parts, _problem) = response.into_parts();
    ///     parts.headers.insert("content-type", "text/html".parse().unwrap());
    ///     let seconds = rejection.retry_after_seconds().unwrap_or_default();
    ///     Response::from_parts(parts, format!("<p>Come back in {seconds} s.</p>"))
    /// });
    /// let layer = RateLimitLayer::new(&limits, policy).key(key::global()).responses(&page);
    ///
    /// let inner = tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    /// let service = layer.layer(inner);
    /// assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), 200);
    /// let denied = service.oneshot(Request::new(())).await.unwrap();
    /// assert_eq!(denied.status(), 429);
    /// assert_eq!(denied.headers()["retry-after"], "60");
    /// assert_eq!(denied.headers()["content-type"], "text/html");
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn respond_with<F, T>(mut self, respond: F) -> Self
    where
        F: Fn(&Rejection, Response<Bytes>) -> Response<T> + Send + Sync + 'static,
        T: IntoResponseBytes,
    {
        self.0.hook = Some(Arc::new(ResponseFn::new(respond)));
        self
    }

    /// Sets the domain of `ErrorInfo` in gRPC responses, usually the public name of the service
    /// such as `"shop.example.com"`. Default: `"limiter"`.
    pub fn grpc_domain(mut self, domain: impl Into<Cow<'static, str>>) -> Self {
        self.0.domain = domain.into();
        self
    }

    /// Adds a header of this name that shows the source of the decision, on responses to allowed
    /// and to denied requests. Default: no such header.
    ///
    /// The value is `redis`, `memory`, `deny-cache`, `lease`, `local-fallback`, `failed-open` or
    /// another source, followed by `;would-deny` (shadow mode), `;degraded`, `;blocked` and
    /// `;store-out` if they apply. The header is meant for operators, because it reveals the state
    /// of the service.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{HeaderName, Request, Response};
    /// use limiter_core::{Enforcement, Limiter, Policy};
    /// use limiter_tower::{RateLimitLayer, ResponseConfig, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt};
    ///
    /// let limits = Limiter::in_process().build();
    /// limits.set_enforcement(Enforcement::Shadow);
    /// let policy = Policy::sliding_window("send").limit(1).window("1m").build()?;
    /// let responses = ResponseConfig::new().with_origin_header(HeaderName::from_static("x-limiter"));
    /// let layer = RateLimitLayer::new(&limits, policy).key(key::global()).responses(&responses);
    ///
    /// let inner = tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    /// let service = layer.layer(inner);
    /// assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().headers()["x-limiter"], "memory");
    /// let second = service.oneshot(Request::new(())).await.unwrap();
    /// assert_eq!(second.headers()["x-limiter"], "memory;would-deny");
    /// assert!(!second.headers().contains_key("ratelimit"), "shadow mode sends no limits");
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn with_origin_header(mut self, name: HeaderName) -> Self {
        self.0.origin = Some(name);
        self
    }

    pub(crate) fn responder(&self) -> Responder {
        self.0.clone()
    }
}
