//! The setter of the requests that are not limited.

use super::RateLimitLayer;
use crate::rate::typestate::Skipping;

impl<K, P> RateLimitLayer<K, P> {
    /// Lets the selected requests pass: they are not counted, and need no key. The selector is one
    /// of the functions in [`skip`](crate::skip), or a closure over the request that names its
    /// type: `|request: &Request| …`. With several selectors, a request passes if one of them
    /// selects it. Default: none.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # use std::convert::Infallible;
    /// # use http::{Method, Request, Response};
    /// # use limiter_core::{Limiter, ManualClock, Policy};
    /// # use limiter_tower::{RateLimitLayer, key, skip};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let policy = Policy::sliding_window("api").limit(1).window("1m").build()?;
    /// let layer = RateLimitLayer::new(&limits, policy)
    ///     .key(key::header("x-api-key"))
    ///     .skip(skip::probes())
    ///     .skip(|request: &Request<()>| request.method() == Method::OPTIONS);
    ///
    /// let service = layer.layer(service_fn(
    ///     async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())),
    /// ));
    /// let ask = async |method: Method, path: &str| {
    ///     let request = Request::builder().method(method).uri(path).body(()).unwrap();
    ///     service.clone().oneshot(request).await.unwrap().status()
    /// };
    /// assert_eq!(ask(Method::GET, "/healthz").await, 200);
    /// assert_eq!(ask(Method::OPTIONS, "/search").await, 200);
    /// assert_eq!(ask(Method::GET, "/search").await, 400, "it has no key");
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn skip<S>(self, skip: S) -> RateLimitLayer<K, Skipping<S, P>> {
        RateLimitLayer {
            limits: self.limits,
            key: self.key,
            options: Skipping::new(skip, self.options),
        }
    }
}
