//! The results of key extractors, and the conversions from closures' results.
//!
//! Closures return keys, options, results or pending keys, but a layer handles one type:
//! `Extraction`. A pending key is a boxed future that the future of the layer polls, and a
//! rejection contains the status and message, or the complete response, for the client.
//!
//! Invariant: an absent key is a rejection with 400 and never an unlimited request. Tests:
//! `tests/http/keys.rs`, `tests/decisions/pending_keys.rs`.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use limiter_core::Key;

use crate::request_limits::RequestLimits;

/// The result of a key extractor.
#[derive(Debug)]
#[non_exhaustive]
pub enum Extraction<'a> {
    /// The request takes permits of this key. The key may borrow from the request.
    Key(Key<'a>),
    /// The request has these limits instead of the layer's.
    Limits(RequestLimits<'a>),
    /// The request is neither limited nor counted.
    Skip,
    /// The layer answers the request. Neither the limiter nor the inner service is called.
    Reject(KeyRejection),
    /// A future returns the result.
    Pending(PendingKey),
}

/// A pending result is not equal to any other.
impl PartialEq<Extraction<'_>> for Extraction<'_> {
    fn eq(&self, other: &Extraction<'_>) -> bool {
        match (self, other) {
            (Self::Key(key), Extraction::Key(other)) => key == other,
            (Self::Limits(request_limits), Extraction::Limits(other)) => request_limits == other,
            (Self::Skip, Extraction::Skip) => true,
            (Self::Reject(rejection), Extraction::Reject(other)) => rejection == other,
            _ => false,
        }
    }
}

/// The response to a request without a key: a status with a message, or a complete response for
/// HTTP clients.
///
/// A gRPC client receives the code that corresponds to the status: 400 INVALID_ARGUMENT, 401
/// UNAUTHENTICATED, 403 PERMISSION_DENIED, 500 INTERNAL, …
///
/// # A complete response
///
/// A response with status 401 has to contain `WWW-Authenticate` (RFC 9110). A status alone has no
/// headers; a complete response has:
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
/// let mut unauthorized = Response::new("authentication required".into());
/// *unauthorized.status_mut() = StatusCode::UNAUTHORIZED;
/// unauthorized.headers_mut().insert(header::WWW_AUTHENTICATE, "Bearer".parse()?);
///
/// let limits = Limiter::in_process().build();
/// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
/// let layer = RateLimitLayer::new(&limits, policy)
///     .key(key::header("authorization").or_reject(KeyRejection::from(unauthorized)));
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
    /// The complete response for HTTP clients.
    response: Option<Box<(HeaderMap, Bytes)>>,
}

impl KeyRejection {
    /// Rejects the request with `status` and `message`.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            message: message.into(),
            response: None,
        }
    }

    /// Returns the status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the message of the response. For a complete response, the message for gRPC clients.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn lacks_key() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "the request has no rate limit key")
    }

    pub(crate) fn into_parts(self) -> (StatusCode, Cow<'static, str>) {
        (self.status, self.message)
    }

    /// Takes the complete response.
    pub(crate) fn take_response(&mut self) -> Option<Response<Bytes>> {
        let (headers, body) = *self.response.take()?;
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = headers;
        Some(response)
    }
}

/// A complete response: HTTP clients receive its status, headers and body. A gRPC client receives
/// the code that corresponds to the status, and the start of the body as message if it is plain
/// text.
///
/// ```
/// use http::{Response, StatusCode};
/// use limiter_tower::key::KeyRejection;
///
/// let response = Response::builder()
///     .status(StatusCode::UNAUTHORIZED)
///     .header("www-authenticate", "Bearer")
///     .body("authentication required".into());
/// let rejection = KeyRejection::from(response?);
/// assert_eq!(rejection.status(), StatusCode::UNAUTHORIZED);
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
        let rejection = match text {
            Some(text) => Self::new(head.status, text.to_owned()),
            None => Self::from(head.status),
        };
        // The server frames the body.
        head.headers.remove(header::CONTENT_LENGTH);
        head.headers.remove(header::TRANSFER_ENCODING);
        Self {
            response: Some(Box::new((head.headers, body))),
            ..rejection
        }
    }
}

/// Uses the canonical reason of the status as message.
impl From<StatusCode> for KeyRejection {
    fn from(status: StatusCode) -> Self {
        Self::new(status, status.canonical_reason().unwrap_or("refused"))
    }
}

/// As for [`StatusCode`]. An invalid status (below 100 or above 999) becomes 500.
impl From<u16> for KeyRejection {
    fn from(status: u16) -> Self {
        StatusCode::from_u16(status)
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            .into()
    }
}

/// A future that returns an [`Extraction`], for extractors that have to wait, for example for a
/// session from a database.
///
/// The request waits together with the ready inner service. Dropping the future cancels the
/// extraction.
///
/// [`from_async`](crate::key::from_async) creates one for every request. A custom extractor can
/// return a key immediately if it is cached:
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
///     /// Represents a database query.
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
/// let Extraction::Pending(pending) = by_user.extract(&request) else { panic!("not cached yet") };
/// assert_eq!(pending.await, Extraction::Key(Key::from(7_u64)));
/// assert_eq!(by_user.extract(&request), Extraction::Key(Key::from(7_u64)), "cached");
/// # });
/// ```
#[must_use = "return it as `Extraction::Pending`"]
pub struct PendingKey(Pin<Box<dyn Future<Output = Extraction<'static>> + Send>>);

impl PendingKey {
    /// Creates a pending key from a future. The response's future polls it.
    pub fn new(answer: impl Future<Output = Extraction<'static>> + Send + 'static) -> Self {
        Self(Box::pin(answer))
    }

    /// Applies `then` to the result.
    pub(crate) fn then(
        self,
        then: impl FnOnce(Extraction<'static>) -> Extraction<'static> + Send + 'static,
    ) -> Self {
        Self::new(async move {
            let mut answer = self.await;
            while let Extraction::Pending(pending) = answer {
                answer = pending.await;
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

/// The return value of a closure over a request.
///
/// A key is a [`Key`], text, a number or an address. `None` rejects the request with 400. `Err`
/// rejects it with the contained [`StatusCode`] or [`KeyRejection`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    note = "return something owned: a `Key<'static>`, a `String`, a number, an `IpAddr`, an `Option` of one of these, \
            a `Result<_, StatusCode>`, or a `key::Extraction`",
    note = "use `key::from_async` for an async function"
)]
/// The result types of closures that extract a key.
///
/// A key is a [`Key`], text, a number or an address. `None` rejects the request with 400. `Err`
/// rejects it with its [`StatusCode`] or [`KeyRejection`].
pub trait IntoExtraction {
    /// Converts the result.
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
            Err(rejection) => Extraction::Reject(rejection.into()),
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

/// The handling of requests without a key.
#[derive(Clone, Debug, Default)]
pub(super) enum Missing {
    /// Reject the request with the extractor's default.
    #[default]
    Default,
    Refuse(KeyRejection),
    Skip,
}

impl Missing {
    #[cold]
    pub(super) fn extraction(&self, default: impl FnOnce() -> KeyRejection) -> Extraction<'static> {
        match self {
            Self::Default => Extraction::Reject(default()),
            Self::Refuse(rejection) => Extraction::Reject(rejection.clone()),
            Self::Skip => Extraction::Skip,
        }
    }
}

impl<'a> From<RequestLimits<'a>> for Extraction<'a> {
    fn from(request_limits: RequestLimits<'a>) -> Self {
        if request_limits.limits.is_empty() {
            Self::Skip
        } else {
            Self::Limits(request_limits)
        }
    }
}
