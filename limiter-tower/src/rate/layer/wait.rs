//! Setters for requests that wait for permits.

use std::time::Duration;

use super::RateLimitLayer;

impl<K, P> RateLimitLayer<K, P> {
    /// Lets a request that would be denied wait for its permits for at most this time: first come,
    /// first served, as [`Limiter::acquire`](limiter_core::Limiter::acquire). A request that states
    /// its client's timeout (gRPC's `grpc-timeout`) waits no longer than that, except for an answer
    /// of Redis, which always has the policy's deadline. Default: no wait.
    ///
    /// A request is denied at once if its permit is known to be due after its time, after the
    /// requests before it; to estimate that, a request that joins a queue peeks once. In a layer
    /// that refunds permits ([`count_if`](Self::count_if), [`settle`](Self::settle) and the
    /// like) it waits nevertheless, since its permit may come back earlier. A request that a
    /// penalty blocks is always denied at once.
    ///
    /// A denial after a wait says when there will be a permit after the requests before it. Under a
    /// [paced](limiter_core::PolicyBuilder::paced) policy requests wait for their turn as well,
    /// with or without this setting, and at most for their client's timeout; a request whose turn
    /// comes later is denied at once and gives its permit back.
    ///
    /// A request whose client disconnects leaves the queue and is not charged. With HTTP/1, hyper
    /// does not notice the disconnect while a part of the request body is unread, so the request
    /// stays for its time. A policy with its own
    /// [`on_denial`](limiter_core::PolicyBuilder::on_denial) takes precedence; if it waits, the
    /// shorter of both times counts.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use std::time::Duration;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::token_bucket("api").capacity(1).rate("100/s").build()?;
    /// let service = RateLimitLayer::new(&limits, policy)
    ///     .key(key::global())
    ///     .max_wait(Duration::from_secs(1))
    ///     .layer(service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()))));
    /// for _ in 0..3 {
    ///     let response = service.clone().oneshot(Request::new(String::new())).await.unwrap();
    ///     assert_eq!(response.status(), 200);
    /// }
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// Waiting needs a Tokio runtime with time enabled.
    pub fn max_wait(mut self, timeout: Duration) -> Self {
        self.limits_mut().wait_mut().set_up_to(timeout);
        self
    }

    /// Bounds how many requests wait at once, in all clones of the layer and all services that it
    /// wraps. Default: 1,000. A layer without a setting for waits has no bound: as many requests
    /// wait for their turn as their [paced](limiter_core::PolicyBuilder::paced) policies allow. A
    /// request that waits for its turn counts as well.
    ///
    /// The slots are shared fairly among keys. When none is free, a request whose key holds fewer
    /// slots than another key takes over the slot of that key's last waiter. A request without a
    /// slot is denied at once with a `Retry-After` that includes the requests before it.
    ///
    /// A request that waits keeps its connection and the part of its body that was read, so the
    /// bound limits memory.
    pub fn max_waiting(mut self, requests: usize) -> Self {
        self.limits_mut().wait_mut().set_max_waiting(requests);
        self
    }
}
