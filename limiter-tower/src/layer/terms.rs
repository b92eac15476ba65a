//! Policies, keys and costs for each request.

use std::sync::Arc;

use http::Request;
use limiter_core::Limiter;

use super::{By, Chosen, NoKey, RateLimitLayer};
use crate::decide::{Limits, PolicyKind};
use crate::terms::{Costed, Hook, IntoCost, IntoTerms, PerRequest, Tier, Tiered};

impl RateLimitLayer {
    /// Limits each request by what the hook says of it: policies, keys and costs, which are one decision. It returns
    /// [`Terms`](crate::Terms), where there is an example, or an [`Option`] or [`Result`] of them; `None` refuses the request with 400,
    /// [`Terms::unlimited`](crate::Terms::unlimited) lets it pass. Limits of different keys, as one for each user beside one for all, need
    /// [a word more](crate::Terms#a-limit-for-each-user-beside-one-for-all).
    ///
    /// Where only the policy depends on the request, give [`new`](Self::new) a closure instead, and where only the cost does, see
    /// [`cost_by`](RateLimitLayer::cost_by).
    pub fn by<F, B, T>(limiter: &Limiter, hook: F) -> RateLimitLayer<By<Hook<F>>>
    where
        F: Fn(&Request<B>) -> T,
        T: IntoTerms,
    {
        RateLimitLayer {
            limits: Arc::new(Limits::new(PolicyKind::Rate, limiter.clone(), Tier::unlimited())),
            key: By(Arc::new(Hook(hook))),
        }
    }
}

impl<F> RateLimitLayer<NoKey<PerRequest<F>>> {
    /// Whose permits a request takes: one of the extractors in [`key`](crate::key), or a closure over the request, which names its
    /// type: `|request: &Request| …`. Required. The policies of a request are asked for once its key is known.
    pub fn key<E>(self, extractor: E) -> RateLimitLayer<By<Tiered<E, F>>> {
        let NoKey(PerRequest(tiers)) = self.key;
        RateLimitLayer {
            limits: self.limits,
            key: By(Arc::new(Tiered {
                key: extractor,
                tiers,
            })),
        }
    }
}

impl<K> RateLimitLayer<K> {
    /// How many permits a request takes, of each limit whose terms say nothing of it: what the closure says for it, once its key is
    /// known. To be said after [`key`](Self::key). Default: what [`cost`](Self::cost) says.
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
    pub fn cost_by<E, F, B, C>(self, cost: F) -> RateLimitLayer<By<Costed<E, F>>>
    where
        K: Chosen<Extractor = E>,
        F: Fn(&Request<B>) -> C,
        C: IntoCost,
    {
        let key = self.key.extractor();
        RateLimitLayer {
            limits: self.limits,
            key: By(Arc::new(Costed { key, cost })),
        }
    }
}
