//! `ConcurrencyLimitLayer`: the configuration of a concurrency limit around a service.
//!
//! Settings are collected in one `AdmissionConfig`, which is copied on write and shared by the
//! services of the layer. As in `RateLimitLayer`, the key is a type parameter, so a layer without a
//! key does not compile.
//!
//! Errors in the configuration are returned by `verify`, or else logged when the layer wraps a
//! service. Tests: `tests/load/in_flight.rs`, `tests/verify.rs`, `tests/layers.rs`.

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

/// Limits the concurrent requests of a key by a [`concurrency`](limiter_core::Policy::concurrency)
/// policy, in this process or, with Redis, in all processes.
///
/// A request holds its permit from its admission until the body of its response has ended (with the
/// last frame, the trailers or an error) or is dropped, until the head of a response to HEAD is
/// complete, until the inner service fails, or until the client disconnects. Over HTTP/1, hyper
/// detects a disconnect only when it reads or writes; it does not detect it while a part of the
/// request's body is unread and nothing is sent. A streamed response, or a gRPC call with a stream
/// of messages, is in flight until the stream ends.
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
/// assert!(!second.headers().contains_key("retry-after"), "the end of the first request is unknown");
/// assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "a,b\n1,2\n");
/// assert_eq!(ask().await.status(), 200);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// # Responses
///
/// | | HTTP | gRPC | `Retry-After` |
/// |---|---|---|---|
/// | the limit of concurrent requests is reached | 429 | RESOURCE_EXHAUSTED | none: unknown |
/// | a wait timed out | 429 | RESOURCE_EXHAUSTED | none |
/// | a cost above the policy's maximum | 429 | RESOURCE_EXHAUSTED | none: waiting never helps |
/// | the limiter's maximum of waiting requests is reached | 503 | UNAVAILABLE | none |
/// | store unavailable, policy with `Local` (the default) | the inner response or 429, by the local share | the same | none |
/// | store unavailable, policy with `FailOpen` | the inner response | the same | none |
/// | store unavailable, policy with `FailClosed` or `Error` | 503 | UNAVAILABLE | none |
/// | a policy of a rate, several policies, a cost that cannot be used | 500 | INTERNAL | none |
/// | no key | the extractor's response | the code that is paired with it | none |
///
/// Responses, extensions and events equal those of [`RateLimitLayer`](crate::RateLimitLayer), and
/// so do the headers in the drafts that can express a number of concurrent requests.
/// [`responses`](Self::responses) changes them.
///
/// # With Redis
///
/// A permit is a lease that is renewed while the request is in flight. If a process is disconnected
/// from Redis for longer than the policy's lease, its permits expire and other requests may be
/// admitted. A handler observes the loss through its permit
/// ([`with_permit_extension`](Self::with_permit_extension)), a holder of the response through the
/// [body](crate::PermitBody::held). The permits of a process that dies expire with their leases.
///
/// # Upgrades
///
/// The body of a response that switches protocols (101 for a WebSocket, 200 to CONNECT) is empty,
/// so the permit is released with the head of the response, and the traffic after the upgrade is
/// not counted. To count it, the handler keeps a share of the permit: see
/// [`with_permit_extension`](Self::with_permit_extension). With nested layers, the handler receives
/// only the permit of the innermost layer.
///
/// # Contract
///
/// The service is ready when the inner service is ready, as with
/// [`RateLimitLayer`](crate::RateLimitLayer). In process, the limiter is called when the service is
/// called, and an admitted request allocates only for rate limit headers and extensions. For a
/// request that waits, and with Redis, the limiter is called at the first poll of the response's
/// future.
#[derive(Clone)]
#[must_use = "a layer limits nothing until a service is wrapped in it"]
pub struct ConcurrencyLimitLayer<K = MissingKey, P = FixedPolicies> {
    admission: Arc<AdmissionConfig>,
    key: K,
    options: P,
}

impl ConcurrencyLimitLayer {
    /// Limits concurrent requests by a policy of [`concurrency`](limiter_core::Policy::concurrency)
    /// in `limiter`: a [`Policy`](limiter_core::Policy), the name of one in the limiter's registry,
    /// or a closure that returns one of these for each request after its key is extracted. Clones
    /// of the layer, and the services that it wraps, share the limiter.
    ///
    /// One request holds permits of one policy. To apply several policies (one for each client and
    /// one for all of them), nest one layer for each, and place the layer with the most denials
    /// outermost.
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
        let (policies, options) = policy.into_parts();
        let admission = AdmissionConfig {
            limits: LayerConfig::new(PolicyKind::Concurrency, limiter.clone(), policies),
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
    /// Sets the key whose permits a request takes: one of the extractors in [`key`](crate::key), or
    /// a closure over the request. Required.
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

    /// Sets the number of permits that a request holds: a whole number, at most 1,024. Default: 1.
    /// With a cost of 0, a request holds no permit and is always admitted.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        let cost = cost.try_into().map_err(Into::into);
        self.admission_mut().limits.set_cost(cost);
        self
    }

    /// Lets a request wait for a permit, for `timeout` at most, as
    /// [`AcquireConcurrency::timeout`](limiter_core::concurrency::AcquireConcurrency::timeout). In
    /// one process, waiting requests are served in order of arrival. A gRPC request waits no longer
    /// than its `grpc-timeout`. Default: the setting of the policy
    /// ([`on_denial`](limiter_core::PolicyBuilder::on_denial)), which does not wait unless
    /// configured. If both are set, the shorter one applies.
    ///
    /// A request whose client disconnects leaves the queue. The limiter bounds the number of
    /// waiting requests
    /// ([`InProcessBuilder::max_waiting`](limiter_core::InProcessBuilder::max_waiting)). Each
    /// waiting request keeps its connection and the buffered part of its body. Waiting needs a
    /// Tokio runtime with time enabled.
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
    /// [`ConcurrencyPermit`](limiter_core::concurrency::ConcurrencyPermit) into its extensions. A
    /// handler can detect that the permit is
    /// [lost](limiter_core::concurrency::ConcurrencyPermit::lost), and can keep the permit beyond
    /// the response: the permit is released when the body has ended and the last share is dropped.
    /// Default: only the layer holds the permit.
    ///
    /// With nested layers, the handler receives only the permit of the innermost layer, because
    /// extensions hold one value of each type. The other permits are released when the body has
    /// ended. To keep several permits for a socket, the handler acquires all but one itself with
    /// [`Limiter::acquire_concurrency`](limiter_core::Limiter::acquire_concurrency).
    ///
    /// A request that was admitted without a permit has no extension. A request that is stored or
    /// forwarded keeps its permit.
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
    ///             () = std::future::pending() => { /* the traffic after the upgrade */ }
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
    /// assert_eq!(ask().await.status(), 429, "the first connection is still open");
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
    /// Default: only the response has it, and only if the decision was made without the store or
    /// would deny the request when enforced.
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
    /// A layer that is not verified logs the first four errors when it wraps a service. Policies
    /// that a closure chooses for each request are not verified.
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
    /// The first error.
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

/// A [`ConcurrencyLimitLayer`] with an erased key extractor type. Created by
/// [`ConcurrencyLimitLayer::boxed`].
pub type BoxConcurrencyLimitLayer<B> = ConcurrencyLimitLayer<WithKey<BoxKeyExtractor<B>>>;

impl<S, K: HasKey, P: RequestOptions<K::Extractor>> Layer<S> for ConcurrencyLimitLayer<K, P> {
    type Service = ConcurrencyLimit<S, P::Extractor>;

    fn layer(&self, inner: S) -> Self::Service {
        self.admission.limits.log_errors();
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
