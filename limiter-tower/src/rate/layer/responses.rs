//! What clients are told, and how.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Response};
use limiter_core::Rejection;

use super::RateLimitLayer;
use crate::headers::RateLimitHeaders;
use crate::responses::{IntoResponseBytes, ResponseConfig};

/// What clients are told.
impl<K, P> RateLimitLayer<K, P> {
    /// In which headers HTTP clients are told of their limits, on responses to allowed and to
    /// denied requests. Default: [`RateLimitHeaders::Draft11`].
    ///
    /// Where layers are nested, each adds its limits to the lists of drafts 10 and 11, the
    /// innermost's first. Of two that tell of one limit alone, the one of which less remains is
    /// told. A header of the same name in another form, which the inner service has set itself,
    /// stays as it is.
    ///
    /// A browser shows them to scripts of other origins only where `Access-Control-Expose-Headers`
    /// names them (`RateLimit`, `RateLimit-Policy`, `Retry-After`).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::{RateLimitHeaders, RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let layer = RateLimitLayer::new(&limits, policy).key(key::global());
    /// let answer = async |layer: RateLimitLayer<_>| {
    ///     let inner = tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    ///     layer.layer(inner).oneshot(Request::new(())).await.unwrap()
    /// };
    /// let response = answer(layer.clone()).await;
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""api";q=20;w=2"#);
    /// assert_eq!(response.headers()["ratelimit"], r#""api";r=19;t=2"#);
    ///
    /// let response = answer(layer.headers(RateLimitHeaders::Legacy)).await;
    /// assert_eq!(response.headers()["x-ratelimit-remaining"], "18");
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn headers(self, dialect: RateLimitHeaders) -> Self {
        self.answering(|answers| answers.headers(dialect))
    }

    /// ResponseConfig HTTP clients with a sentence of plain text. Default: a problem in JSON
    /// (`application/problem+json`, RFC 9457), as [`Rejection::problem_json`] has it.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let layer = RateLimitLayer::new(&limits, policy).key(key::global()).plain_text();
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn plain_text(self) -> Self {
        self.answering(ResponseConfig::plain_text)
    }

    /// Forms the answer to a request that the limiter rejects of the one that it would be given:
    /// with its status, its headers (`Retry-After` and those of the [dialect](Self::headers)) and
    /// its body. What is returned may have a body of any type that is
    /// [`Into<Bytes>`]: a `String`, a `Vec<u8>`; so no axum `Response`, whose body may be one that is still to come. Default: the answer
    /// stays as it is.
    ///
    /// The content type stays too, `application/problem+json`, unless the closure sets its own: a
    /// body that is no problem of RFC 9457 needs one.
    ///
    /// A gRPC client is answered by headers alone. Those that are added reach it, as metadata; the
    /// body and the status that are returned do not, and `grpc-status` stays what it was.
    ///
    /// Requests without a key are no rejections: their answer is the extractor's
    /// ([`key::KeyRejection`](crate::key::KeyRejection)).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, Policy, Rejection};
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt};
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::sliding_window("send").limit(1).window("1m").build()?;
    /// let layer = RateLimitLayer::new(&limits, policy)
    ///     .key(key::global())
    ///     .respond_with(|rejection: &Rejection, response| {
    ///         let (mut parts, _problem) = response.into_parts();
    ///         parts.headers.insert("content-type", "text/html".parse().unwrap());
    ///         let seconds = rejection.retry_after_seconds().unwrap_or_default();
    ///         Response::from_parts(parts, format!("<p>Come back in {seconds} s.</p>"))
    ///     });
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
    pub fn respond_with<F, T>(self, form: F) -> Self
    where
        F: Fn(&Rejection, Response<Bytes>) -> Response<T> + Send + Sync + 'static,
        T: IntoResponseBytes,
    {
        self.answering(|answers| answers.respond_with(form))
    }

    /// The domain of the reasons that gRPC clients are told in `ErrorInfo`: the service's name by
    /// which people know it, `"shop.example.com"`. Default: `"limiter"`.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let layer = RateLimitLayer::new(&limits, policy).key(key::global()).grpc_domain("shop.example.com");
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn grpc_domain(self, domain: impl Into<Cow<'static, str>>) -> Self {
        self.answering(|answers| answers.grpc_domain(domain))
    }

    /// Tells who decided in a header of this name, on responses to allowed requests and to those
    /// that a decision denies: `redis`, `memory`, `deny-cache`, `lease`, `local-fallback`,
    /// `failed-open`, …, with `;would-deny` (shadow), `;degraded`, `;blocked` and `;store-out`
    /// where that is so. For operators: it tells clients how the service is doing. Default: no such
    /// header.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{HeaderName, Request, Response};
    /// use limiter_core::{Enforcement, Limiter, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt};
    ///
    /// let limits = Limiter::in_process().build();
    /// limits.set_enforcement(Enforcement::Shadow);
    /// let policy = Policy::sliding_window("send").limit(1).window("1m").build()?;
    /// let layer = RateLimitLayer::new(&limits, policy)
    ///     .key(key::global())
    ///     .with_origin_header(HeaderName::from_static("x-limiter"));
    ///
    /// let inner = tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    /// let service = layer.layer(inner);
    /// assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().headers()["x-limiter"], "memory");
    /// let second = service.oneshot(Request::new(())).await.unwrap();
    /// assert_eq!(second.headers()["x-limiter"], "memory;would-deny");
    /// assert!(!second.headers().contains_key("ratelimit"), "it denies nobody");
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn with_origin_header(self, name: HeaderName) -> Self {
        self.answering(|answers| answers.with_origin_header(name))
    }

    /// ResponseConfig so, which takes the place of what the setters above have said: for several
    /// layers that are to answer alike.
    pub fn responses(self, answers: &ResponseConfig) -> Self {
        self.answering(|_| answers.clone())
    }

    fn answering(mut self, change: impl FnOnce(ResponseConfig) -> ResponseConfig) -> Self {
        Arc::make_mut(&mut self.limits).responder_mut().change(change);
        self
    }
}
