//! Which requests are not limited: given to [`RateLimitLayer::skip`](crate::RateLimitLayer::skip).
//!
//! | | what passes |
//! |---|---|
//! | [`probes()`] | what looks after health and readiness |
//! | [`paths(["/internal/alive"])`](paths) | GET and HEAD of these paths |
//! | a closure over `&Request<B>` | where it returns `true` |

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::{Method, Request};

use crate::key::{Extraction, KeyExtractor};

/// Says of a request with a body of type `B` whether it passes unlimited. Closures implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which `Request<{B}>` are skipped",
    note = "give `limiter_tower::skip::probes()`, or a closure that takes `&Request<{B}>` and returns a `bool`"
)]
pub trait SkipRequest<B> {
    /// Whether it passes, uncounted.
    fn skips(&self, request: &Request<B>) -> bool;
}

#[diagnostic::do_not_recommend]
impl<F: Fn(&Request<B>) -> bool, B> SkipRequest<B> for F {
    fn skips(&self, request: &Request<B>) -> bool {
        self(request)
    }
}

const PROBES: [&str; 9] = [
    "/health",
    "/healthz",
    "/health/live",
    "/health/ready",
    "/live",
    "/livez",
    "/ready",
    "/readyz",
    "/ping",
];
const GRPC_HEALTH: &str = "/grpc.health.v1.Health/";
const GRPC_HEALTH_METHODS: [&str; 3] = ["Check", "List", "Watch"];

/// Lets those pass who look after health and readiness: GET and HEAD of `/health`, `/healthz`,
/// `/health/live`, `/health/ready`, `/live`, `/livez`, `/ready`, `/readyz` and `/ping`, and the
/// methods `Check`, `List` and `Watch` of gRPC's service `grpc.health.v1.Health`.
/// [`and`](Paths::and) adds a path.
///
/// Paths are compared as they were sent, without the query: `/health/`, `/HEALTH` and `/%68ealth`
/// are others, and limited. Below axum's `nest` they lack their prefix: in a router that is nested
/// at `/users`, a request for `/users/ping` is one for `/ping`, and passes. Anybody may ask for
/// these paths as often as it likes, so what answers there should be cheap.
///
/// ```
/// # use http::Request;
/// use limiter_tower::skip::{self, SkipRequest};
///
/// let probes = skip::probes().and("/internal/alive");
/// let skips = |request: http::request::Builder| probes.skips(&request.body(()).unwrap());
/// assert!(skips(Request::get("/readyz?verbose")));
/// assert!(skips(Request::get("/internal/alive")));
/// assert!(skips(Request::post("/grpc.health.v1.Health/Check")));
/// assert!(!skips(Request::get("/grpc.health.v1.Health/Check")));
/// assert!(!skips(Request::post("/grpc.health.v1.Health/../search")));
/// assert!(!skips(Request::post("/health")));
/// assert!(!skips(Request::get("/healthy")));
/// ```
pub fn probes() -> Paths {
    Paths {
        paths: PROBES.map(Cow::Borrowed).into(),
        with_grpc_health: true,
    }
}

/// Lets GET and HEAD of these paths pass, as they were sent, without the query.
pub fn paths<P: Into<Cow<'static, str>>>(paths: impl IntoIterator<Item = P>) -> Paths {
    Paths {
        paths: paths.into_iter().map(Into::into).collect(),
        with_grpc_health: false,
    }
}

/// Skips by the path. Made by [`probes`] and [`paths`].
#[derive(Clone, Debug)]
#[must_use = "it is to be given to `RateLimitLayer::skip`"]
pub struct Paths {
    paths: Vec<Cow<'static, str>>,
    with_grpc_health: bool,
}

impl Paths {
    /// Lets GET and HEAD of this path pass as well.
    pub fn and(mut self, path: impl Into<Cow<'static, str>>) -> Self {
        self.paths.push(path.into());
        self
    }
}

impl<B> SkipRequest<B> for Paths {
    fn skips(&self, request: &Request<B>) -> bool {
        let path = request.uri().path();
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        (reads && self.paths.iter().any(|skipped| skipped == path))
            || (self.with_grpc_health
                && *request.method() == Method::POST
                && path
                    .strip_prefix(GRPC_HEALTH)
                    .is_some_and(|method| GRPC_HEALTH_METHODS.contains(&method)))
    }
}

/// Finds a key, or a class, as `E` does, unless `S` skips the request. Made by
/// [`RateLimitLayer::skip`](crate::RateLimitLayer::skip) and its like.
pub struct Unless<S, E> {
    skip: Arc<S>,
    key: Arc<E>,
}

impl<S, E> Unless<S, E> {
    pub(crate) fn new(skip: Arc<S>, key: Arc<E>) -> Self {
        Self { skip, key }
    }

    /// What is said of a request that is not skipped.
    pub(crate) fn unless_skipped<'a, B, T>(
        &'a self,
        request: &Request<B>,
        say: impl FnOnce(&'a E) -> T,
    ) -> Option<T>
    where
        S: SkipRequest<B>,
    {
        (!self.skip.skips(request)).then(|| say(&self.key))
    }
}

impl<B, S: SkipRequest<B>, E: KeyExtractor<B>> KeyExtractor<B> for Unless<S, E> {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        self.unless_skipped(request, |key| key.extract(request))
            .unwrap_or(Extraction::Skip)
    }
}

impl<S, E> fmt::Debug for Unless<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unless")
    }
}
