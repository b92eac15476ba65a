//! Forms the responses to requests that do not reach the inner service, and the headers that are
//! added to others.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
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

/// How a layer answers.
#[derive(Clone)]
pub(crate) struct Responder {
    pub(crate) dialect: RateLimitHeaders,
    /// Whether bodies are sentences, and not problems in JSON.
    pub(crate) plain_text: bool,
    /// The domain of gRPC's `ErrorInfo`.
    pub(crate) domain: Cow<'static, str>,
    /// The header that tells who decided, if one is to.
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

/// What the response to an allowed request tells its client.
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
            // One that is there is a more specific layer's; a map that is full stays as it is.
            if !headers.contains_key(&name) {
                drop(headers.try_insert(name, value));
            }
        }
    }
}

impl Responder {
    /// Whether nothing is told of a request that is allowed.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.dialect == RateLimitHeaders::None && self.origin.is_none()
    }

    /// What is told of a decision. gRPC's clients hear of limits in the details of a status alone.
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

    /// The response to a request that the limiter rejects. Its extensions hold the rejection, and
    /// the decision where there is one, for layers further out.
    #[cold]
    pub(crate) fn rejected<B>(&self, rejection: Rejection, protocol: &Protocol) -> Response<ResponseBody<B>> {
        let mut response = match protocol {
            Protocol::Http => self.rejected_in_http(&rejection),
            Protocol::Grpc { content_type } => grpc::rejected(content_type.clone(), &rejection, &self.domain),
        };
        let told = rejection.decision().and_then(|decision| match &rejection {
            // What a list says is no quota.
            Rejection::Forbidden { .. } => ResponseFields::new(None, self.origin_header(decision)),
            // What is denied says for its own cost when it fits, and of what is denied with it
            // nothing was taken.
            _ => self.fields_for(decision, &Costs::ONE, protocol),
        });
        if let Some(told) = told {
            told.write(response.headers_mut());
        }
        if let Some(hook) = &self.hook {
            response = hook.answer(&rejection, response, protocol);
        }
        let mut response = response.map(ResponseBody::text);
        if let Some(decision) = rejection.decision().cloned() {
            response.extensions_mut().insert(decision);
        }
        response.extensions_mut().insert(rejection);
        response
    }

    /// Without a rule for caches: none of these statuses may be stored unless a header says so, and
    /// 429 not even then (RFC 6585).
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

    /// The response to a request that the key's extractor refuses.
    #[cold]
    pub(crate) fn refused<B>(
        &self,
        mut refusal: KeyRejection,
        protocol: &Protocol,
    ) -> Response<ResponseBody<B>> {
        let own = refusal.take_response();
        let (status, message) = refusal.into_parts();
        let response = match protocol {
            Protocol::Http if own.is_some() => own.unwrap_or_default(),
            Protocol::Http if self.plain_text => with_body(status, PLAIN_TEXT, message),
            Protocol::Http => {
                let title = status.canonical_reason().unwrap_or("Refused");
                let problem = problem_of_status(status.as_u16(), title, &message);
                with_body(status, PROBLEM_JSON, problem)
            }
            Protocol::Grpc { content_type } => {
                grpc::trailers_only(content_type.clone(), grpc::code(status), &message)
            }
        };
        response.map(ResponseBody::text)
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
