//! The layer: how much may be in flight, and what is kept for whom.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use limiter_core::ConfigError;
use tower_layer::Layer;

use super::gauge::{Gauge, PerClass};
use super::{Classify, Normal, Place, Priority, Shed};
use crate::respond::{Answers, Responder};
use crate::skip::{self, Paths, SkipRequest, Unless};

/// Bounds how many requests are in flight at once in this process, and keeps room for the important: the less a request matters,
/// the sooner it is shed.
///
/// A request has its place from when it is called until its response's body has ended or is dropped, as with
/// [`InFlightLayer`](crate::InFlightLayer); unlike there it is nobody's in particular. One of a class is admitted while fewer are in
/// flight, of all classes, than the bound less what is kept for the classes above it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use axum::{Router, body::Body, extract::Request, routing::get};
/// use limiter_tower::{Priority, ShedLayer};
/// use std::time::Duration;
/// use tower::ServiceExt;
///
/// let shed = ShedLayer::at_most(3)?
///     .reserve(Priority::High, 1)?
///     .reserve(Priority::Critical, 1)?
///     .priority(|request: &Request| match request.uri().path() {
///         "/pay" => Priority::Critical,
///         _ => Priority::Normal,
///     })
///     .retry_after(Duration::from_secs(5));
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
/// The response to a request that is shed holds [`Overloaded`](crate::Overloaded) in its extensions. It is formed as the one to a
/// request without a key: [`answers`](Self::answers) says whether in JSON or in plain text, and its hook is not asked.
///
/// # What it does not do
///
/// The bound is the user's: what the service bears, by its memory, its pool of connections or a test of load. What is in flight
/// elsewhere is not counted, nor is what waits in a queue further in; a bound for a client, or for all processes together, is
/// [`InFlightLayer`](crate::InFlightLayer)'s. Nobody waits: who is shed hears of it at once. What is spoken after an upgrade (101) is
/// not in flight.
///
/// Who says how much a request matters should be believed: a header that any client may write is not.
///
/// # Contract
///
/// Readiness is the inner service's. To be admitted takes two atomic steps and no allocation. Clones of the layer, and the services
/// that it wraps, count together.
#[must_use = "a layer sheds nothing until a service is wrapped in it"]
pub struct ShedLayer<C = Normal> {
    room: Arc<Room>,
    classify: Arc<C>,
}

/// How much may be in flight, and what is said to the rest.
#[derive(Clone, Debug)]
pub struct Room {
    /// The bound for all.
    at_most: usize,
    /// What is kept for each class.
    reserved: PerClass<usize>,
    /// How many are in flight, of whatever class, where one of a class is not admitted any more.
    most: PerClass<usize>,
    gauge: Arc<Gauge>,
    probes: Option<Paths>,
    pub(super) retry_after: Option<Duration>,
    pub(super) responder: Responder,
}

impl Room {
    #[inline]
    pub(super) fn class_of<B>(&self, classify: &impl Classify<B>, request: &Request<B>) -> Option<Priority> {
        match &self.probes {
            Some(probes) if probes.skips(request) => None,
            _ => classify.classify(request),
        }
    }

    #[inline]
    pub(super) fn enter(&self, class: Priority) -> Option<Place> {
        self.gauge.enter(class, *self.most.get(class))
    }

    fn reserve(&mut self, class: Priority, places: usize) -> Result<(), ConfigError> {
        *self.reserved.get_mut(class) = places;
        let above = |class| Priority::ALL.into_iter().filter(move |other| *other > class);
        let kept = |class| {
            above(class).fold(0_usize, |kept, other| {
                kept.saturating_add(*self.reserved.get(other))
            })
        };
        if class == Priority::Sheddable || kept(Priority::Sheddable) >= self.at_most {
            return Err(ConfigError::Invalid {
                what: "number of places that are kept",
                value: format!("{places} for {class:?}"),
                expected: format!(
                    "fewer than {} in all, for classes above {:?}",
                    self.at_most,
                    Priority::Sheddable
                ),
            });
        }
        self.most = PerClass::of(|class| self.at_most.saturating_sub(kept(class)));
        Ok(())
    }
}

impl ShedLayer {
    /// Admits so many requests at once. All matter alike, until [`priority`](Self::priority) says how much each does.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for zero.
    pub fn at_most(requests: usize) -> Result<Self, ConfigError> {
        if requests == 0 {
            return Err(ConfigError::Invalid {
                what: "number of requests in flight",
                value: requests.to_string(),
                expected: "at least 1".to_owned(),
            });
        }
        let room = Room {
            at_most: requests,
            reserved: PerClass::default(),
            most: PerClass::of(|_| requests),
            gauge: Arc::default(),
            probes: Some(skip::probes()),
            retry_after: None,
            responder: Responder::default(),
        };
        Ok(Self {
            room: Arc::new(room),
            classify: Arc::new(Normal::new()),
        })
    }

    /// How much a request matters: a closure over the request, which names its type, `|request: &Request| …`, and answers a
    /// [`Priority`], or an [`Option`] of one, of which `None` lets the request pass, uncounted. Default: [`Priority::Normal`]. It is said once, and before [`skip`](Self::skip): what was
    /// skipped before would not be any more.
    ///
    /// ```compile_fail,E0599
    /// # use http::Request;
    /// use limiter_tower::{Priority, ShedLayer, skip};
    ///
    /// let shed = ShedLayer::at_most(100)?
    ///     .skip(skip::paths(["/internal/alive"]))
    ///     .priority(|_: &Request<String>| Priority::High);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn priority<T>(self, classify: T) -> ShedLayer<T> {
        ShedLayer {
            room: self.room,
            classify: Arc::new(classify),
        }
    }
}

impl<C> ShedLayer<C> {
    /// Keeps so many places for requests of this class and of those above it. Default: none are kept.
    ///
    /// They come out of the bound: with 100 at most, 20 for [`High`](Priority::High) and 10 for [`Critical`](Priority::Critical), a
    /// critical request is admitted while fewer than 100 are in flight, a high one while fewer than 90, others while fewer than 70.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for the lowest class, above which nothing is kept from, and where nothing would be left for it.
    pub fn reserve(mut self, class: Priority, places: usize) -> Result<Self, ConfigError> {
        Arc::make_mut(&mut self.room).reserve(class, places)?;
        Ok(self)
    }

    /// Lets requests pass that are not to be counted, beside probes, as
    /// [`RateLimitLayer::skip`](crate::RateLimitLayer::skip). To be said after [`priority`](Self::priority).
    pub fn skip<S>(self, skip: S) -> ShedLayer<Unless<S, C>> {
        ShedLayer {
            room: self.room,
            classify: Arc::new(Unless::new(skip, self.classify)),
        }
    }

    /// Counts and sheds probes as other requests. Default: those that [`skip::probes`] names pass, so that a busy process is not
    /// taken for a dead one, and ended.
    pub fn with_probes(mut self) -> Self {
        Arc::make_mut(&mut self.room).probes = None;
        self
    }

    /// When a client that is shed is to come back: `Retry-After`, in whole seconds, rounded up; for gRPC's `grpc-retry-pushback-ms`.
    /// Default: it is not told, since nobody knows.
    pub fn retry_after(mut self, after: Duration) -> Self {
        Arc::make_mut(&mut self.room).retry_after = Some(after);
        self
    }

    /// How clients are answered. Default: as [`Answers::new`].
    pub fn answers(mut self, answers: &Answers) -> Self {
        let room = Arc::make_mut(&mut self.room);
        room.responder.change(|_| answers.clone());
        self
    }

    /// How many requests are in flight, for a gauge.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.room.gauge.in_flight()
    }

    /// How many requests of a class were shed so far. With the feature `metrics` of limiter-core they are counted besides in
    /// `limiter_shed_total`, for all layers of the process together.
    #[must_use]
    pub fn shed(&self, class: Priority) -> usize {
        self.room.gauge.shed(class)
    }
}

impl<S, C> Layer<S> for ShedLayer<C> {
    type Service = Shed<S, C>;

    fn layer(&self, inner: S) -> Shed<S, C> {
        Shed::new(inner, Arc::clone(&self.room), Arc::clone(&self.classify))
    }
}

impl<C> Clone for ShedLayer<C> {
    fn clone(&self) -> Self {
        Self {
            room: Arc::clone(&self.room),
            classify: Arc::clone(&self.classify),
        }
    }
}

impl<C> fmt::Debug for ShedLayer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedLayer")
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}
