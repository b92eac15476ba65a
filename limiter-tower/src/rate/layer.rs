//! `RateLimitLayer`: the configuration of a rate limit around a service.
//!
//! Settings are collected in one `LayerConfig`, which is copied on write and shared by the services
//! of the layer. The key is a type parameter, so a layer without a key is not a `Layer` and does
//! not compile. The submodules contain the setters of one topic each.
//!
//! Errors in the configuration are returned by `verify`, or else logged when the layer wraps a
//! service. Tests: `tests/verify.rs`, `tests/layers.rs`, and the doctest of a missing key below.

mod request_limits;
mod responses;
mod settlement;
mod skip;
mod wait;

use std::fmt;
use std::sync::Arc;

use limiter_core::{Amount, ConfigError, Limiter};
use tower_layer::Layer;

use super::policies::Policies;
use super::service::RateLimit;
use super::typestate::{FixedPolicies, HasKey, MissingKey, RequestOptions, WithKey};
use crate::key::{BoxKeyExtractor, KeyExtractor};
use crate::rate::config::{LayerConfig, PolicyKind};
#[cfg(doc)]
use crate::request_limits::PolicySet;

/// Limits the rate of requests to the service that it wraps.
///
/// It becomes a [`Layer`] after [`key`](Self::key) has set the key. There is no default, because an
/// unintended global key would be one budget for all callers.
///
/// ```
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::{RateLimitLayer, key};
///
/// let limits = Limiter::in_process().build();
/// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
/// let app: axum::Router = axum::Router::new().layer(RateLimitLayer::new(&limits, policy).key(key::header("x-api-key")));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
///
/// One layer makes one decision: with several limits, either all are charged or none. Nested layers
/// make separate decisions: the charge of an outer layer remains if an inner layer denies the
/// request.
///
/// With an invalid configuration, for example an invalid cost, the layer answers 500, and logs an
/// error at most once in ten seconds.
///
/// A layer without a key does not compile:
///
/// ```compile_fail,E0277
/// # use limiter_core::{Limiter, Policy};
/// # use limiter_tower::{RateLimitLayer, key};
/// # let limits = Limiter::in_process().build();
/// # let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
/// let app: axum::Router = axum::Router::new().layer(RateLimitLayer::new(&limits, policy));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone)]
#[must_use = "a layer limits nothing until a service is wrapped in it"]
pub struct RateLimitLayer<K = MissingKey, P = FixedPolicies> {
    limits: Arc<LayerConfig>,
    key: K,
    options: P,
}

impl RateLimitLayer {
    /// Limits requests by `policies` with `limiter`: a [`Policy`](limiter_core::Policy); several,
    /// in an array or a [`Vec`]; a [`PolicySet`]; or a closure that returns one of these for each
    /// request after its key is extracted. Clones of the layer, and the services that it wraps,
    /// share the limiter.
    ///
    /// The policies must limit rates. Use a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer)
    /// for a policy of [`concurrency`](limiter_core::Policy::concurrency): with it,
    /// [`verify`](Self::verify) returns an error, and a layer that is not verified answers each
    /// request with 500.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// #[derive(Clone)]
    /// struct Claims {
    ///     sub: String,
    ///     pro: bool,
    /// }
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let free = Policy::token_bucket("free").capacity(1).rate("1/min").build()?;
    /// let pro = Policy::token_bucket("pro").capacity(3).rate("10/s").build()?;
    /// let tiers = move |request: &Request<String>| match request.extensions().get::<Claims>() {
    ///     Some(claims) if claims.pro => pro.clone(),
    ///     _ => free.clone(),
    /// };
    /// let by_user = key::extension(|claims: &Claims| &claims.sub).or_reject(401);
    /// let layer = RateLimitLayer::new(&limits, tiers).key(by_user);
    ///
    /// let service = layer.layer(service_fn(async |_: Request<String>| {
    ///     Ok::<_, Infallible>(Response::new(String::new()))
    /// }));
    /// let ask = async |sub: &str, pro: bool| {
    ///     let mut request = Request::new(String::new());
    ///     request.extensions_mut().insert(Claims { sub: sub.to_owned(), pro });
    ///     service.clone().oneshot(request).await.unwrap().status()
    /// };
    /// assert_eq!(ask("ann", false).await, 200);
    /// assert_eq!(ask("ann", false).await, 429);
    /// for _ in 0..3 {
    ///     assert_eq!(ask("bob", true).await, 200);
    /// }
    /// assert_eq!(ask("bob", true).await, 429);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// Several policies are one all-or-nothing decision about one key. For several keys, such as a
    /// limit for each user and one for all, see
    /// [`RequestLimits`](crate::RequestLimits#a-limit-for-each-user-beside-one-for-all).
    ///
    /// ```
    /// # use limiter_core::{Limiter, Policy};
    /// # use limiter_tower::{RateLimitLayer, key};
    /// # let limits = Limiter::in_process().build();
    /// let burst = Policy::token_bucket("burst").capacity(20).rate("10/s").build()?;
    /// let daily = Policy::fixed_window("daily").limit(10_000).window("1d").build()?;
    /// let layer = RateLimitLayer::new(&limits, [burst, daily]).key(key::header("x-api-key"));
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    ///
    /// An array has one element type, so combine policies and names as `[PolicySet::from(burst),
    /// PolicySet::from("daily")]`.
    pub fn new<M, T: Policies<M>>(limiter: &Limiter, policies: T) -> RateLimitLayer<MissingKey, T::Options> {
        let (policies, options) = policies.into_parts();
        RateLimitLayer {
            limits: Arc::new(LayerConfig::new(PolicyKind::Rate, limiter.clone(), policies)),
            key: MissingKey::new(),
            options,
        }
    }
}

impl<P> RateLimitLayer<MissingKey, P> {
    /// Sets the key whose permits a request takes: one of the extractors in [`key`](crate::key), or
    /// a closure over the request that names its type: `|request: &Request| …`. Required.
    pub fn key<E: 'static>(mut self, extractor: E) -> RateLimitLayer<WithKey<E>, P> {
        Arc::make_mut(&mut self.limits).set_extractor(&extractor);
        RateLimitLayer {
            limits: self.limits,
            key: WithKey::new(extractor),
            options: self.options,
        }
    }
}

impl<K, P> RateLimitLayer<K, P> {
    fn limits_mut(&mut self) -> &mut LayerConfig {
        Arc::make_mut(&mut self.limits)
    }

    /// Sets the number of permits that a request takes from each limit. Default: 1.
    ///
    /// A cost of 0 charges nothing and is always allowed. An invalid cost is answered with 500
    /// (INTERNAL), a cost above the policy's quota with 429 (RESOURCE_EXHAUSTED) and no
    /// `Retry-After`.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.limits_mut().set_cost(cost.try_into().map_err(Into::into));
        self
    }
}

impl<K, P> RateLimitLayer<K, P> {
    /// Puts the [`Decision`](limiter_core::Decision) that allows a request into its extensions, for
    /// the handler, and into those of the response, for outer layers.
    ///
    /// By default, a response has the decision if the request was rejected or was decided without
    /// the store. A request has it only if it was denied and passes nevertheless
    /// ([`is_degraded`](limiter_core::Decision::is_degraded)), so that the handler can react. An
    /// inner layer does not replace such a decision by an allowed one.
    ///
    /// The cost is about that of a decision in process, because extensions are a map that
    /// allocates.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let layer = RateLimitLayer::new(&limits, policy).key(key::global()).with_decision_extension();
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn with_decision_extension(mut self) -> Self {
        self.limits_mut().show_decisions();
        self
    }
}

impl<K, P> RateLimitLayer<K, P> {
    /// Fails if requests could not be decided as configured: the cost is invalid; the list of
    /// policies is empty; a policy limits concurrency and not a rate; another layer of the limiter
    /// uses the name of a policy for other limits (both would share one budget; one policy in
    /// several layers is allowed); the limiter's registry lacks a named policy; or entries of a
    /// policy's key lists are longer than the prefix of the layer's keys
    /// ([`key::peer_ip`](crate::key::peer_ip()), [`key::client_ip`](crate::key::client_ip())), so
    /// that they never match. A registry in Redis must have been read before.
    ///
    /// A layer that is not verified logs the first four errors when it wraps a service, and entries
    /// that never match as a warning. Policies that a closure chooses for each request are not
    /// verified.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let layer = RateLimitLayer::new(&limits, &policy).key(key::header("x-api-key")).verify()?;
    ///
    /// let concurrency = Policy::concurrency("exports").max(2).build()?;
    /// assert!(RateLimitLayer::new(&limits, concurrency).verify().is_err());
    /// let other = Policy::token_bucket("api").capacity(5).rate("1/s").build()?;
    /// assert!(RateLimitLayer::new(&limits, other).verify().is_err());
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The first error.
    pub fn verify(self) -> Result<Self, ConfigError> {
        self.limits.verify()?;
        Ok(self)
    }
}

impl<K: HasKey, P: RequestOptions<K::Extractor>> RateLimitLayer<K, P> {
    /// Erases the type of the key extractor, so that the layer can be a field of a struct. `B` is
    /// the type of the request bodies. The cost is one virtual call for each request.
    ///
    /// ```
    /// use axum::body::Body;
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{BoxRateLimitLayer, RateLimitLayer, key, skip};
    ///
    /// #[derive(Clone)]
    /// struct AppState {
    ///     limit: BoxRateLimitLayer<Body>,
    /// }
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let limit = RateLimitLayer::new(&limits, policy).key(key::header("x-api-key")).skip(skip::probes()).boxed();
    /// let state = AppState { limit };
    /// let app: axum::Router = axum::Router::new().layer(state.limit.clone());
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn boxed<B>(self) -> BoxRateLimitLayer<B>
    where
        P::Extractor: KeyExtractor<B> + Send + Sync + 'static,
    {
        let extractor = self.options.apply(self.key.extractor());
        RateLimitLayer {
            limits: self.limits,
            key: WithKey::new(BoxKeyExtractor::new(extractor)),
            options: FixedPolicies::new(),
        }
    }
}

/// A [`RateLimitLayer`] with an erased key extractor type. Created by [`RateLimitLayer::boxed`].
pub type BoxRateLimitLayer<B> = RateLimitLayer<WithKey<BoxKeyExtractor<B>>>;

impl<S, K: HasKey, P: RequestOptions<K::Extractor>> Layer<S> for RateLimitLayer<K, P> {
    type Service = RateLimit<S, P::Extractor>;

    fn layer(&self, inner: S) -> Self::Service {
        self.limits.log_errors();
        RateLimit::new(
            inner,
            Arc::clone(&self.limits),
            self.options.apply(self.key.extractor()),
        )
    }
}

impl<K, P> fmt::Debug for RateLimitLayer<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
