//! What an extractor answers.

use std::borrow::Cow;
use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use limiter_core::Key;

use super::later::Later;
use crate::terms::Terms;

/// What an extractor says about a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Answer<'a> {
    /// The request takes the permits of this key, which may be a part of it.
    Key(Key<'a>),
    /// The request takes what these say, whatever the layer limits by.
    Terms(Terms<'a>),
    /// The request is not limited, and not counted.
    Skip,
    /// The request is answered at once, and reaches neither the limiter nor the inner service.
    Refuse(Refusal),
    /// The answer is still to come.
    Later(Later),
}

/// What is still to come equals nothing.
impl PartialEq<Answer<'_>> for Answer<'_> {
    fn eq(&self, other: &Answer<'_>) -> bool {
        match (self, other) {
            (Self::Key(key), Answer::Key(other)) => key == other,
            (Self::Terms(terms), Answer::Terms(other)) => terms == other,
            (Self::Skip, Answer::Skip) => true,
            (Self::Refuse(refusal), Answer::Refuse(other)) => refusal == other,
            _ => false,
        }
    }
}

/// The response to a request that has no key: a status, and a sentence for the client; or a whole response, which HTTP
/// clients get as it is.
///
/// A gRPC client gets the code that is paired with the status: 400 INVALID_ARGUMENT, 401 UNAUTHENTICATED,
/// 403 PERMISSION_DENIED, 500 INTERNAL, …
///
/// # A whole response
///
/// A status alone has no headers, and a 401 is to say how to authenticate (`WWW-Authenticate`, RFC 9110). A whole response does:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use http::{Request, Response, StatusCode, header};
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::key::{self, Refusal};
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
///     .key(key::header("authorization").or_refuse(Refusal::from(who_are_you)));
///
/// # let service = layer.layer(tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()))));
/// let refused = service.oneshot(Request::new(())).await.unwrap();
/// assert_eq!(refused.status(), 401);
/// assert_eq!(refused.headers()["www-authenticate"], "Bearer");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    message: Cow<'static, str>,
    /// What HTTP clients get in place of the message.
    response: Option<Box<(HeaderMap, Bytes)>>,
}

impl Refusal {
    /// Answers with `status` and `message`.
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

/// A whole response: HTTP clients get its status, headers and body. A gRPC client gets the code that is paired with the
/// status, and the body if that is plain text.
///
/// ```
/// use http::{Response, StatusCode};
/// use limiter_tower::key::Refusal;
///
/// let response = Response::builder()
///     .status(StatusCode::UNAUTHORIZED)
///     .header("www-authenticate", "Bearer")
///     .body("who are you?".into());
/// let refusal = Refusal::from(response?);
/// assert_eq!(refusal.status(), StatusCode::UNAUTHORIZED);
/// # Ok::<(), http::Error>(())
/// ```
impl From<Response<Bytes>> for Refusal {
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
impl From<StatusCode> for Refusal {
    fn from(status: StatusCode) -> Self {
        Self::new(status, status.canonical_reason().unwrap_or("refused"))
    }
}

/// As [`StatusCode`]; a number that is no status (below 100, above 999) refuses with 500.
impl From<u16> for Refusal {
    fn from(status: u16) -> Self {
        StatusCode::from_u16(status)
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            .into()
    }
}

/// What a closure may return for a request.
///
/// A key is a [`Key`], text, a number or an address. `None` refuses the request with 400, `Err` with what it holds:
/// a [`StatusCode`] or a [`Refusal`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no key",
    note = "return something owned: a `Key<'static>`, a `String`, a number, an `IpAddr`, an `Option` of one of these, \
            a `Result<_, StatusCode>`, or a `key::Answer`",
    note = "what takes some waiting to find is given by `key::from_async`"
)]
pub trait IntoAnswer {
    /// The answer.
    fn into_answer(self) -> Answer<'static>;
}

impl IntoAnswer for Answer<'static> {
    fn into_answer(self) -> Answer<'static> {
        self
    }
}

impl IntoAnswer for Later {
    fn into_answer(self) -> Answer<'static> {
        Answer::Later(self)
    }
}

impl<K: Into<Key<'static>>> IntoAnswer for Option<K> {
    fn into_answer(self) -> Answer<'static> {
        match self {
            Some(key) => Answer::Key(key.into()),
            None => Answer::Refuse(Refusal::lacks_key()),
        }
    }
}

impl<K: Into<Key<'static>>, R: Into<Refusal>> IntoAnswer for Result<K, R> {
    fn into_answer(self) -> Answer<'static> {
        match self {
            Ok(key) => Answer::Key(key.into()),
            Err(refusal) => Answer::Refuse(refusal.into()),
        }
    }
}

macro_rules! answer_from_key {
    ($($type:ty),*) => {$(
        impl IntoAnswer for $type {
            fn into_answer(self) -> Answer<'static> {
                Answer::Key(self.into())
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
    Refuse(Refusal),
    Skip,
}

impl Missing {
    #[cold]
    pub(super) fn answer(&self, default: impl FnOnce() -> Refusal) -> Answer<'static> {
        match self {
            Self::Default => Answer::Refuse(default()),
            Self::Refuse(refusal) => Answer::Refuse(refusal.clone()),
            Self::Skip => Answer::Skip,
        }
    }
}
