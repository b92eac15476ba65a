//! The layer: how much may be in flight, and of whom.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Amount, ConfigError, Limiter};
use tower_layer::Layer;

use super::admit::Admission;
use super::service::InFlight;
use crate::decide::{Limits, PolicyKind};
use crate::key::{BoxExtractor, ExtractKey};
use crate::layer::{By, Chosen, NoKey};
use crate::respond::Answers;
use crate::skip::Unless;
use crate::terms::{PerRequest, Policies, Tiered};

/// Bounds how many requests of a key are in flight at once, in this process or, with Redis, in all of them: by a policy of
/// [`concurrency`](limiter_core::Policy::concurrency).
///
/// A request holds its permit from when it is admitted until its response's body has ended (by its last frame, its trailers or an
/// error) or is dropped; or until the inner service fails, or the client goes away. (Over HTTP/1 hyper sees that it has gone when it reads
/// or writes: not while a part of the request's body is unread, and nothing is sent.) So a response that is streamed, or a gRPC call
/// with a stream of messages, is in flight for as long as the stream.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use axum::{Router, body::Body, extract::Request, routing::get};
/// use http_body_util::BodyExt;
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::{InFlightLayer, key};
/// use tower::ServiceExt;
///
/// let limits = Limiter::in_process().build();
/// let exports = Policy::concurrency("export").max(1).lease("30s").build()?;
/// let app = Router::new()
///     .route("/export", get(async || "a,b\n1,2\n"))
///     .layer(InFlightLayer::new(&limits, exports).key(key::header("x-api-key")));
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
/// The answers are those of [`RateLimitLayer`](crate::RateLimitLayer), and so are the headers (in the dialects that can tell of a
/// number of requests at once), extensions and events; [`answers`](Self::answers) changes them.
///
/// # With Redis
///
/// A permit is a lease, renewed while the request is in flight. A process that is cut off from Redis for longer than the policy's
/// lease may therefore find others in its place: a handler sees that from the permit ([`with_permits`](Self::with_permits)), and
/// who has the response from its [body](crate::PermitBody::held). A process that dies frees its permits when their leases end.
///
/// # Upgrades
///
/// The body of a response that switches protocols (101, as for a websocket; 200 to CONNECT) is empty, so the permit goes back with
/// the response's head, and what is spoken afterwards is not counted. Where it is to be, the handler keeps a share of the permit
/// for as long: see [`with_permits`](Self::with_permits). Of nested layers it has the innermost's alone.
///
/// # Contract
///
/// Readiness is the inner service's, as with [`RateLimitLayer`](crate::RateLimitLayer). In process the limiter is asked when the
/// service is called, and an admitted request costs no allocation but for what the client is told; a request that waits, and one
/// about which Redis is asked, is asked about when the response's future is polled first.
#[derive(Clone)]
#[must_use = "a layer limits nothing until a service is wrapped in it"]
pub struct InFlightLayer<K = NoKey> {
    admission: Arc<Admission>,
    key: K,
}

impl InFlightLayer {
    /// Bounds what is in flight by a policy of [`concurrency`](limiter_core::Policy::concurrency), as `limiter` counts it: a
    /// [`Policy`](limiter_core::Policy); the name of one in the limiter's book; or a closure that answers one of these for each
    /// request, once its key is found. Clones of the layer, and the services that it wraps, share the limiter.
    ///
    /// One request holds permits of one policy. Where several are to bound it (a client, and all of them together), nest a layer
    /// for each, the one that denies most outermost.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{InFlightLayer, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let everybody = Policy::concurrency("all").max(100).build()?;
    /// let client = Policy::concurrency("client").max(5).build()?;
    /// let app: axum::Router = axum::Router::new()
    ///     .layer(InFlightLayer::new(&limits, everybody).key(key::shared()))
    ///     .layer(InFlightLayer::new(&limits, client).key(key::header("x-api-key")));
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn new<M, P: Policies<M>>(limiter: &Limiter, policy: P) -> InFlightLayer<P::Unkeyed> {
        let (tier, key) = policy.into_parts();
        let admission = Admission {
            limits: Limits::new(PolicyKind::Concurrency, limiter.clone(), tier),
            up_to: Duration::ZERO,
            shares_permits: false,
        };
        InFlightLayer {
            admission: Arc::new(admission),
            key,
        }
    }

    /// Bounds what is in flight by the policy that stands under this name in the limiter's book when a request comes. Where there
    /// is none, the limiter says what becomes of it ([`OnNotConfigured`](limiter_core::OnNotConfigured)).
    pub fn named(limiter: &Limiter, policy: impl Into<String>) -> Self {
        Self::new(limiter, policy.into())
    }

    /// Whose permits a request takes: one of the extractors in [`key`](crate::key), or a closure over the request. Required.
    pub fn key<E>(self, extractor: E) -> InFlightLayer<By<E>> {
        self.by(extractor)
    }
}

impl<F> InFlightLayer<NoKey<PerRequest<F>>> {
    /// Whose permits a request takes: one of the extractors in [`key`](crate::key), or a closure over the request. Required. The
    /// policy of a request is asked for once its key is known.
    pub fn key<E>(self, extractor: E) -> InFlightLayer<By<Tiered<E, F>>> {
        let NoKey(PerRequest(tiers)) = self.key;
        let key = Tiered {
            key: extractor,
            tiers,
        };
        InFlightLayer {
            admission: self.admission,
            key: By(Arc::new(key)),
        }
    }
}

impl<K> InFlightLayer<K> {
    fn by<E>(self, extractor: E) -> InFlightLayer<By<E>> {
        InFlightLayer {
            admission: self.admission,
            key: By(Arc::new(extractor)),
        }
    }

    fn admission_mut(&mut self) -> &mut Admission {
        Arc::make_mut(&mut self.admission)
    }

    /// How many permits a request holds: a whole number, at most 1,024. Default: 1. A cost of 0 holds nothing, and is always
    /// admitted.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        let cost = cost.try_into().map_err(Into::into);
        self.admission_mut().limits.set_cost(cost);
        self
    }

    /// Has a request for which there is no room wait, at most for so long, as [`AcquireConcurrency::up_to`](limiter_core::AcquireConcurrency::up_to): in a
    /// process first come, first served. One that says in gRPC's way for how long its client waits (`grpc-timeout`) waits no
    /// longer than that. Default: as the policy says ([`on_denial`](limiter_core::PolicyBuilder::on_denial)), which by itself has nobody
    /// wait; where both say so, it waits for the shorter of both times.
    ///
    /// A request whose client goes away leaves the line. As many wait as the limiter lets wait
    /// ([`InProcessBuilder::max_waiting`](limiter_core::InProcessBuilder::max_waiting)); each keeps its connection and what it has
    /// read of its body. It needs a Tokio runtime with time.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use limiter_tower::{InFlightLayer, key};
    /// use std::convert::Infallible;
    /// use std::time::Duration;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let one = Policy::concurrency("one").max(1).build()?;
    /// let service = InFlightLayer::new(&limits, one)
    ///     .key(key::shared())
    ///     .wait_up_to(Duration::from_secs(1))
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
    pub fn wait_up_to(mut self, up_to: Duration) -> Self {
        self.admission_mut().up_to = up_to;
        self
    }

    /// Puts an `Arc` of the request's [`ConcurrencyPermit`](limiter_core::ConcurrencyPermit) into its extensions, by which a handler learns that it is
    /// [lost](limiter_core::ConcurrencyPermit::lost), and can keep it for longer than its response: it goes back when the body has ended and
    /// the last share is dropped. Default: the permit is the layer's alone.
    ///
    /// Of nested layers the handler finds the innermost's permit alone, whichever of them shares theirs: an extension is one of its
    /// type. The permits of the others go back when the body has ended. So where a socket's permits of several limits are to be kept,
    /// the handler takes all but one by [`Limiter::enter`](limiter_core::Limiter::enter) itself.
    ///
    /// Nothing is there of a request that was admitted without one. A request that is kept or passed on keeps the permit with it.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use limiter_core::{Limiter, Policy};
    /// # use tower::ServiceExt;
    /// use axum::{Extension, Router, body::Body, extract::Request, routing::get};
    /// use limiter_core::ConcurrencyPermit;
    /// use limiter_tower::{InFlightLayer, key};
    /// use std::sync::Arc;
    ///
    /// async fn upgrade(Extension(permit): Extension<Arc<Permit>>) -> &'static str {
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
    /// let layer = InFlightLayer::new(&limits, &sockets).key(key::shared()).with_permits();
    /// let app = Router::new().route("/socket", get(upgrade)).layer(layer);
    /// # let ask = async || app.clone().oneshot(Request::get("/socket").body(Body::empty()).unwrap()).await.unwrap();
    /// assert_eq!(ask().await.status(), 200);
    /// assert_eq!(ask().await.status(), 429, "the first is spoken to still");
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn with_permits(mut self) -> Self {
        self.admission_mut().shares_permits = true;
        self
    }

    /// Puts the [`Decision`](limiter_core::Decision) that admits a request into its extensions and into those of the response, as
    /// [`RateLimitLayer::with_decisions`](crate::RateLimitLayer::with_decisions). Default: only what is unusual, in the response.
    pub fn with_decisions(mut self) -> Self {
        self.admission_mut().limits.show_decisions();
        self
    }

    /// How clients are answered. Default: as [`Answers::new`].
    pub fn answers(mut self, answers: &Answers) -> Self {
        let responder = self.admission_mut().limits.responder_mut();
        responder.change(|_| answers.clone());
        self
    }
}

impl<K> InFlightLayer<K> {
    /// Lets requests pass that are not to be counted, as [`RateLimitLayer::skip`](crate::RateLimitLayer::skip). To be said after
    /// [`key`](Self::key).
    pub fn skip<S, E>(self, skip: S) -> InFlightLayer<By<Unless<S, E>>>
    where
        K: Chosen<Extractor = E>,
    {
        InFlightLayer {
            admission: self.admission,
            key: By(Arc::new(Unless::new(skip, self.key.extractor()))),
        }
    }
}

impl<K> InFlightLayer<K> {
    /// Fails if requests could not be decided as configured: the cost is invalid; the layer has no policy or several; a policy limits
    /// a rate and not concurrency;
    /// another layer of the limiter uses the name of a policy for other limits (both would share one budget; one policy in several
    /// layers is allowed); or the limiter's registry lacks a named policy. A registry in Redis must have been read before.
    ///
    /// A layer that is not verified logs the first four mistakes as an error when it wraps a service. Policies that a closure
    /// chooses for each request are not verified.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    /// use limiter_tower::{InFlightLayer, key};
    ///
    /// let limits = Limiter::in_process().build();
    /// let exports = Policy::concurrency("exports").max(2).build()?;
    /// let layer = InFlightLayer::new(&limits, exports).key(key::header("x-api-key")).verify()?;
    ///
    /// let rate = Policy::token_bucket("api").capacity(5).rate("1/s").build()?;
    /// assert!(InFlightLayer::new(&limits, rate).verify().is_err());
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

impl<K: Chosen> InFlightLayer<K> {
    /// Erases the type of the key extractor, so that the layer can be a field of a struct, as
    /// [`RateLimitLayer::boxed`](crate::RateLimitLayer::boxed).
    pub fn boxed<B>(self) -> BoxInFlightLayer<B>
    where
        K::Extractor: ExtractKey<B> + Send + Sync + 'static,
    {
        let extractor = BoxExtractor::new(self.key.extractor());
        self.by(extractor)
    }
}

/// An [`InFlightLayer`] whose key extractor has no type of its own. Made by [`InFlightLayer::boxed`].
pub type BoxInFlightLayer<B> = InFlightLayer<By<BoxExtractor<B>>>;

impl<S, K: Chosen> Layer<S> for InFlightLayer<K> {
    type Service = InFlight<S, K::Extractor>;

    fn layer(&self, inner: S) -> Self::Service {
        self.admission.limits.log_mistakes();
        InFlight::new(inner, Arc::clone(&self.admission), self.key.extractor())
    }
}

impl<K> fmt::Debug for InFlightLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlightLayer")
            .field("admission", &self.admission)
            .finish_non_exhaustive()
    }
}
