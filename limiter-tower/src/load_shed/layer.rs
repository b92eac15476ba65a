//! The layer: how much may be in flight, and what is kept for whom.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::ConfigError;
use tower_layer::Layer;

use super::classify::DefaultPriority;
use super::in_flight_counter::PerPriority;
use super::priority::Priority;
use super::room::ShedConfig;
use super::service::LoadShed;
use crate::rate::typestate::{FixedPolicies, RequestOptions, Skipping};
use crate::responses::{Responder, ResponseConfig};
use crate::skip;

/// Bounds how many requests are in flight at once in this process, and keeps room for the
/// important: the less a request matters, the sooner it is shed.
///
/// A request has its place from when it is called until its response's body has ended or is
/// dropped, as with [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer); unlike there it is
/// nobody's in particular. One of a class is admitted while fewer are in flight, of all classes,
/// than the bound less what is kept for the classes above it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use axum::{Router, body::Body, extract::Request, routing::get};
/// use limiter_tower::{Priority, LoadShedLayer};
/// use std::time::Duration;
/// use tower::ServiceExt;
///
/// let shed = LoadShedLayer::new(3)
///     .reserve_for(Priority::High, 1)
///     .reserve_for(Priority::Critical, 1)
///     .priority(|request: &Request| match request.uri().path() {
///         "/pay" => Priority::Critical,
///         _ => Priority::Normal,
///     })
///     .retry_after(Duration::from_secs(5))
///     .verify()?;
/// let app = Router::new()
///     .route("/search", get(async || "found"))
///     .route("/pay", get(async || "paid"))
///     .route("/healthz", get(async || "well"))
///     .layer(shed.clone());
///
/// let ask = async |path: &str| {
///     let request = Request::get(path).body(Body::empty()).unwrap();
///     app.clone().oneshot(request).await.unwrap()
/// };
/// let search = ask("/search").await;
/// let shed_one = ask("/search").await;
/// assert_eq!(shed_one.status(), 503);
/// assert_eq!(shed_one.headers()["retry-after"], "5");
/// let payments = [ask("/pay").await, ask("/pay").await];
/// assert!(payments.iter().all(|paid| paid.status() == 200));
/// assert_eq!(ask("/pay").await.status(), 503, "three are in flight, until their bodies have ended");
/// assert_eq!(ask("/healthz").await.status(), 200, "probes are not shed");
/// assert_eq!((shed.in_flight(), shed.shed(Priority::Normal), shed.shed(Priority::Critical)), (3, 1, 1));
/// drop((search, payments));
/// assert_eq!(shed.in_flight(), 0);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// # What a client gets
///
/// | | HTTP | gRPC | `Retry-After` |
/// |---|---|---|---|
/// | there is a place | the inner response | the inner response | |
/// | there is none for its class | 503 | UNAVAILABLE | as [`retry_after`](Self::retry_after) says, else none |
///
/// The response to a request that is shed holds [`Overloaded`](crate::Overloaded) in its
/// extensions. It is formed as the one to a request without a key: [`answers`](Self::responses)
/// says whether in JSON or in plain text, and its hook is not asked.
///
/// # What it does not do
///
/// The bound is the user's: what the service bears, by its memory, its pool of connections or a
/// test of load. What is in flight elsewhere is not counted, nor is what waits in a queue further
/// in; a bound for a client, or for all processes together, is
/// [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer)'s. Nobody waits: who is shed hears of it
/// at once. What is spoken after an upgrade (101) is not in flight.
///
/// Who says how much a request matters should be believed: a header that any client may write is
/// not.
///
/// # Contract
///
/// Readiness is the inner service's. To be admitted takes two atomic steps and no allocation.
/// Clones of the layer, and the services that it wraps, count together.
#[must_use = "a layer sheds nothing until a service is wrapped in it"]
pub struct LoadShedLayer<C = DefaultPriority, P = FixedPolicies> {
    room: Arc<ShedConfig>,
    classify: Arc<C>,
    options: P,
}

impl LoadShedLayer {
    /// Admits this many requests at once, at least 1. All requests have the same priority, until
    /// [`priority`](Self::priority) classifies them.
    pub fn new(max_in_flight: usize) -> Self {
        let room = ShedConfig {
            at_most: max_in_flight,
            reserved: PerPriority::default(),
            most: PerPriority::from_fn(|_| max_in_flight),
            gauge: Arc::default(),
            probes: Some(skip::probes()),
            retry_after: None,
            responder: Responder::default(),
            has_logged: Arc::default(),
        };
        Self {
            room: Arc::new(room),
            classify: Arc::new(DefaultPriority::new()),
            options: FixedPolicies::new(),
        }
    }
}

impl<C, P> LoadShedLayer<C, P> {
    /// Sets the classifier: a closure over the request that returns a [`Priority`], or an
    /// [`Option`] of one. A request with `None` passes and is not counted. The closure has to name
    /// the type of the request: `|request: &Request| …`. Default: all requests have
    /// [`Priority::Normal`]. A second classifier replaces the first.
    ///
    /// ```
    /// use http::Request;
    /// use limiter_tower::{LoadShedLayer, Priority, skip};
    /// # use tower::Layer;
    ///
    /// let shed = LoadShedLayer::new(100)
    ///     .skip(skip::paths(["/internal/alive"]))
    ///     .priority(|_: &Request<String>| Priority::High);
    /// # let _ = shed.layer(tower::service_fn(async |_: Request<String>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
    /// # }));
    /// ```
    pub fn priority<T>(self, classify: T) -> LoadShedLayer<T, P> {
        LoadShedLayer {
            room: self.room,
            classify: Arc::new(classify),
            options: self.options,
        }
    }

    /// Reserves this many places for requests of this class and of the classes above it. Default:
    /// none.
    ///
    /// Reserved places are part of the bound: with a bound of 100, 20 places for
    /// [`High`](Priority::High) and 10 for [`Critical`](Priority::Critical), a critical request is
    /// admitted while fewer than 100 are in flight, a high one while fewer than 90, others while
    /// fewer than 70.
    pub fn reserve_for(mut self, class: Priority, places: usize) -> Self {
        Arc::make_mut(&mut self.room).reserve_for(class, places);
        self
    }

    /// Fails if the bound is 0, if places are reserved for the lowest class (above which nothing is
    /// reserved from), or if reservations leave no place to the lowest class. A layer that is not
    /// verified logs this as an error when it wraps a service.
    ///
    /// # Errors
    ///
    /// The first mistake.
    pub fn verify(self) -> Result<Self, ConfigError> {
        self.room.verify()?;
        Ok(self)
    }

    /// Lets requests pass without counting them, in addition to probes. The argument is that of
    /// [`RateLimitLayer::skip`](crate::RateLimitLayer::skip). If it is called more than once, a
    /// request passes when any of the arguments skips it. Skipped requests are not classified.
    pub fn skip<S>(self, skip: S) -> LoadShedLayer<C, Skipping<S, P>> {
        LoadShedLayer {
            room: self.room,
            classify: self.classify,
            options: Skipping::new(skip, self.options),
        }
    }

    /// Counts and sheds probes as other requests. Default: those that [`skip::probes`] names pass,
    /// so that a busy process is not taken for a dead one, and ended.
    pub fn with_probes(mut self) -> Self {
        Arc::make_mut(&mut self.room).probes = None;
        self
    }

    /// When a client that is shed is to come back: `Retry-After`, in whole seconds, rounded up; for
    /// gRPC's `grpc-retry-pushback-ms`. Default: it is not told, since nobody knows.
    pub fn retry_after(mut self, after: Duration) -> Self {
        Arc::make_mut(&mut self.room).retry_after = Some(after);
        self
    }

    /// Configures the responses to shed requests. Default: [`ResponseConfig::new`].
    pub fn responses(mut self, config: &ResponseConfig) -> Self {
        Arc::make_mut(&mut self.room).responder = config.responder();
        self
    }

    /// How many requests are in flight, for a gauge.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.room.gauge.in_flight()
    }

    /// How many requests of a class were shed so far. With the feature `metrics` of limiter-core
    /// they are counted besides in `limiter_shed_total`, for all layers of the process together.
    #[must_use]
    pub fn shed(&self, class: Priority) -> usize {
        self.room.gauge.shed(class)
    }
}

impl<S, C, P: RequestOptions<C>> Layer<S> for LoadShedLayer<C, P> {
    type Service = LoadShed<S, P::Extractor>;

    fn layer(&self, inner: S) -> Self::Service {
        self.room.log_mistakes();
        let classify = self.options.apply(Arc::clone(&self.classify));
        LoadShed::new(inner, Arc::clone(&self.room), classify)
    }
}

impl<C, P: Clone> Clone for LoadShedLayer<C, P> {
    fn clone(&self) -> Self {
        Self {
            room: Arc::clone(&self.room),
            classify: Arc::clone(&self.classify),
            options: self.options.clone(),
        }
    }
}

impl<C, P> fmt::Debug for LoadShedLayer<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadShedLayer")
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}
