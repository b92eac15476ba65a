//! Policies, keys and costs for each request.
//!
//! Limits can depend on the request: tiers, costs by size, one limit for each user beside one for
//! all. `limits_for` takes all of them from one closure; `cost_by` adds a closure for the cost to a
//! layer with a key. Both wrap the extractor, so the service has one path for all layers.
//!
//! Invariant: all limits of a request are one decision. Tests: `tests/decisions/request_limits.rs`,
//! and `tests/decisions/pending_keys.rs` for costs with pending keys.

use std::sync::Arc;

use http::Request;
use limiter_core::Limiter;

use super::RateLimitLayer;
use crate::rate::config::{LayerConfig, PolicyKind};
use crate::rate::extractors::{IntoCost, IntoRequestLimits, LimitsFor};
use crate::rate::typestate::{Costing, FixedPolicies, WithKey};
use crate::request_limits::PolicySet;

impl RateLimitLayer {
    /// Limits each request by the result of a closure: policies, keys and costs, which are one
    /// decision. The closure returns [`RequestLimits`](crate::RequestLimits) (see the example
    /// there), or an [`Option`] or [`Result`] of them. `None` rejects the request with 400,
    /// [`RequestLimits::unlimited`](crate::RequestLimits::unlimited) lets it pass. Limits with
    /// different keys, such as one for each user and one for all, need
    /// [`standalone_only`](crate::RequestLimits#a-limit-for-each-user-beside-one-for-all).
    ///
    /// If only the policy depends on the request, pass a closure to [`new`](Self::new); if only the
    /// cost does, see [`cost_by`](RateLimitLayer::cost_by).
    pub fn limits_for<F, B, T>(limiter: &Limiter, hook: F) -> RateLimitLayer<WithKey<LimitsFor<F>>>
    where
        F: Fn(&Request<B>) -> T,
        T: IntoRequestLimits,
    {
        RateLimitLayer {
            limits: Arc::new(LayerConfig::new(
                PolicyKind::Rate,
                limiter.clone(),
                PolicySet::unlimited(),
            )),
            key: WithKey::new(LimitsFor(hook)),
            options: FixedPolicies::new(),
        }
    }
}

impl<K, P> RateLimitLayer<K, P> {
    /// Sets the cost of each limit without a cost of its own by a closure, which is called after
    /// the key is extracted. Default: the value of [`cost`](Self::cost).
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
    /// let rows = Policy::token_bucket("rows").capacity(100).rate("10/s").build()?;
    /// let layer = RateLimitLayer::new(&limits, rows)
    ///     .key(key::header("x-api-key"))
    ///     .cost_by(|request: &Request<String>| if request.uri().path() == "/export" { 80 } else { 1 });
    ///
    /// let service = layer.layer(service_fn(async |_: Request<String>| {
    ///     Ok::<_, Infallible>(Response::new(String::new()))
    /// }));
    /// let ask = async |path: &str| {
    ///     let request = Request::get(path).header("x-api-key", "ann").body(String::new()).unwrap();
    ///     service.clone().oneshot(request).await.unwrap().status()
    /// };
    /// assert_eq!(ask("/export").await, 200);
    /// assert_eq!(ask("/export").await, 429);
    /// assert_eq!(ask("/row").await, 200);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn cost_by<F, B, C>(self, cost: F) -> RateLimitLayer<K, Costing<F, P>>
    where
        F: Fn(&Request<B>) -> C,
        C: IntoCost,
    {
        RateLimitLayer {
            limits: self.limits,
            key: self.key,
            options: Costing::new(cost, self.options),
        }
    }
}
