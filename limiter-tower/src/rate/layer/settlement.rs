//! Setters of costs that are known only after the response.
//!
//! Some costs and outcomes are unknown when a request is admitted. Both setters store their
//! argument in the layer's configuration; [`settlement`](crate::settlement) applies it to the
//! estimate.
//!
//! Invariant: the estimate is charged first, so concurrent requests cannot exceed the limit. Tests:
//! `tests/decisions/settlement.rs`, `tests/decisions/headers.rs`.

use std::sync::Arc;

use http::Response;

use super::RateLimitLayer;
use crate::settlement::ActualCost;

/// # Settlement
///
/// The estimate ([`cost`](RateLimitLayer::cost), [`cost_by`](RateLimitLayer::cost_by),
/// [`RequestLimits::cost`](crate::RequestLimits::cost)) is charged before the inner service is
/// called. After the response, the charge is settled as by
/// [`Reservation::settle`](limiter_core::Reservation::settle): the difference is refunded, or
/// charged even if no permits remain.
///
/// A request keeps its estimate if its future is dropped before the response is available, or if
/// the inner service returns an error. In process, the charge is settled before the response is
/// returned. With Redis, a separate task settles it; neither the response nor the client waits for
/// this task, so other requests may see the settlement a moment after the response.
///
/// [Headers](crate::ResponseConfig::headers) show the remaining permits only if the number is
/// final: in process after a settlement by the response's head, and, also with Redis, for a charge
/// that keeps its estimate. For a limit that is settled later (in Redis, or by a body) the headers
/// show the policy without the remaining permits.
impl<K, P> RateLimitLayer<K, P> {
    /// Counts only requests whose response satisfies the predicate. Other requests get their
    /// permits back. Default: all requests count.
    ///
    /// The permits are charged before the call, so that concurrent attempts cannot exceed the
    /// limit:
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response, StatusCode};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let login = service_fn(async |request: Request<String>| {
    ///     let mut response = Response::new(String::new());
    ///     if request.body() != "the password" {
    ///         *response.status_mut() = StatusCode::UNAUTHORIZED;
    ///     }
    ///     Ok::<_, Infallible>(response)
    /// });
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let failures = Policy::sliding_window("failed-logins").limit(2).window("15m").build()?;
    /// let service = RateLimitLayer::new(&limits, failures)
    ///     .key(key::header("x-user"))
    ///     .count_if(|response| response.status() == StatusCode::UNAUTHORIZED)
    ///     .layer(login);
    ///
    /// let log_in = async |password: &str| {
    ///     let request = Request::post("/login").header("x-user", "ann").body(password.to_owned());
    ///     service.clone().oneshot(request.unwrap()).await.unwrap().status()
    /// };
    /// for _ in 0..5 {
    ///     assert_eq!(log_in("the password").await, 200);
    /// }
    /// assert_eq!(log_in("guess").await, 401);
    /// assert_eq!(log_in("another guess").await, 401);
    /// assert_eq!(log_in("the password").await, 429);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// Concurrent requests of a key therefore compete for permits even if none of them will count:
    /// if a key sends more requests at once than the limit admits, the rest is denied, although the
    /// permits are refunded a moment later. `Retry-After` then assumes that all of them count, and
    /// can be as long as a whole window. Choose a limit above the concurrency of a client, or let
    /// the requests [wait](Self::max_wait) for refunds.
    ///
    /// A gRPC status is in the response's headers if nothing was sent before it, as with a tonic
    /// handler that returns `Err`: `response.headers().get("grpc-status")`.
    ///
    /// The predicate and [`settle`](Self::settle) can be combined: the actual cost is read only
    /// from responses that count.
    pub fn count_if(mut self, counts: impl Fn(&Response<()>) -> bool + Send + Sync + 'static) -> Self {
        self.limits_mut().settle_mut().count_if(Arc::new(counts));
        self
    }

    /// Settles the request's actual cost after the response: the difference to the estimate is
    /// refunded, or charged without a limit. Default: the estimate is the actual cost. A second
    /// call replaces the source of the first.
    ///
    /// A closure over the response's head:
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::settlement::ActualCost;
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let rows = Policy::token_bucket("rows").capacity(100).rate("1/s").build()?;
    /// let service = RateLimitLayer::new(&limits, rows.clone())
    ///     .key(key::header("x-api-key"))
    ///     .cost(50)
    ///     .settle(ActualCost::from_response(|response| {
    ///         response.headers().get("x-rows")?.to_str().ok()?.parse::<u32>().ok()
    ///     }))
    ///     .layer(service_fn(async |_: Request<String>| {
    ///         Ok::<_, Infallible>(Response::builder().header("x-rows", "7").body(String::new()).unwrap())
    ///     }));
    ///
    /// let request = Request::get("/").header("x-api-key", "ann").body(String::new()).unwrap();
    /// service.oneshot(request).await.unwrap();
    /// assert_eq!(limits.peek(&rows, "ann").await.unwrap().remaining(), 93);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// The bytes of the response's body:
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use http_body_util::BodyExt;
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::settlement::ActualCost;
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let bytes = Policy::token_bucket("bytes").capacity(1_000).rate("100/s").build()?;
    /// let service = RateLimitLayer::new(&limits, bytes.clone())
    ///     .key(key::header("x-api-key"))
    ///     .settle(ActualCost::body_bytes())
    ///     .layer(service_fn(async |_: Request<String>| {
    ///         Ok::<_, Infallible>(Response::new("0123456789".to_owned()))
    ///     }));
    ///
    /// let request = Request::get("/").header("x-api-key", "ann").body(String::new()).unwrap();
    /// let response = service.oneshot(request).await.unwrap();
    /// response.into_body().collect().await.unwrap();
    /// assert_eq!(limits.peek(&bytes, "ann").await.unwrap().remaining(), 990);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// The cost that the handler reports while it sends the response:
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::settlement::{ActualCost, ReportedCost};
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let tokens = Policy::token_bucket("tokens").capacity(1_000).rate("100/s").build()?;
    /// let service = RateLimitLayer::new(&limits, tokens.clone())
    ///     .key(key::header("x-api-key"))
    ///     .cost(500)
    ///     .settle(ActualCost::reported())
    ///     .layer(service_fn(async |_: Request<String>| {
    ///         let mut response = Response::new(String::new());
    ///         response.extensions_mut().insert(ReportedCost::new(120));
    ///         Ok::<_, Infallible>(response)
    ///     }));
    ///
    /// let request = Request::get("/").header("x-api-key", "ann").body(String::new()).unwrap();
    /// drop(service.oneshot(request).await.unwrap());
    /// assert_eq!(limits.peek(&tokens, "ann").await.unwrap().remaining(), 880);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn settle(mut self, cost: ActualCost) -> Self {
        self.limits_mut().settle_mut().set_actual_cost(cost);
        self
    }
}
