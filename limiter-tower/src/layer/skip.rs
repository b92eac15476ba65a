//! Which requests are not limited.

use std::sync::Arc;

use super::{By, Chosen, RateLimitLayer};
use crate::skip::Unless;

impl<K> RateLimitLayer<K> {
    /// Lets requests pass that are not to be limited: they are not counted, and need no key. One of the functions in
    /// [`skip`](crate::skip), or a closure over the request, which names its type: `|request: &Request| …`. Given more than once, one that says so suffices.
    /// To be said after [`key`](Self::key). Default: none.
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
    pub fn skip<S, E>(self, skip: S) -> RateLimitLayer<By<Unless<S, E>>>
    where
        K: Chosen<Extractor = E>,
    {
        RateLimitLayer {
            limits: self.limits,
            key: By(Arc::new(Unless::new(skip, self.key.extractor()))),
        }
    }
}
