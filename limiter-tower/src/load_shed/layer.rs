//! `LoadShedLayer`: the bound on requests in flight, and the capacity reserved for priorities.
//!
//! The setters collect the configuration, which is copied on write; the counter of requests in
//! flight is behind its own `Arc`, so that all clones and services share it. The classifier is a
//! type parameter, and skipped requests are not classified. The decision itself is in
//! `in_flight_counter.rs`.
//!
//! Tests: `tests/load/shed.rs`, and the doctests below.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::ConfigError;
use tower_layer::Layer;

use super::classify::DefaultPriority;
use super::config::ShedConfig;
use super::in_flight_counter::PerPriority;
use super::priority::Priority;
use super::service::LoadShed;
use crate::rate::typestate::{FixedPolicies, RequestOptions, Skipping};
use crate::responses::{Responder, ResponseConfig};
use crate::skip;

/// Limits the concurrent requests of this process and reserves capacity for higher priorities.
/// Requests of lower priorities are shed first.
///
/// A request is in flight from the call until the body of its response has ended or is dropped (for
/// HEAD, until the head is complete), as with
/// [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer), but without a key. A request is
/// admitted while the number of requests in flight, of all priorities, is below the bound minus the
/// capacity reserved for higher priorities.
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
/// assert_eq!(ask("/pay").await.status(), 503, "three requests are in flight until their bodies have ended");
/// assert_eq!(ask("/healthz").await.status(), 200, "probes are not shed");
/// assert_eq!((shed.in_flight(), shed.shed(Priority::Normal), shed.shed(Priority::Critical)), (3, 1, 1));
/// drop((search, payments));
/// assert_eq!(shed.in_flight(), 0);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// # Responses
///
/// | | HTTP | gRPC | `Retry-After` |
/// |---|---|---|---|
/// | admitted | the inner response | the inner response | |
/// | shed | 503 | UNAVAILABLE | the value of [`retry_after`](Self::retry_after), else none |
///
/// The response to a shed request has [`Overloaded`](crate::Overloaded) in its extensions. It is
/// built like the response to a request without a key: [`responses`](Self::responses) selects JSON
/// or plain text, and its closure is not called.
///
/// # Limits of this layer
///
/// The bound is configured: it follows from the memory of the service, its connection pool, or a
/// load test. Requests in other processes and requests that wait in an inner queue are not counted;
/// use [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer) for a limit per client or for all
/// replicas. Requests do not wait: they are shed immediately. Traffic after an upgrade (101) is not
/// counted.
///
/// The classifier must use trusted data. A header that any client can set is not trusted.
///
/// # Contract
///
/// The service is ready when the inner service is ready. An admission takes two atomic operations
/// and no allocation. Clones of the layer, and the services that it wraps, share one counter.
#[must_use = "a layer sheds nothing until a service is wrapped in it"]
pub struct LoadShedLayer<C = DefaultPriority, P = FixedPolicies> {
    config: Arc<ShedConfig>,
    classify: Arc<C>,
    options: P,
}

impl LoadShedLayer {
    /// Admits this many requests at once, at least 1. All requests have the same priority, until
    /// [`priority`](Self::priority) classifies them.
    pub fn new(max_in_flight: usize) -> Self {
        let config = ShedConfig {
            max_in_flight,
            reserved: PerPriority::default(),
            bounds: PerPriority::from_fn(|_| max_in_flight),
            counter: Arc::default(),
            probes: Some(skip::probes()),
            retry_after: None,
            responder: Responder::default(),
            has_logged: Arc::default(),
        };
        Self {
            config: Arc::new(config),
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
            config: self.config,
            classify: Arc::new(classify),
            options: self.options,
        }
    }

    /// Reserves capacity for requests of this priority and of higher priorities. Default: none.
    ///
    /// Reserved capacity is part of the bound: with a bound of 100, 20 reserved for
    /// [`High`](Priority::High) and 10 for [`Critical`](Priority::Critical), a critical request is
    /// admitted while fewer than 100 are in flight, a high one while fewer than 90, others while
    /// fewer than 70.
    pub fn reserve_for(mut self, class: Priority, places: usize) -> Self {
        Arc::make_mut(&mut self.config).reserve_for(class, places);
        self
    }

    /// Verifies the configuration. A layer that is not verified logs the error when it wraps a
    /// service.
    ///
    /// # Errors
    ///
    /// The bound is 0, capacity is reserved for the lowest priority, or the reservations leave no
    /// capacity for the lowest priority.
    pub fn verify(self) -> Result<Self, ConfigError> {
        self.config.verify()?;
        Ok(self)
    }

    /// Lets requests pass without counting them, in addition to probes. The argument is that of
    /// [`RateLimitLayer::skip`](crate::RateLimitLayer::skip). If it is called more than once, a
    /// request passes when any of the arguments skips it. Skipped requests are not classified.
    pub fn skip<S>(self, skip: S) -> LoadShedLayer<C, Skipping<S, P>> {
        LoadShedLayer {
            config: self.config,
            classify: self.classify,
            options: Skipping::new(skip, self.options),
        }
    }

    /// Counts and sheds health probes like other requests. Default: the requests of
    /// [`skip::probes`] pass, so that an orchestrator does not restart a busy process.
    pub fn with_probes(mut self) -> Self {
        Arc::make_mut(&mut self.config).probes = None;
        self
    }

    /// Sets `Retry-After` of shed requests, in whole seconds, rounded up. gRPC clients receive
    /// `grpc-retry-pushback-ms`. Default: neither, because the time is unknown.
    pub fn retry_after(mut self, after: Duration) -> Self {
        Arc::make_mut(&mut self.config).retry_after = Some(after);
        self
    }

    /// Configures the responses to shed requests. Default: [`ResponseConfig::new`].
    pub fn responses(mut self, config: &ResponseConfig) -> Self {
        Arc::make_mut(&mut self.config).responder = config.responder();
        self
    }

    /// Returns the number of requests in flight, for a gauge.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.config.counter.in_flight()
    }

    /// Returns the number of shed requests of a priority. With the feature `metrics` of
    /// limiter-core, `limiter_shed_total` also counts them, for all layers of the process.
    #[must_use]
    pub fn shed(&self, class: Priority) -> usize {
        self.config.counter.shed(class)
    }
}

impl<S, C, P: RequestOptions<C>> Layer<S> for LoadShedLayer<C, P> {
    type Service = LoadShed<S, P::Extractor>;

    fn layer(&self, inner: S) -> Self::Service {
        self.config.log_errors();
        let classify = self.options.apply(Arc::clone(&self.classify));
        LoadShed::new(inner, Arc::clone(&self.config), classify)
    }
}

impl<C, P: Clone> Clone for LoadShedLayer<C, P> {
    fn clone(&self) -> Self {
        Self {
            config: Arc::clone(&self.config),
            classify: Arc::clone(&self.classify),
            options: self.options.clone(),
        }
    }
}

impl<C, P> fmt::Debug for LoadShedLayer<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadShedLayer")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
