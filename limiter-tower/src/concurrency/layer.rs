//! The layer: how much may be in flight, and of whom.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Amount, ConfigError, Limiter};
use tower_layer::Layer;

use super::admission::AdmissionConfig;
use super::service::ConcurrencyLimit;
use crate::key::{BoxKeyExtractor, KeyExtractor};
use crate::rate::config::{LayerConfig, PolicyKind};
use crate::rate::policies::Policies;
use crate::rate::typestate::{FixedPolicies, HasKey, MissingKey, RequestOptions, Skipping, WithKey};
use crate::responses::ResponseConfig;

/// Bounds how many requests of a key are in flight at once, in this process or, with Redis, in all
/// of them: by a policy of [`concurrency`](limiter_core::Policy::concurrency).
///
/// A request holds its permit from when it is admitted until its response's body has ended (by its
/// last frame, its trailers or an error) or is dropped; or until the inner service fails, or the
/// client goes away. (Over HTTP/1 hyper sees that it has gone when it reads or writes: not while a
/// part of the request's body is unread, and nothing is sent.) So a response that is streamed, or a
/// gRPC call with a stream of messages, is in flight for as long as the stream.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use axum::{Router, body::Body, extract::Request, routing::get};
/// use http_body_util::BodyExt;
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::{ConcurrencyLimitLayer, key};
/// use tower::ServiceExt;
///
/// let limits = Limiter::in_process().build();
/// let exports = Policy::concurrency("export").max(1).lease("30s").build()?;
/// let app = Router::new()
///     .route("/export", get(async || "a,b\n1,2\n"))
///     .layer(ConcurrencyLimitLayer::new(&limits, exports).key(key::header("x-api-key")));
///
/// let ask = async || {
///     let request = Request::get("/export").header("x-api-key", "ann").body(Body::empty()).unwrap();
///     app.clone().oneshot(request).await.unwrap()
/// };
/// let first = ask().await;
/// assert_eq!(first.headers()["ratelimit"], r#""export";r=0"#);
/// let second = ask().await;
/// assert_eq!(second.status(), 429);
/// assert!(!second.headers().contains_key("retry-after"), "nobody knows when the first is done");
/// assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "a,b\n1,2\n");
/// assert_eq!(ask().await.status(), 200);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// # What a client gets
///
/// | | HTTP | gRPC | `Retry-After` |
/// |---|---|---|---|
/// | as many as may be are in flight | 429 | RESOURCE_EXHAUSTED | none: nobody knows |
/// | it waited, and nobody left in time | 429 | RESOURCE_EXHAUSTED | none |
/// | a cost above the policy's maximum | 429 | RESOURCE_EXHAUSTED | none: waiting never helps |
/// | as many requests wait as the limiter has room for | 503 | UNAVAILABLE | none |
/// | the store is out, the policy says `Local` (the default) | as its share says: the inner response, or 429 | the same | none |
/// | the store is out, the policy says `Deny` or `Error` | 503 | UNAVAILABLE | none |
/// | a policy of a rate, several policies, a cost that cannot be used | 500 | INTERNAL | none |
/// | no key | as the extractor says | the code that is paired with it | none |
///
/// The answers are those of [`RateLimitLayer`](crate::RateLimitLayer), and so are the headers (in
/// the dialects that can tell of a number of requests at once), extensions and events;
/// [`answers`](Self::responses) changes them.
///
/// # With Redis
///
/// A permit is a lease, renewed while the request is in flight. A process that is cut off from
/// Redis for longer than the policy's lease may therefore find others in its place: a handler sees
/// that from the permit ([`with_permit_extension`](Self::with_permit_extension)), and who has the
/// response from its [body](crate::PermitBody::held). A process that dies frees its permits when
/// their leases end.
///
/// # Upgrades
///
/// The body of a response that switches protocols (101, as for a websocket; 200 to CONNECT) is
/// empty, so the permit goes back with the response's head, and what is spoken afterwards is not
/// counted. Where it is to be, the handler keeps a share of the permit for as long: see
/// [`with_permit_extension`](Self::with_permit_extension). Of nested layers it has the innermost's
/// alone.
///
/// # Contract
///
/// Readiness is the inner service's, as with [`RateLimitLayer`](crate::RateLimitLayer). In process
/// the limiter is asked when the service is called, and an admitted request costs no allocation but
/// for what the client is told; a request that waits, and one about which Redis is asked, is asked
/// about when the response's future is polled first.
#[derive(Clone)]
#[must_use = "a layer limits nothing until a service is wrapped in it"]
pub struct ConcurrencyLimitLayer<K = MissingKey, P = FixedPolicies> {
    admission: Arc<AdmissionConfig>,
    key: K,
    options: P,
}

impl ConcurrencyLimitLayer {
    /// Bounds what is in flight by a policy of [`concurrency`](limiter_core::Policy::concurrency),
    /// as `limiter` counts it: a [`Policy`](limiter_core::Policy); the name of one in the limiter's
    /// registry; or a closure that answers one of these for each request, once its key is found.
    /// Clones of the layer, and the services that it wraps, share the limiter.
    ///
    /// One request holds permits of one policy. Where several are to bound it (a client, and all of
    /// them together), nest a layer for each, the one that denies most outermost.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{ConcurrencyLimitLayer, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let everybody = Policy::concurrency("all").max(100).build()?;
    /// let client = Policy::concurrency("client").max(5).build()?;
    /// let app: axum::Router = axum::Router::new()
    ///     .layer(ConcurrencyLimitLayer::new(&limits, everybody).key(key::global()))
    ///     .layer(ConcurrencyLimitLayer::new(&limits, client).key(key::header("x-api-key")));
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn new<M, T: Policies<M>>(
        limiter: &Limiter,
        policy: T,
    ) -> ConcurrencyLimitLayer<MissingKey, T::Options> {
        let (tier, options) = policy.into_parts();
        let admission = AdmissionConfig {
            limits: LayerConfig::new(PolicyKind::Concurrency, limiter.clone(), tier),
            timeout: Duration::ZERO,
            shares_permits: false,
        };
        ConcurrencyLimitLayer {
            admission: Arc::new(admission),
            key: MissingKey::new(),
            options,
        }
    }
}

impl<P> ConcurrencyLimitLayer<MissingKey, P> {
    /// Whose permits a request takes: one of the extractors in [`key`](crate::key), or a closure
    /// over the request. Required.
    pub fn key<E: 'static>(mut self, extractor: E) -> ConcurrencyLimitLayer<WithKey<E>, P> {
        Arc::make_mut(&mut self.admission)
            .limits
            .set_extractor(&extractor);
        ConcurrencyLimitLayer {
            admission: self.admission,
            key: WithKey::new(extractor),
            options: self.options,
        }
    }
}

impl<K, P> ConcurrencyLimitLayer<K, P> {
    fn admission_mut(&mut self) -> &mut AdmissionConfig {
        Arc::make_mut(&mut self.admission)
    }

    /// How many permits a request holds: a whole number, at most 1,024. Default: 1. A cost of 0
    /// holds nothing, and is always admitted.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        let cost = cost.try_into().map_err(Into::into);
        self.admission_mut().limits.set_cost(cost);
        self
    }

    /// Has a request for which there is no room wait, at most for so long, as
    /// [`AcquireConcurrency::timeout`](limiter_core::concurrency::AcquireConcurrency::timeout): in
    /// a process first come, first served. One that says in gRPC's way for how long its client
    /// waits (`grpc-timeout`) waits no longer than that. Default: as the policy says
    /// ([`on_denial`](limiter_core::PolicyBuilder::on_denial)), which by itself has nobody wait;
    /// where both say so, it waits for the shorter of both times.
    ///
    /// A request whose client goes away leaves the line. As many wait as the limiter lets wait
    /// ([`InProcessBuilder::max_waiting`](limiter_core::InProcessBuilder::max_waiting)); each keeps
    /// its connection and what it has read of its body. It needs a Tokio runtime with time.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::{ConcurrencyLimitLayer, key};
    /// use std::convert::Infallible;
    /// use std::time::Duration;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let one = Policy::concurrency("one").max(1).build()?;
    /// let service = ConcurrencyLimitLayer::new(&limits, one)
    ///     .key(key::global())
    ///     .max_wait(Duration::from_secs(1))
    ///     .layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("done".to_owned()))));
    ///
    /// let first = service.clone().oneshot(Request::new(())).await.unwrap();
    /// let second = service.clone().oneshot(Request::new(()));
    /// let (second, ()) = tokio::join!(second, async { drop(first) });
    /// assert_eq!(second.as_ref().unwrap().status(), 200);
    /// let third = service.oneshot(Request::new(()));
    /// let (third, ()) = tokio::join!(third, async { clock.advance(Duration::from_secs(1)) });
    /// assert_eq!(third.unwrap().status(), 429);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn max_wait(mut self, timeout: Duration) -> Self {
        self.admission_mut().timeout = timeout;
        self
    }

    /// Puts an `Arc` of the request's
    /// [`ConcurrencyPermit`](limiter_core::concurrency::ConcurrencyPermit) into its extensions, by
    /// which a handler learns that it is
    /// [lost](limiter_core::concurrency::ConcurrencyPermit::lost), and can keep it for longer than
    /// its response: it goes back when the body has ended and the last share is dropped. Default:
    /// the permit is the layer's alone.
    ///
    /// Of nested layers the handler finds the innermost's permit alone, whichever of them shares
    /// theirs: an extension is one of its type. The permits of the others go back when the body has
    /// ended. So where a socket's permits of several limits are to be kept, the handler takes all
    /// but one by [`Limiter::acquire_concurrency`](limiter_core::Limiter::acquire_concurrency)
    /// itself.
    ///
    /// Nothing is there of a request that was admitted without one. A request that is kept or
    /// passed on keeps the permit with it.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use limiter_core::{Limiter, Policy};
    /// # use tower::ServiceExt;
    /// use axum::{Extension, Router, body::Body, extract::Request, routing::get};
    /// use limiter_core::concurrency::ConcurrencyPermit;
    /// use limiter_tower::{ConcurrencyLimitLayer, key};
    /// use std::sync::Arc;
    ///
    /// async fn upgrade(Extension(permit): Extension<Arc<ConcurrencyPermit>>) -> &'static str {
    ///     tokio::spawn(async move {
    ///         tokio::select! {
    ///             () = permit.lost() => { /* others may be in its place: end it */ }
    ///             () = std::future::pending() => { /* what is spoken after the upgrade */ }
    ///         }
    ///     });
    ///     ""
    /// }
    /// # let limits = Limiter::in_process().build();
    /// # let sockets = Policy::concurrency("sockets").max(1).build()?;
    /// let layer = ConcurrencyLimitLayer::new(&limits, &sockets).key(key::global()).with_permit_extension();
    /// let app = Router::new().route("/socket", get(upgrade)).layer(layer);
    /// # let ask = async || app.clone().oneshot(Request::get("/socket").body(Body::empty()).unwrap()).await.unwrap();
    /// assert_eq!(ask().await.status(), 200);
    /// assert_eq!(ask().await.status(), 429, "the first is spoken to still");
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn with_permit_extension(mut self) -> Self {
        self.admission_mut().shares_permits = true;
        self
    }

    /// Puts the [`Decision`](limiter_core::Decision) that admits a request into its extensions and
    /// into those of the response, as
    /// [`RateLimitLayer::with_decision_extension`](crate::RateLimitLayer::with_decision_extension).
    /// Default: only what is unusual, in the response.
    pub fn with_decision_extension(mut self) -> Self {
        self.admission_mut().limits.show_decisions();
        self
    }

    /// Configures the layer's responses and rate limit headers. Default: [`ResponseConfig::new`].
    pub fn responses(mut self, config: &ResponseConfig) -> Self {
        *self.admission_mut().limits.responder_mut() = config.responder();
        self
    }
}

impl<K, P> ConcurrencyLimitLayer<K, P> {
    /// Lets requests pass without a permit. The argument is that of
    /// [`RateLimitLayer::skip`](crate::RateLimitLayer::skip).
    pub fn skip<S>(self, skip: S) -> ConcurrencyLimitLayer<K, Skipping<S, P>> {
        ConcurrencyLimitLayer {
            admission: self.admission,
            key: self.key,
            options: Skipping::new(skip, self.options),
        }
    }
}

impl<K, P> ConcurrencyLimitLayer<K, P> {
    /// Fails if requests could not be decided as configured: the cost is invalid; the layer has no
    /// policy or several; a policy limits a rate and not concurrency; another layer of the limiter
    /// uses the name of a policy for other limits (both would share one budget; one policy in
    /// several layers is allowed); or the limiter's registry lacks a named policy. A registry in
    /// Redis must have been read before.
    ///
    /// A layer that is not verified logs the first four mistakes as an error when it wraps a
    /// service. Policies that a closure chooses for each request are not verified.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{ConcurrencyLimitLayer, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let exports = Policy::concurrency("exports").max(2).build()?;
    /// let layer = ConcurrencyLimitLayer::new(&limits, exports).key(key::header("x-api-key")).verify()?;
    ///
    /// let rate = Policy::token_bucket("api").capacity(5).rate("1/s").build()?;
    /// assert!(ConcurrencyLimitLayer::new(&limits, rate).verify().is_err());
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The first mistake.
    pub fn verify(self) -> Result<Self, ConfigError> {
        self.admission.limits.verify()?;
        Ok(self)
    }
}

impl<K: HasKey, P: RequestOptions<K::Extractor>> ConcurrencyLimitLayer<K, P> {
    /// Erases the type of the key extractor, so that the layer can be a field of a struct, as
    /// [`RateLimitLayer::boxed`](crate::RateLimitLayer::boxed).
    pub fn boxed<B>(self) -> BoxConcurrencyLimitLayer<B>
    where
        P::Extractor: KeyExtractor<B> + Send + Sync + 'static,
    {
        let extractor = self.options.apply(self.key.extractor());
        ConcurrencyLimitLayer {
            admission: self.admission,
            key: WithKey::new(BoxKeyExtractor::new(extractor)),
            options: FixedPolicies::new(),
        }
    }
}

/// An [`ConcurrencyLimitLayer`] whose key extractor has no type of its own. Made by
/// [`ConcurrencyLimitLayer::boxed`].
pub type BoxConcurrencyLimitLayer<B> = ConcurrencyLimitLayer<WithKey<BoxKeyExtractor<B>>>;

impl<S, K: HasKey, P: RequestOptions<K::Extractor>> Layer<S> for ConcurrencyLimitLayer<K, P> {
    type Service = ConcurrencyLimit<S, P::Extractor>;

    fn layer(&self, inner: S) -> Self::Service {
        self.admission.limits.log_mistakes();
        ConcurrencyLimit::new(
            inner,
            Arc::clone(&self.admission),
            self.options.apply(self.key.extractor()),
        )
    }
}

impl<K, P> fmt::Debug for ConcurrencyLimitLayer<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimitLayer")
            .field("admission", &self.admission)
            .finish_non_exhaustive()
    }
}
