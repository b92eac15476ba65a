//! Builds the responses to requests that do not reach the inner service, and the headers that are
//! added to other responses.
//!
//! One `Responder` has the response settings of a layer. The protocol of the request selects an
//! HTTP response with a problem or plain text, or the status of a gRPC response.
//!
//! Invariants: a response to HEAD has no body; the header with the decision's source never replaces
//! one that an inner layer has set; and the extensions of the response to a denied request contain
//! the `Rejection`, and its decision if there is one. Tests: `tests/http/answers.rs`,
//! `tests/grpc/details.rs`, `tests/frozen.rs`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use limiter_core::__private::{DEFAULT_DOMAIN, problem_of_status};
use limiter_core::{Decision, Rejection};

use super::body::ResponseBody;
use super::protocol::Protocol;
use super::response_fn::ResponseFn;
use super::{decision_source, grpc};
use crate::headers::{self, Costs, RateLimitHeaders};
use crate::key::KeyRejection;

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static(Rejection::PROBLEM_JSON);

/// The response settings of a layer.
#[derive(Clone)]
pub(crate) struct Responder {
    pub(crate) dialect: RateLimitHeaders,
    /// True if bodies are plain text and not JSON problems.
    pub(crate) plain_text: bool,
    /// The domain of gRPC's `ErrorInfo`.
    pub(crate) domain: Cow<'static, str>,
    /// The name of the header with the decision's source, if enabled.
    pub(crate) origin: Option<HeaderName>,
    pub(super) hook: Option<Arc<ResponseFn>>,
}

impl Default for Responder {
    fn default() -> Self {
        Self {
            dialect: RateLimitHeaders::default(),
            plain_text: false,
            domain: Cow::Borrowed(DEFAULT_DOMAIN),
            origin: None,
            hook: None,
        }
    }
}

/// The fields of the response to an allowed request.
#[derive(Clone, Debug)]
pub(crate) struct ResponseFields {
    limits: Option<headers::RateLimitFields>,
    origin: Option<Box<(HeaderName, HeaderValue)>>,
}

impl ResponseFields {
    pub(crate) fn new(
        limits: Option<headers::RateLimitFields>,
        origin: Option<(HeaderName, HeaderValue)>,
    ) -> Option<Self> {
        let origin = origin.map(Box::new);
        (limits.is_some() || origin.is_some()).then_some(Self { limits, origin })
    }

    pub(crate) fn write(self, headers: &mut HeaderMap) {
        if let Some(limits) = self.limits {
            limits.write(headers);
        }
        if let Some(origin) = self.origin {
            let (name, value) = *origin;
            // An existing header was set by a more specific layer; a full map is left unchanged.
            if !headers.contains_key(&name) {
                drop(headers.try_insert(name, value));
            }
        }
    }
}

impl Responder {
    /// Returns whether responses to allowed requests have no fields.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.dialect == RateLimitHeaders::None && self.origin.is_none()
    }

    /// Returns the response fields of a decision. gRPC clients receive limits only in the details
    /// of a status.
    pub(crate) fn fields_for(
        &self,
        decision: &Decision,
        costs: &Costs,
        protocol: &Protocol,
    ) -> Option<ResponseFields> {
        let limits = match protocol {
            Protocol::Http => headers::RateLimitFields::from_decision(decision, self.dialect, costs),
            Protocol::Grpc { .. } => None,
        };
        ResponseFields::new(limits, self.origin_header(decision))
    }

    pub(crate) fn origin_header(&self, decision: &Decision) -> Option<(HeaderName, HeaderValue)> {
        let name = self.origin.clone()?;
        Some((name, decision_source::value(decision)))
    }

    /// Returns the response to a request that the limiter rejects. Its extensions hold the
    /// rejection, and its decision if there is one, for outer layers.
    #[cold]
    pub(crate) fn rejected<B, R>(
        &self,
        rejection: Rejection,
        request: &Request<R>,
    ) -> Response<ResponseBody<B>> {
        let protocol = &Protocol::from_request(request);
        let mut response = match protocol {
            Protocol::Http => self.rejected_in_http(&rejection),
            Protocol::Grpc { content_type } => grpc::rejected(content_type.clone(), &rejection, &self.domain),
        };
        let fields = rejection.decision().and_then(|decision| match &rejection {
            // A decision by a key list has no quota.
            Rejection::Forbidden { .. } => ResponseFields::new(None, self.origin_header(decision)),
            // A denied limit states when a request of its own cost fits; the limits that were
            // checked with it were not charged.
            _ => self.fields_for(decision, &Costs::ONE, protocol),
        });
        if let Some(fields) = fields {
            fields.write(response.headers_mut());
        }
        if let Some(hook) = &self.hook {
            response = hook.apply(&rejection, response, protocol);
        }
        let mut response = for_method(request.method(), response);
        if let Some(decision) = rejection.decision().cloned() {
            response.extensions_mut().insert(decision);
        }
        response.extensions_mut().insert(rejection);
        response
    }

    /// No cache rule is needed: none of these statuses may be stored unless a header allows it, and
    /// 429 never (RFC 6585).
    fn rejected_in_http(&self, rejection: &Rejection) -> Response<Bytes> {
        // Every status of a rejection is a valid one.
        let status =
            StatusCode::from_u16(rejection.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = if self.plain_text {
            with_body(status, PLAIN_TEXT, rejection.client_message())
        } else {
            with_body(status, PROBLEM_JSON, rejection.problem_json())
        };
        if let Some(seconds) = rejection.retry_after_seconds() {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// Returns the response to a request that the key's extractor rejects.
    #[cold]
    pub(crate) fn refused<B, R>(
        &self,
        mut rejection: KeyRejection,
        request: &Request<R>,
    ) -> Response<ResponseBody<B>> {
        let own = rejection.take_response();
        let (status, message) = rejection.into_parts();
        let response = match Protocol::from_request(request) {
            Protocol::Http if own.is_some() => own.unwrap_or_default(),
            Protocol::Http if self.plain_text => with_body(status, PLAIN_TEXT, message),
            Protocol::Http => {
                let title = status.canonical_reason().unwrap_or("Refused");
                let problem = problem_of_status(status.as_u16(), title, &message);
                with_body(status, PROBLEM_JSON, problem)
            }
            Protocol::Grpc { content_type } => {
                grpc::trailers_only(content_type, grpc::code(status), &message)
            }
        };
        for_method(request.method(), response)
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder")
            .field("dialect", &self.dialect)
            .field("plain_text", &self.plain_text)
            .field("domain", &self.domain)
            .field("origin", &self.origin)
            .field("respond_with", &self.hook.is_some())
            .finish()
    }
}

/// Removes the body of a response to HEAD. HTTP/1 servers do not send it, but HTTP/2 servers do,
/// and clients then reset the stream.
fn for_method<B>(method: &Method, response: Response<Bytes>) -> Response<ResponseBody<B>> {
    response.map(|body| match *method {
        Method::HEAD => ResponseBody::default(),
        _ => ResponseBody::text(body),
    })
}

fn with_body(
    status: StatusCode,
    content_type: HeaderValue,
    body: impl Into<Cow<'static, str>>,
) -> Response<Bytes> {
    let mut response = Response::new(match body.into() {
        Cow::Borrowed(text) => Bytes::from(text),
        Cow::Owned(text) => Bytes::from(text),
    });
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
