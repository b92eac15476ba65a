//! Waiting instead of refusing.

use std::time::Duration;

use super::RateLimitLayer;

impl<K> RateLimitLayer<K> {
    /// Has a request that would be denied wait for its permits, at most for so long: first come, first served, as
    /// [`Limiter::acquire`](limiter_core::Limiter::acquire). One that says in gRPC's way for how long its client waits (`grpc-timeout`)
    /// waits no longer than that, for an answer of Redis always as long as the policy says. Only one that a penalty blocks is denied at
    /// once. Default: no wait.
    ///
    /// Who waits in vain is told when there will be a permit for it after those for all before it. Under a
    /// [paced](limiter_core::PolicyBuilder::paced) policy requests wait for their turn as well, with or without this, and at most for
    /// as long as their clients; one whose turn comes later than that is denied at once and gives its permit back.
    ///
    /// A request whose client goes away leaves the line, and is not charged; over HTTP/1 hyper does not see that it has gone as long as
    /// a part of its body is unread, and then it stays for its time. A policy that says itself what becomes of a denial
    /// ([`on_denial`](limiter_core::PolicyBuilder::on_denial)) is obeyed; one that waits does so for the shorter of both times.
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
    ///     .key(key::shared())
    ///     .wait_up_to(Duration::from_secs(1))
    ///     .layer(service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()))));
    /// for _ in 0..3 {
    ///     let response = service.clone().oneshot(Request::new(String::new())).await.unwrap();
    ///     assert_eq!(response.status(), 200);
    /// }
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// It needs a Tokio runtime with time.
    pub fn wait_up_to(mut self, up_to: Duration) -> Self {
        self.limits_mut().waits().set_up_to(up_to);
        self
    }

    /// How many requests may wait at once, those of all clones of the layer and of the services that it wraps together. One more
    /// is denied at once, and told when there will be a permit for it after those for all before it. Who waits for its turn under a
    /// [paced](limiter_core::PolicyBuilder::paced) policy is one of them. Default: 1,000, and in a layer that says nothing of waiting
    /// as many as the policies let wait for their turn.
    ///
    /// A request that waits keeps its connection and what it has read of its body, so the bound is one of memory.
    pub fn at_most_waiting(mut self, requests: usize) -> Self {
        self.limits_mut().waits().set_room(requests);
        self
    }
}
