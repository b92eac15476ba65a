//! What an extractor answers.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use limiter_core::Key;

use crate::request_limits::RequestLimits;

/// What an extractor says about a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Extraction<'a> {
    /// The request takes the permits of this key, which may be a part of it.
    Key(Key<'a>),
    /// The request takes what these say, whatever the layer limits by.
    Limits(RequestLimits<'a>),
    /// The request is not limited, and not counted.
    Skip,
    /// The request is answered at once, and reaches neither the limiter nor the inner service.
    Reject(KeyRejection),
    /// The answer is still to come.
    Pending(PendingKey),
}

/// What is still to come equals nothing.
impl PartialEq<Extraction<'_>> for Extraction<'_> {
    fn eq(&self, other: &Extraction<'_>) -> bool {
        match (self, other) {
            (Self::Key(key), Extraction::Key(other)) => key == other,
            (Self::Limits(terms), Extraction::Limits(other)) => terms == other,
            (Self::Skip, Extraction::Skip) => true,
            (Self::Reject(refusal), Extraction::Reject(other)) => refusal == other,
            _ => false,
        }
    }
}

/// The response to a request that has no key: a status, and a sentence for the client; or a whole
/// response, which HTTP clients get as it is.
///
/// A gRPC client gets the code that is paired with the status: 400 INVALID_ARGUMENT, 401
/// UNAUTHENTICATED, 403 PERMISSION_DENIED, 500 INTERNAL, …
///
/// # A whole response
///
/// A status alone has no headers, and a 401 is to say how to authenticate (`WWW-Authenticate`, RFC
/// 9110). A whole response does:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use http::{Request, Response, StatusCode, header};
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::key::{self, KeyRejection};
/// use limiter_tower::RateLimitLayer;
/// # use std::convert::Infallible;
/// use tower::{Layer, ServiceExt};
///
/// let mut who_are_you = Response::new("who are you?".into());
/// *who_are_you.status_mut() = StatusCode::UNAUTHORIZED;
/// who_are_you.headers_mut().insert(header::WWW_AUTHENTICATE, "Bearer".parse()?);
///
/// let limits = Limiter::in_process().build();
/// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
/// let layer = RateLimitLayer::new(&limits, policy)
///     .key(key::header("authorization").or_reject(KeyRejection::from(who_are_you)));
///
/// # let service = layer.layer(tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()))));
/// let refused = service.oneshot(Request::new(())).await.unwrap();
/// assert_eq!(refused.status(), 401);
/// assert_eq!(refused.headers()["www-authenticate"], "Bearer");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRejection {
    status: StatusCode,
    message: Cow<'static, str>,
    /// What HTTP clients get in place of the message.
    response: Option<Box<(HeaderMap, Bytes)>>,
}

impl KeyRejection {
    /// ResponseConfig with `status` and `message`.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            message: message.into(),
            response: None,
        }
    }

    /// The status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The text of the response; of a whole one, what a gRPC client is told.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn lacks_key() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "the request lacks what it is limited by")
    }

    pub(crate) fn into_parts(self) -> (StatusCode, Cow<'static, str>) {
        (self.status, self.message)
    }

    /// The whole response, where there is one.
    pub(crate) fn take_response(&mut self) -> Option<Response<Bytes>> {
        let (headers, body) = *self.response.take()?;
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = headers;
        Some(response)
    }
}

/// A whole response: HTTP clients get its status, headers and body. A gRPC client gets the code
/// that is paired with the status, and the body if that is plain text.
///
/// ```
/// use http::{Response, StatusCode};
/// use limiter_tower::key::KeyRejection;
///
/// let response = Response::builder()
///     .status(StatusCode::UNAUTHORIZED)
///     .header("www-authenticate", "Bearer")
///     .body("who are you?".into());
/// let refusal = KeyRejection::from(response?);
/// assert_eq!(refusal.status(), StatusCode::UNAUTHORIZED);
/// # Ok::<(), http::Error>(())
/// ```
impl From<Response<Bytes>> for KeyRejection {
    fn from(response: Response<Bytes>) -> Self {
        let (mut head, body) = response.into_parts();
        let kind = head.headers.get(header::CONTENT_TYPE);
        let is_text = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
        let text = std::str::from_utf8(&body)
            .ok()
            .filter(|text| is_text && !text.is_empty());
        let refusal = match text {
            Some(text) => Self::new(head.status, text.to_owned()),
            None => Self::from(head.status),
        };
        // The server says how the body is framed.
        head.headers.remove(header::CONTENT_LENGTH);
        head.headers.remove(header::TRANSFER_ENCODING);
        Self {
            response: Some(Box::new((head.headers, body))),
            ..refusal
        }
    }
}

/// With the status's own words.
impl From<StatusCode> for KeyRejection {
    fn from(status: StatusCode) -> Self {
        Self::new(status, status.canonical_reason().unwrap_or("refused"))
    }
}

/// As [`StatusCode`]; a number that is no status (below 100, above 999) refuses with 500.
impl From<u16> for KeyRejection {
    fn from(status: u16) -> Self {
        StatusCode::from_u16(status)
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            .into()
    }
}

/// An [`Extraction`] that is still to come: what an extractor answers that has to wait, for a
/// session to be loaded, say.
///
/// Meanwhile the request waits with the inner service that was found ready. Dropped, it asks
/// nothing more.
///
/// [`from_async`](crate::key::from_async) makes one for every request. An extractor of your own can
/// do without where it knows the answer:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use http::{Request, StatusCode};
/// use limiter_core::Key;
/// use limiter_tower::key::{Extraction, KeyExtractor, PendingKey};
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
///     /// Balances for a look into a database.
///     async fn load(&self, token: String) -> Option<u64> {
///         let user = token.strip_prefix("user-")?.parse().ok()?;
///         self.known.lock().unwrap().insert(token, user);
///         Some(user)
///     }
/// }
///
/// struct ByUser(Arc<Sessions>);
///
/// impl<B> KeyExtractor<B> for ByUser {
///     fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
///         let Some(token) = request.headers().get("x-session").and_then(|token| token.to_str().ok()) else {
///             return Extraction::Reject(StatusCode::UNAUTHORIZED.into());
///         };
///         if let Some(user) = self.0.known(token) {
///             return Extraction::Key(user.into());
///         }
///         let (sessions, token) = (Arc::clone(&self.0), token.to_owned());
///         Extraction::Pending(PendingKey::new(async move {
///             match sessions.load(token).await {
///                 Some(user) => Extraction::Key(user.into()),
///                 None => Extraction::Reject(StatusCode::UNAUTHORIZED.into()),
///             }
///         }))
///     }
/// }
///
/// let by_user = ByUser(Arc::default());
/// let request = Request::builder().header("x-session", "user-7").body(()).unwrap();
/// let Extraction::Pending(later) = by_user.extract(&request) else { panic!("it was not asked before") };
/// assert_eq!(later.await, Extraction::Key(Key::from(7_u64)));
/// assert_eq!(by_user.extract(&request), Extraction::Key(Key::from(7_u64)), "now it is known");
/// # });
/// ```
#[must_use = "it is to be answered as `Extraction::Pending`"]
pub struct PendingKey(Pin<Box<dyn Future<Output = Extraction<'static>> + Send>>);

impl PendingKey {
    /// ResponseConfig what `answer` ends with. It is polled as a part of the response's future, and
    /// not before that.
    pub fn new(answer: impl Future<Output = Extraction<'static>> + Send + 'static) -> Self {
        Self(Box::pin(answer))
    }

    /// ResponseConfig what `then` makes of the answer, once it has come.
    pub(crate) fn then(
        self,
        then: impl FnOnce(Extraction<'static>) -> Extraction<'static> + Send + 'static,
    ) -> Self {
        Self::new(async move {
            let mut answer = self.await;
            while let Extraction::Pending(later) = answer {
                answer = later.await;
            }
            then(answer)
        })
    }
}

impl Future for PendingKey {
    type Output = Extraction<'static>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for PendingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingKey")
    }
}

/// What a closure may return for a request.
///
/// A key is a [`Key`], text, a number or an address. `None` refuses the request with 400, `Err`
/// with what it holds: a [`StatusCode`] or a [`KeyRejection`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no key",
    note = "return something owned: a `Key<'static>`, a `String`, a number, an `IpAddr`, an `Option` of one of these, \
            a `Result<_, StatusCode>`, or a `key::Extraction`",
    note = "what takes some waiting to find is given by `key::from_async`"
)]
pub trait IntoExtraction {
    /// The answer.
    fn into_extraction(self) -> Extraction<'static>;
}

impl IntoExtraction for Extraction<'static> {
    fn into_extraction(self) -> Extraction<'static> {
        self
    }
}

impl IntoExtraction for PendingKey {
    fn into_extraction(self) -> Extraction<'static> {
        Extraction::Pending(self)
    }
}

impl<K: Into<Key<'static>>> IntoExtraction for Option<K> {
    fn into_extraction(self) -> Extraction<'static> {
        match self {
            Some(key) => Extraction::Key(key.into()),
            None => Extraction::Reject(KeyRejection::lacks_key()),
        }
    }
}

impl<K: Into<Key<'static>>, R: Into<KeyRejection>> IntoExtraction for Result<K, R> {
    fn into_extraction(self) -> Extraction<'static> {
        match self {
            Ok(key) => Extraction::Key(key.into()),
            Err(refusal) => Extraction::Reject(refusal.into()),
        }
    }
}

macro_rules! answer_from_key {
    ($($type:ty),*) => {$(
        impl IntoExtraction for $type {
            fn into_extraction(self) -> Extraction<'static> {
                Extraction::Key(self.into())
            }
        }
    )*};
}
answer_from_key!(
    Key<'static>,
    &'static str,
    String,
    u16,
    u32,
    u64,
    u128,
    usize,
    i32,
    i64,
    IpAddr
);

/// What to do with a request that lacks what its key is taken from.
#[derive(Clone, Debug, Default)]
pub(super) enum Missing {
    /// Refuse it, as the extractor does by default.
    #[default]
    Default,
    Refuse(KeyRejection),
    Skip,
}

impl Missing {
    #[cold]
    pub(super) fn answer(&self, default: impl FnOnce() -> KeyRejection) -> Extraction<'static> {
        match self {
            Self::Default => Extraction::Reject(default()),
            Self::Refuse(refusal) => Extraction::Reject(refusal.clone()),
            Self::Skip => Extraction::Skip,
        }
    }
}

impl<'a> From<RequestLimits<'a>> for Extraction<'a> {
    fn from(terms: RequestLimits<'a>) -> Self {
        if terms.limits.is_empty() {
            Self::Skip
        } else {
            Self::Limits(terms)
        }
    }
}
