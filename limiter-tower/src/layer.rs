//! The layer: what is limited, and by which key.

mod answers;
mod settle;
mod skip;
mod terms;
mod wait;

use std::fmt;
use std::sync::Arc;

use limiter_core::{Amount, ConfigError, Limiter};
use tower_layer::Layer;

use crate::decide::{Limits, PolicyKind};
use crate::key::{BoxExtractor, ExtractKey};
use crate::service::RateLimit;
#[cfg(doc)]
use crate::terms::Tier;
use crate::terms::{Fixed, PerRequest, Policies};

/// Limits the rate of requests to the service that it wraps.
///
/// It becomes a [`Layer`] once [`key`](Self::key) has said whose permits a request takes. There is no default: a key
/// that nobody chose would be one budget for all callers.
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
/// One layer makes one decision: where it has several limits, all are charged, or none. Nested layers are separate decisions: what an
/// outer one has charged stays charged when an inner one denies.
///
/// A misconfiguration (a cost that cannot be used, say) is answered with 500, and logged as an error at most once in ten
/// seconds.
///
/// Without a key it does not compile:
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
pub struct RateLimitLayer<K = NoKey> {
    limits: Arc<Limits>,
    key: K,
}

impl RateLimitLayer {
    /// Limits requests by `policies`, as `limiter` decides: a [`Policy`](limiter_core::Policy); several, in an array or a [`Vec`]; a
    /// [`Tier`]; or a closure that answers one of these for each request, once its key is found. Clones of the layer, and the services
    /// that it wraps, share the limiter.
    ///
    /// They are policies of rates. A policy of [`concurrency`](limiter_core::Policy::concurrency) belongs into an
    /// [`InFlightLayer`](crate::InFlightLayer): [`verify`](Self::verify) returns an error, and without it each request is answered with 500.
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
    /// let by_user = key::extension(|claims: &Claims| &claims.sub).or_refuse(401);
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
    /// Several are one decision, all-or-nothing, about one key. (Of several keys, as a limit for each user beside one for all:
    /// [`Terms`](crate::Terms#a-limit-for-each-user-beside-one-for-all).)
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
    /// An array is of one type, so policies stand beside names as `[Tier::from(burst), Tier::from("daily")]`.
    pub fn new<M, P: Policies<M>>(limiter: &Limiter, policies: P) -> RateLimitLayer<P::Unkeyed> {
        let (tier, key) = policies.into_parts();
        RateLimitLayer {
            limits: Arc::new(Limits::new(PolicyKind::Rate, limiter.clone(), tier)),
            key,
        }
    }

    /// Limits requests by the policy that stands under this name in the limiter's book when they come. Where there is none, the limiter
    /// says what becomes of them ([`OnNotConfigured`](limiter_core::OnNotConfigured)): by default they are *unlimited*, with a warning
    /// in the log, so a name that is mistyped limits nothing. [`verify_sites`](limiter_core::verify_sites) looks at annotations, and not
    /// at layers. Ask for the name at start, once the book has been read: [`limits.policy`](Limiter::policy).
    ///
    /// ```
    /// use limiter_core::{Key, Limiter, Policy, PolicyBook};
    /// use limiter_tower::{RateLimitLayer, key};
    ///
    /// let book = PolicyBook::new().with(Policy::token_bucket("api").capacity(20).rate("10/s").build()?);
    /// let limits = Limiter::in_process().book(&book).build();
    /// assert!(limits.policy("api", Key::shared()).is_ok()); // at start: `limits.policy("api", Key::shared())?;`
    /// let layer = RateLimitLayer::named(&limits, "api").key(key::header("x-api-key"));
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use axum::{Router, body::Body, extract::Request, routing::get};
    /// # use tower::ServiceExt;
    /// let app = Router::new().route("/", get(|| async { "found" })).layer(layer);
    /// let ask = async || {
    ///     let request = Request::get("/").header("x-api-key", "ann").body(Body::empty()).unwrap();
    ///     app.clone().oneshot(request).await.unwrap().status()
    /// };
    /// assert_eq!(ask().await, 200);
    /// book.set(Policy::token_bucket("api").capacity(1).rate("1/h").build()?); // from now on
    /// assert_eq!(ask().await, 200);
    /// assert_eq!(ask().await, 429);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn named(limiter: &Limiter, policy: impl Into<String>) -> Self {
        Self::new(limiter, policy.into())
    }
}

impl RateLimitLayer {
    /// Whose permits a request takes: one of the extractors in [`key`](crate::key), or a closure over the request, which names its
    /// type: `|request: &Request| …`. Required.
    pub fn key<E>(self, extractor: E) -> RateLimitLayer<By<E>> {
        self.by_extractor(extractor)
    }
}

impl<K> RateLimitLayer<K> {
    fn by_extractor<E>(self, extractor: E) -> RateLimitLayer<By<E>> {
        RateLimitLayer {
            limits: self.limits,
            key: By(Arc::new(extractor)),
        }
    }

    fn limits_mut(&mut self) -> &mut Limits {
        Arc::make_mut(&mut self.limits)
    }

    /// How many permits a request takes, of each limit. Default: 1.
    ///
    /// A cost of 0 only looks: it charges nothing and is always allowed. A cost that cannot be used is answered with 500
    /// (INTERNAL), one above the policy's quota with 429 (RESOURCE_EXHAUSTED) and no `Retry-After`.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.limits_mut().set_cost(cost.try_into().map_err(Into::into));
        self
    }
}

impl<K> RateLimitLayer<K> {
    /// Puts the [`Decision`](limiter_core::Decision) that allows a request into its extensions, where the handler finds it, and
    /// into those of the response, for layers further out. Default: only what rejects a request is shown, and what was
    /// decided without the store, both in the response; and a request that goes on though it was denied
    /// ([`is_degraded`](limiter_core::Decision::is_degraded)) has its decision in its extensions, so that the handler can serve
    /// something cheaper.
    ///
    /// It costs about as much as a decision in process: extensions are a map that allocates.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{RateLimitLayer, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let layer = RateLimitLayer::new(&limits, policy).key(key::shared()).with_decisions();
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn with_decisions(mut self) -> Self {
        self.limits_mut().show_decisions();
        self
    }
}

impl<K> RateLimitLayer<K> {
    /// Fails if requests could not be decided as configured: the cost is invalid; the list of policies is empty; a policy limits concurrency
    /// and not a rate;
    /// another layer of the limiter uses the name of a policy for other limits (both would share one budget; one policy in several
    /// layers is allowed); or the limiter's registry lacks a named policy. A registry in Redis must have been read before.
    ///
    /// A layer that is not verified logs the first four mistakes as an error when it wraps a service. Policies that a closure
    /// chooses for each request are not verified.
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
    /// The first mistake.
    pub fn verify(self) -> Result<Self, ConfigError> {
        self.limits.verify()?;
        Ok(self)
    }
}

impl<K: Chosen> RateLimitLayer<K> {
    /// Erases the type of the key extractor, so that the layer can be a field of a struct. `B` is the type of the request bodies.
    /// Each request then pays one virtual call.
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
        K::Extractor: ExtractKey<B> + Send + Sync + 'static,
    {
        let extractor = BoxExtractor::new(self.key.extractor());
        self.by_extractor(extractor)
    }
}

/// A [`RateLimitLayer`] whose key extractor has no type of its own. Made by [`RateLimitLayer::boxed`].
pub type BoxRateLimitLayer<B> = RateLimitLayer<By<BoxExtractor<B>>>;

impl<S, K: Chosen> Layer<S> for RateLimitLayer<K> {
    type Service = RateLimit<S, K::Extractor>;

    fn layer(&self, inner: S) -> Self::Service {
        self.limits.log_mistakes();
        RateLimit::new(inner, Arc::clone(&self.limits), self.key.extractor())
    }
}

impl<K> fmt::Debug for RateLimitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A [`RateLimitLayer`] whose key is still to be chosen. Its policies are the same for all requests, or found for each.
#[derive(Clone, Copy, Debug)]
pub struct NoKey<P = Fixed>(pub(crate) P);

impl NoKey {
    pub(crate) const fn fixed() -> Self {
        Self(Fixed::new())
    }
}

impl<F> NoKey<PerRequest<F>> {
    pub(crate) const fn per_request(policies: F) -> Self {
        Self(PerRequest(policies))
    }
}

/// A [`RateLimitLayer`] whose key the extractor `E` finds.
pub struct By<E>(pub(crate) Arc<E>);

impl<E> Clone for By<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> fmt::Debug for By<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("By")
    }
}

/// Implemented once a key is chosen.
#[diagnostic::on_unimplemented(
    message = "this layer has no key",
    label = "whose permits does a request take?",
    note = "choose a key: `.key(key::header(\"x-api-key\"))`, `.key(key::extension(|user: &User| &user.id))`, …",
    note = "or say that everybody shares one budget: `.key(key::shared())`",
    note = "`skip` and `cost_by` come after `key`"
)]
pub trait Chosen: sealed::Sealed {
    /// What finds the key.
    type Extractor;

    #[doc(hidden)]
    fn extractor(&self) -> Arc<Self::Extractor>;
}

impl<E> Chosen for By<E> {
    type Extractor = E;

    fn extractor(&self) -> Arc<E> {
        Arc::clone(&self.0)
    }
}

mod sealed {
    pub trait Sealed {}

    impl<E> Sealed for super::By<E> {}
}
