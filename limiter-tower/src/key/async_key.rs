//! Keys that an async function finds.
//!
//! A key can need a lookup, such as the user of a session token. The function receives a copy of
//! the request's head, because the body cannot be shared with a future that outlives the call. Its
//! future becomes an [`Extraction::Pending`], which the layer's future polls before it decides.
//!
//! Invariant: a request is not charged before the key is found, and not at all if its future is
//! dropped before. Tests: `tests/decisions/pending_keys.rs`, `tests/http/keys.rs`.

use std::fmt;

use http::Request;
use http::request::Parts;

use super::extraction::{Extraction, IntoExtraction, PendingKey};
use super::extractor::KeyExtractor;

/// Limits by the result of an async function. The function receives a copy of the request's head,
/// and returns the same types as a closure ([`IntoExtraction`]).
///
/// The function runs for every request before the limiter is called, so it should be cheap and
/// bounded in time. This layer does not limit its lookups.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use std::{collections::HashMap, convert::Infallible, sync::Arc};
/// # use http::{Request, Response, StatusCode, request::Parts};
/// # use limiter_core::{Limiter, ManualClock, Policy};
/// # use limiter_tower::{RateLimitLayer, key};
/// # use tower::{Layer, ServiceExt, service_fn};
/// #[derive(Default)]
/// struct Sessions(HashMap<String, u64>);
///
/// impl Sessions {
///     async fn user_of(&self, token: &str) -> Option<u64> {
///         self.0.get(token).copied()
///     }
/// }
///
/// let sessions = Arc::new(Sessions(HashMap::from([("a".to_owned(), 7), ("b".to_owned(), 7)])));
/// let by_user = key::from_async(move |head: Parts| {
///     let sessions = Arc::clone(&sessions);
///     async move {
///         let token = head.headers.get("x-session").and_then(|token| token.to_str().ok());
///         let user = sessions.user_of(token.ok_or(StatusCode::UNAUTHORIZED)?).await;
///         user.ok_or(StatusCode::UNAUTHORIZED)
///     }
/// });
///
/// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
/// let policy = Policy::sliding_window("api").limit(1).window("1m").build()?;
/// let service = RateLimitLayer::new(&limits, policy).key(by_user).layer(service_fn(
///     async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())),
/// ));
/// let ask = async |token: &str| {
///     let request = Request::builder().header("x-session", token).body(()).unwrap();
///     service.clone().oneshot(request).await.unwrap().status()
/// };
/// assert_eq!(ask("a").await, 200);
/// assert_eq!(ask("b").await, 429, "the same user");
/// assert_eq!(ask("c").await, 401);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// # Cancel safety
///
/// If the future is dropped while the function runs, the request is not charged.
pub fn from_async<F, Answering>(find: F) -> FromAsync<F>
where
    F: Fn(Parts) -> Answering,
    Answering: Future<Output: IntoExtraction> + Send + 'static,
{
    FromAsync(find)
}

/// Calls an async function for the key. Created by [`from_async`].
#[derive(Clone)]
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct FromAsync<F>(F);

impl<B, F, Answering> KeyExtractor<B> for FromAsync<F>
where
    F: Fn(Parts) -> Answering,
    Answering: Future<Output: IntoExtraction> + Send + 'static,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        let answering = (self.0)(head_of(request));
        Extraction::Pending(PendingKey::new(async move { answering.await.into_extraction() }))
    }
}

impl<F> fmt::Debug for FromAsync<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromAsync")
    }
}

/// Copies a request without its body.
pub(super) fn head_of<B>(request: &Request<B>) -> Parts {
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = request.method().clone();
    head.uri = request.uri().clone();
    head.version = request.version();
    head.headers = request.headers().clone();
    head.extensions = request.extensions().clone();
    head
}
