//! Costs that are known from the response, and outcomes that do not count.

use std::sync::Arc;

use http::Response;
use limiter_core::{Amount, ConfigError};

use super::RateLimitLayer;

/// What is charged is the estimate ([`cost`](RateLimitLayer::cost),
/// [`cost_by`](RateLimitLayer::cost_by), [`RequestLimits::cost`](crate::RequestLimits::cost)),
/// before the inner service is called. What the response comes to is settled afterwards, as
/// [`Reservation::settle`](limiter_core::Reservation::settle) does: the difference is given back,
/// or charged whatever is left.
///
/// A request whose future is dropped before its response is there, or whose inner service fails
/// with an error of its own, stays charged at its estimate. In process a settlement is made before
/// the response goes on; with Redis in a task of its own, which neither the response nor its client
/// waits for, so that it may be seen a moment after the response.
///
/// [Headers](RateLimitLayer::headers) tell what remains when that is known: in process what is left
/// after a settlement by the response's head; and with Redis, too, of what stays at its estimate.
/// Of a limit that is settled later (in Redis, or by a body) they name the policy, and not what
/// remains: a client would wait for what is given back, or rely on what is not there.
impl<K, P> RateLimitLayer<K, P> {
    /// Counts only requests whose response satisfies the predicate; what others took is given back.
    /// Default: all count.
    ///
    /// It is charged first, so that concurrent guesses cannot slip through:
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
    /// So requests that are on their way at the same time stand in each other's way, also where
    /// none of them will count: of a key that sends more at once than the limit admits the rest is
    /// denied, though their permits come back a moment later. `Retry-After` then says when permits
    /// come back if all of these count, up to a whole window: what they come to is not known yet.
    /// Admit as many as a client may well send at once, or have them [wait](Self::max_wait) for
    /// what is given back.
    ///
    /// A gRPC status stands in the response's headers where nothing was sent before it, as tonic
    /// does for a handler that returns `Err`: `response.headers().get("grpc-status")`.
    pub fn count_if(mut self, counts: impl Fn(&Response<()>) -> bool + Send + Sync + 'static) -> Self {
        self.limits_mut().settle().count_if(Arc::new(counts));
        self
    }

    /// Settles the cost when the response's head is there, by what the closure finds in it; `None`
    /// leaves it at the estimate. Of the three ways to settle the one that is said last holds.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let rows = Policy::token_bucket("rows").capacity(100).rate("1/s").build()?;
    /// let service = RateLimitLayer::new(&limits, rows.clone())
    ///     .key(key::header("x-api-key"))
    ///     .cost(50)
    ///     .settle_by(|response| response.headers().get("x-rows")?.to_str().ok()?.parse::<u32>().ok())
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
    pub fn settle_by<F, C>(mut self, cost: F) -> Self
    where
        F: Fn(&Response<()>) -> Option<C> + Send + Sync + 'static,
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let cost = move |head: &Response<()>| Some(cost(head)?.try_into().map_err(Into::into));
        self.limits_mut().settle().by_head(Arc::new(cost));
        self
    }

    /// Settles the cost as the number of bytes that the response's body has sent when it has ended
    /// or is dropped: a client that goes away pays for what it got. Trailers and heads are not
    /// counted.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use http_body_util::BodyExt;
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let bytes = Policy::token_bucket("bytes").capacity(1_000).rate("100/s").build()?;
    /// let service = RateLimitLayer::new(&limits, bytes.clone())
    ///     .key(key::header("x-api-key"))
    ///     .settle_bytes()
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
    pub fn settle_bytes(mut self) -> Self {
        self.limits_mut().settle().by_bytes();
        self
    }

    /// Settles the cost as what the handler says that it has spent, when the response's body has
    /// ended or is dropped: it puts a [`ReportedCost`](crate::ReportedCost) into the response's
    /// extensions. A response without one stays at the estimate.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::{RateLimitLayer, ReportedCost, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let tokens = Policy::token_bucket("tokens").capacity(1_000).rate("100/s").build()?;
    /// let service = RateLimitLayer::new(&limits, tokens.clone())
    ///     .key(key::header("x-api-key"))
    ///     .cost(500)
    ///     .settle_by_reported_cost()
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
    pub fn settle_by_reported_cost(mut self) -> Self {
        self.limits_mut().settle().by_spent();
        self
    }
}
