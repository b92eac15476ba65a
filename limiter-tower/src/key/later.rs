//! Keys that take some waiting to find.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Request;
use http::request::Parts;

use super::ExtractKey;
use super::answer::{Answer, IntoAnswer};

/// An [`Answer`] that is still to come: what an extractor answers that has to wait, for a session to be loaded, say.
///
/// Meanwhile the request waits with the inner service that was found ready. Dropped, it asks nothing more.
///
/// [`from_async`] makes one for every request. An extractor of your own can do without where it knows the answer:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use http::{Request, StatusCode};
/// use limiter_core::Key;
/// use limiter_tower::key::{Answer, ExtractKey, Later};
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Default)]
/// struct Sessions {
///     known: Mutex<HashMap<String, u64>>,
/// }
///
/// impl Sessions {
///     fn known(&self, token: &str) -> Option<u64> {
///         self.known.lock().unwrap().get(token).copied()
///     }
///
///     /// Stands for a look into a database.
///     async fn load(&self, token: String) -> Option<u64> {
///         let user = token.strip_prefix("user-")?.parse().ok()?;
///         self.known.lock().unwrap().insert(token, user);
///         Some(user)
///     }
/// }
///
/// struct ByUser(Arc<Sessions>);
///
/// impl<B> ExtractKey<B> for ByUser {
///     fn extract<'a>(&'a self, request: &'a Request<B>) -> Answer<'a> {
///         let Some(token) = request.headers().get("x-session").and_then(|token| token.to_str().ok()) else {
///             return Answer::Refuse(StatusCode::UNAUTHORIZED.into());
///         };
///         if let Some(user) = self.0.known(token) {
///             return Answer::Key(user.into());
///         }
///         let (sessions, token) = (Arc::clone(&self.0), token.to_owned());
///         Answer::Later(Later::new(async move {
///             match sessions.load(token).await {
///                 Some(user) => Answer::Key(user.into()),
///                 None => Answer::Refuse(StatusCode::UNAUTHORIZED.into()),
///             }
///         }))
///     }
/// }
///
/// let by_user = ByUser(Arc::default());
/// let request = Request::builder().header("x-session", "user-7").body(()).unwrap();
/// let Answer::Later(later) = by_user.extract(&request) else { panic!("it was not asked before") };
/// assert_eq!(later.await, Answer::Key(Key::from(7_u64)));
/// assert_eq!(by_user.extract(&request), Answer::Key(Key::from(7_u64)), "now it is known");
/// # });
/// ```
#[must_use = "it is to be answered as `Answer::Later`"]
pub struct Later(Pin<Box<dyn Future<Output = Answer<'static>> + Send>>);

impl Later {
    /// Answers what `answer` ends with. It is polled as a part of the response's future, and not before that.
    pub fn new(answer: impl Future<Output = Answer<'static>> + Send + 'static) -> Self {
        Self(Box::pin(answer))
    }

    /// Answers what `then` makes of the answer, once it has come.
    pub(crate) fn then(self, then: impl FnOnce(Answer<'static>) -> Answer<'static> + Send + 'static) -> Self {
        Self::new(async move {
            let mut answer = self.await;
            while let Answer::Later(later) = answer {
                answer = later.await;
            }
            then(answer)
        })
    }
}

impl Future for Later {
    type Output = Answer<'static>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

/// Limits by what an async function finds out about the request: it gets a copy of the request's head, and answers what a
/// closure may ([`IntoAnswer`]).
///
/// The function answers for every request before the limiter is asked, so it should be cheap, and bounded in time; what it
/// is given to look up is not limited by this layer.
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
/// Dropped while the function runs, the request is not charged.
pub fn from_async<F, Answering>(find: F) -> FromAsync<F>
where
    F: Fn(Parts) -> Answering,
    Answering: Future<Output: IntoAnswer> + Send + 'static,
{
    FromAsync(find)
}

/// Asks an async function for the key. Made by [`from_async`].
#[derive(Clone)]
#[must_use = "an extractor is to be given to `RateLimitLayer::key`"]
pub struct FromAsync<F>(F);

impl<B, F, Answering> ExtractKey<B> for FromAsync<F>
where
    F: Fn(Parts) -> Answering,
    Answering: Future<Output: IntoAnswer> + Send + 'static,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Answer<'a> {
        let answering = (self.0)(head_of(request));
        Answer::Later(Later::new(async move { answering.await.into_answer() }))
    }
}

impl<F> fmt::Debug for FromAsync<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromAsync")
    }
}

/// A copy of all but the body.
pub(super) fn head_of<B>(request: &Request<B>) -> Parts {
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = request.method().clone();
    head.uri = request.uri().clone();
    head.version = request.version();
    head.headers = request.headers().clone();
    head.extensions = request.extensions().clone();
    head
}
