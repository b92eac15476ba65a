//! The template of the matched axum route as the key.
//!
//! Limits for each path would give every value of a path parameter a budget of its own. The router
//! stores the template of the route in the request's extensions before it calls the layers of the
//! route, and the template is the key. A request without a template is rejected with 404.
//!
//! Invariant: the number of keys is at most the number of routes. Tests:
//! `route_has_one_budget_for_all_parameters` in `tests/http/keys.rs`.

use axum::extract::MatchedPath;
use http::{Request, StatusCode};
use limiter_core::__private::ReportThrottle;
use limiter_core::Key;

use super::extraction::{Extraction, KeyRejection, Missing};
use super::extractor::KeyExtractor;

/// Limits each route of an axum router separately: `/users/1` and `/users/2` share the budget of
/// `/users/{id}`.
///
/// A request that no route matches is rejected with 404 (NOT_FOUND), unless
/// [`or_reject`](MatchedPathKey::or_reject) or [`or_skip`](MatchedPathKey::or_skip) is set; a
/// router with a fallback needs the latter. If the layer wraps the router, and is not added to it,
/// every request is rejected, and a warning is logged at most once in ten seconds.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use axum::{Router, body::Body, extract::Request, routing::get};
/// # use limiter_core::{Limiter, ManualClock, Policy};
/// # use limiter_tower::{RateLimitLayer, key};
/// # use tower::ServiceExt;
/// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
/// let policy = Policy::sliding_window("routes").limit(1).window("1m").build()?;
/// let app: Router = Router::new()
///     .route("/users/{id}", get(async || "a user"))
///     .route("/search", get(async || "found"))
///     .layer(RateLimitLayer::new(&limits, policy).key(key::matched_path()));
///
/// let ask = async |path: &str| {
///     let request = Request::get(path).body(Body::empty()).unwrap();
///     app.clone().oneshot(request).await.unwrap().status()
/// };
/// assert_eq!(ask("/users/1").await, 200);
/// assert_eq!(ask("/users/2").await, 429);
/// assert_eq!(ask("/search").await, 200);
/// assert_eq!(ask("/nowhere").await, 404);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
pub fn matched_path() -> MatchedPathKey {
    MatchedPathKey {
        missing: Missing::default(),
    }
}

/// Returns the template of the matched route as the key. Created by [`matched_path`].
#[derive(Clone, Debug)]
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct MatchedPathKey {
    missing: Missing,
}

impl MatchedPathKey {
    /// Rejects a request that no route matches with this status or response. Default: 404.
    pub fn or_reject(self, rejection: impl Into<KeyRejection>) -> Self {
        Self {
            missing: Missing::Refuse(rejection.into()),
        }
    }

    /// Lets a request that no route matches pass, neither limited nor counted. Default: it is
    /// rejected.
    pub fn or_skip(self) -> Self {
        Self {
            missing: Missing::Skip,
        }
    }
}

impl<B> KeyExtractor<B> for MatchedPathKey {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        match request.extensions().get::<MatchedPath>() {
            Some(path) => Extraction::Key(Key::from(path.as_str())),
            None => self.missing.extraction(unmatched),
        }
    }
}

fn unmatched() -> KeyRejection {
    static LOGGED: ReportThrottle = ReportThrottle::new();
    if LOGGED.is_due() {
        tracing::warn!("matched path missing: no route matches, or the layer is outside the router");
    }
    KeyRejection::from(StatusCode::NOT_FOUND)
}
