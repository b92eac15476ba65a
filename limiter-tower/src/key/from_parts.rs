//! Keys from the values of axum's extractors.
//!
//! Applications authenticate with extractors, and the key should be the same identity. The
//! extractor runs on a copy of the request's head, so the handler can extract the value again. Its
//! rejection becomes the response, without a body above `MAX_BODY_BYTES`.
//!
//! Invariant: a request that the extractor rejects is not charged. Tests:
//! `axum_extractor_yields_key_and_its_rejection_the_response` in `tests/http/keys.rs`.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::Request;

use super::async_key::head_of;
use super::extraction::PendingKey;
use super::extraction::{Extraction, IntoExtraction, KeyRejection};
use super::extractor::KeyExtractor;

/// Limits by the value of an axum extractor, or a tuple of them: any type that implements
/// `FromRequestParts` with this state, such as verified claims, a session, path parameters. The
/// closure converts the value to a key ([`IntoExtraction`]).
///
/// A request that the extractor rejects is answered with the extractor's own response, status,
/// headers and body; a gRPC client receives the code that corresponds to the status. The extractor
/// works on a copy of the request's head, so a handler that needs the same value extracts it again.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use axum::{Router, body::Body, extract::{FromRequestParts, Request}, routing::get};
/// # use http::{Method, StatusCode, request::Parts};
/// # use limiter_core::{Key, Limiter, ManualClock, Policy};
/// # use limiter_tower::{RateLimitLayer, key};
/// # use tower::ServiceExt;
/// #[derive(Clone)]
/// struct App {
///     secret: &'static str,
/// }
///
/// struct Claims {
///     sub: String,
/// }
///
/// impl FromRequestParts<App> for Claims {
///     type Rejection = (StatusCode, &'static str);
///
///     async fn from_request_parts(head: &mut Parts, app: &App) -> Result<Self, Self::Rejection> {
///         let token = head.headers.get("authorization").and_then(|token| token.to_str().ok());
///         let sub = token.and_then(|token| token.strip_suffix(app.secret));
///         let sub = sub.ok_or((StatusCode::UNAUTHORIZED, "who are you?"))?;
///         Ok(Self { sub: sub.to_owned() })
///     }
/// }
///
/// let app = App { secret: ".signed" };
/// let by_user_and_method = key::from_parts(app, |(method, claims): (Method, Claims)| {
///     Key::from("user:").part(claims.sub).text(":").part(method)
/// });
///
/// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
/// let policy = Policy::sliding_window("api").limit(1).window("1m").build()?;
/// let app: Router = Router::new()
///     .route("/", get(async || "hello"))
///     .layer(RateLimitLayer::new(&limits, policy).key(by_user_and_method));
/// let ask = async |token: &str| {
///     let request = Request::get("/").header("authorization", token).body(Body::empty()).unwrap();
///     app.clone().oneshot(request).await.unwrap().status()
/// };
/// assert_eq!(ask("ann.signed").await, 200);
/// assert_eq!(ask("ann.signed").await, 429);
/// assert_eq!(ask("bob.signed").await, 200);
/// assert_eq!(ask("eve").await, 401);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// # Cancel safety
///
/// If the future is dropped while the extractor runs, the request is not charged.
pub fn from_parts<T, S, F, A>(state: S, key: F) -> FromParts<T, S, F>
where
    T: FromRequestParts<S> + 'static,
    S: Send + Sync + 'static,
    F: Fn(T) -> A + Send + Sync + 'static,
    A: IntoExtraction,
{
    FromParts {
        state_and_key: Arc::new((state, key)),
        extracted: PhantomData,
    }
}

/// Extracts the key with axum's extractor `T`. Created by [`from_parts`].
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct FromParts<T, S, F> {
    state_and_key: Arc<(S, F)>,
    extracted: PhantomData<fn() -> T>,
}

impl<B, T, S, F, A> KeyExtractor<B> for FromParts<T, S, F>
where
    T: FromRequestParts<S> + 'static,
    S: Send + Sync + 'static,
    F: Fn(T) -> A + Send + Sync + 'static,
    A: IntoExtraction,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        let state_and_key = Arc::clone(&self.state_and_key);
        let mut head = head_of(request);
        Extraction::Pending(PendingKey::new(async move {
            let (state, key) = &*state_and_key;
            let response = match T::from_request_parts(&mut head, state).await {
                Ok(extracted) => return key(extracted).into_extraction(),
                Err(rejection) => rejection.into_response(),
            };
            Extraction::Reject(key_rejection(response).await)
        }))
    }
}

/// The maximum length of a rejection's body that is passed on.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Converts the extractor's response. A body that is longer than the limit, or that fails, is
/// omitted; the headers are kept, as those of a challenge are required.
async fn key_rejection(response: Response) -> KeyRejection {
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, MAX_BODY_BYTES).await;
    Response::from_parts(head, body.unwrap_or_default()).into()
}

impl<T, S, F> Clone for FromParts<T, S, F> {
    fn clone(&self) -> Self {
        Self {
            state_and_key: Arc::clone(&self.state_and_key),
            extracted: PhantomData,
        }
    }
}

impl<T, S, F> fmt::Debug for FromParts<T, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromParts")
            .field("extracted", &std::any::type_name::<T>())
            .finish_non_exhaustive()
    }
}
