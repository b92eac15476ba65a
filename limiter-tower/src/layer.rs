//! The layer: what is limited, and by which key.

mod skip;

use std::fmt;
use std::sync::Arc;

use limiter_core::{Amount, ConfigError, Limiter, Policy};
use tower_layer::Layer;

use crate::decide::{Limit, Limits};
use crate::service::RateLimit;

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
/// One layer asks for one limit. Limits that must be decided together (all are charged, or none): annotate the handler,
/// or call [`Limiter::check_all`] in a middleware. Nested layers are separate decisions: what an outer one has charged
/// stays charged when an inner one denies.
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
    /// Limits requests by `policy`, as `limiter` decides. Clones of the layer, and the services that it wraps, share
    /// the limiter.
    pub fn new(limiter: &Limiter, policy: Policy) -> Self {
        Self {
            limits: Arc::new(Limits::new(limiter.clone(), Limit::Given(policy))),
            key: NoKey(()),
        }
    }

    /// Limits requests by the policy that stands under this name in the limiter's book when they come. Where there is none, the limiter
    /// says what becomes of them ([`OnNotConfigured`](limiter_core::OnNotConfigured)).
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy, PolicyBook};
    /// use limiter_tower::{RateLimitLayer, key};
    ///
    /// let book = PolicyBook::new().with(Policy::token_bucket("api").capacity(20).rate("10/s").build()?);
    /// let limits = Limiter::in_process().book(&book).build();
    /// let layer = RateLimitLayer::named(&limits, "api").key(key::header("x-api-key"));
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn named(limiter: &Limiter, policy: impl Into<String>) -> Self {
        Self {
            limits: Arc::new(Limits::new(limiter.clone(), Limit::Named(policy.into().into()))),
            key: NoKey(()),
        }
    }
}

impl<K> RateLimitLayer<K> {
    /// Whose permits a request takes: one of the extractors in [`key`](crate::key), or a closure over the request.
    /// Required.
    pub fn key<E>(self, extractor: E) -> RateLimitLayer<By<E>> {
        RateLimitLayer {
            limits: self.limits,
            key: By(Arc::new(extractor)),
        }
    }

    /// How many permits a request takes. Default: 1.
    ///
    /// A cost of 0 only looks: it charges nothing and is always allowed. A cost that cannot be used is answered with 500
    /// (INTERNAL), one above the policy's quota with 429 (RESOURCE_EXHAUSTED) and no `Retry-After`.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        Arc::make_mut(&mut self.limits).set_cost(cost.try_into().map_err(Into::into));
        self
    }
}

impl<K> RateLimitLayer<K> {
    /// Puts the [`Decision`](limiter_core::Decision) that allows a request into its extensions, where the handler finds it, and
    /// into those of the response, for layers further out. Default: only what rejects a request is shown, and what was
    /// decided without the store, both in the response.
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
        Arc::make_mut(&mut self.limits).show_decisions();
        self
    }
}

impl<S, K: Chosen> Layer<S> for RateLimitLayer<K> {
    type Service = RateLimit<S, K::Extractor>;

    fn layer(&self, inner: S) -> Self::Service {
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

/// A [`RateLimitLayer`] whose key is still to be chosen.
#[derive(Clone, Copy, Debug)]
pub struct NoKey(());

/// A [`RateLimitLayer`] whose key the extractor `E` finds.
pub struct By<E>(Arc<E>);

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
    message = "this `RateLimitLayer` has no key",
    label = "whose permits does a request take?",
    note = "choose a key: `.key(key::header(\"x-api-key\"))`, `.key(key::extension(|user: &User| &user.id))`, …",
    note = "or say that everybody shares one budget: `.key(key::shared())`"
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
