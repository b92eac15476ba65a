//! Filters for requests that are not limited, for
//! [`RateLimitLayer::skip`](crate::RateLimitLayer::skip).
//!
//! | filter | skipped requests |
//! |---|---|
//! | [`probes()`] | health and readiness probes |
//! | [`paths(["/internal/alive"])`](paths) | GET and HEAD of these paths |
//! | a closure over `&Request<B>` | requests for which it returns `true` |

// Tests: the doctest of `probes`, `tests/http/keys.rs`
// (`skipped_request_needs_no_key_and_is_not_counted`), `tests/load/shed.rs`
// (`probes_and_skipped_requests_are_not_counted`).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::{Method, Request};

use crate::key::{Extraction, KeyExtractor};

/// Decides whether a request with a body of type `B` passes without limits. Implemented by
/// closures.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not select `Request<{B}>` to skip",
    note = "give `limiter_tower::skip::probes()`, or a closure that takes `&Request<{B}>` and returns a `bool`"
)]
pub trait SkipRequest<B> {
    /// Returns whether the request passes without being counted.
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

/// Skips health and readiness probes: GET and HEAD of `/health`, `/healthz`,
/// `/health/live`, `/health/ready`, `/live`, `/livez`, `/ready`, `/readyz` and `/ping`, and the
/// methods `Check`, `List` and `Watch` of gRPC's service `grpc.health.v1.Health`.
/// [`and`](Paths::and) adds a path.
///
/// Paths are compared literally, without the query: `/health/`, `/HEALTH` and `/%68ealth` are
/// limited. Inside axum's `nest` the prefix is removed: in a router nested at `/users`, a request
/// for `/users/ping` has the path `/ping` and is skipped. Any client can call these paths without a
/// limit, so their handlers should be cheap.
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

/// Skips GET and HEAD of these paths, compared literally, without the query.
pub fn paths<P: Into<Cow<'static, str>>>(paths: impl IntoIterator<Item = P>) -> Paths {
    Paths {
        paths: paths.into_iter().map(Into::into).collect(),
        with_grpc_health: false,
    }
}

/// Skips requests by path. Created by [`probes`] and [`paths`].
#[derive(Clone, Debug)]
#[must_use = "pass it to `RateLimitLayer::skip`"]
pub struct Paths {
    paths: Vec<Cow<'static, str>>,
    with_grpc_health: bool,
}

impl Paths {
    /// Also skips GET and HEAD of this path.
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

/// Applies the extractor or classifier `E` unless `S` skips the request. Created by
/// [`RateLimitLayer::skip`](crate::RateLimitLayer::skip) and the `skip` of other layers.
pub struct UnlessSkipped<S, E> {
    skip: Arc<S>,
    key: Arc<E>,
}

impl<S, E> UnlessSkipped<S, E> {
    pub(crate) fn new(skip: Arc<S>, key: Arc<E>) -> Self {
        Self { skip, key }
    }

    /// Applies `apply` to the inner extractor unless the request is skipped.
    pub(crate) fn unless_skipped<'a, B, T>(
        &'a self,
        request: &Request<B>,
        apply: impl FnOnce(&'a E) -> T,
    ) -> Option<T>
    where
        S: SkipRequest<B>,
    {
        (!self.skip.skips(request)).then(|| apply(&self.key))
    }
}

impl<B, S: SkipRequest<B>, E: KeyExtractor<B>> KeyExtractor<B> for UnlessSkipped<S, E> {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        self.unless_skipped(request, |key| key.extract(request))
            .unwrap_or(Extraction::Skip)
    }
}

impl<S, E> fmt::Debug for UnlessSkipped<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnlessSkipped")
    }
}
