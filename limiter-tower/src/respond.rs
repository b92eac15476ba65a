//! The answer to a request that does not reach the inner service.

use std::borrow::Cow;

use http::{HeaderValue, Request, Response, StatusCode, header};
use limiter_core::Rejection;

use crate::body::ResponseBody;
use crate::grpc;
use crate::key::Refusal;

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What the client speaks, by its content type.
#[derive(Clone, Debug)]
pub(crate) enum Protocol {
    Http,
    Grpc {
        /// Of the response.
        content_type: HeaderValue,
    },
}

impl Protocol {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let content_type = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(grpc::response_type);
        content_type.map_or(Self::Http, |content_type| Self::Grpc { content_type })
    }
}

/// The response to a request that the limiter rejects. Its extensions hold the rejection, and the decision where there
/// is one, for layers further out.
pub(crate) fn rejected<B>(rejection: Rejection, protocol: &Protocol) -> Response<ResponseBody<B>> {
    let message = rejection.client_message();
    let mut response = match protocol {
        Protocol::Http => {
            // Every status of a rejection is a valid one.
            let status =
                StatusCode::from_u16(rejection.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut response = plain(status, message);
            if let Some(seconds) = rejection.retry_after_seconds() {
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            response
        }
        Protocol::Grpc { content_type } => {
            grpc::trailers_only(content_type.clone(), rejection.grpc_code(), &message)
        }
    };
    if let Some(decision) = rejection.decision().cloned() {
        response.extensions_mut().insert(decision);
    }
    response.extensions_mut().insert(rejection);
    response
}

/// The response to a request that the key's extractor refuses.
pub(crate) fn refused<B>(mut refusal: Refusal, protocol: &Protocol) -> Response<ResponseBody<B>> {
    let own = refusal.take_response();
    let (status, message) = refusal.into_parts();
    match protocol {
        Protocol::Http => match own {
            Some(own) => own.map(ResponseBody::text),
            None => plain(status, message),
        },
        Protocol::Grpc { content_type } => {
            grpc::trailers_only(content_type.clone(), grpc::code(status), &message)
        }
    }
}

fn plain<B>(status: StatusCode, message: Cow<'static, str>) -> Response<ResponseBody<B>> {
    let mut response = Response::new(match message {
        Cow::Borrowed(text) => ResponseBody::text(text),
        Cow::Owned(text) => ResponseBody::text(text),
    });
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, PLAIN_TEXT);
    response
}
