//! Reads the bodies of requests within the limits, before the calls take their places.

use std::ops::Deref;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::gateway::Gateway;
use crate::gateway::admission::BodyError;
use crate::gateway::http::problem::Problem;

/// The bytes of a rejected request that are read, and the time for them.
const DISCARDED_BYTES: usize = 16 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the rest of a small body whose request is rejected. An answer that ends an HTTP/2 stream
/// before the request is complete resets the stream, and some clients then drop the answer (curl
/// 7.88).
pub(super) async fn discard(request: Request) {
    let mut body = Limited::new(request.into_body(), DISCARDED_BYTES);
    let read = async { while let Some(Ok(_)) = body.frame().await {} };
    // A longer or slower body is not worth the wait: the answer follows in any case.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, read).await;
}

/// The body of a request, which [`read`] has read within its limit.
pub(super) struct ReadBody(Bytes);

impl<S: Sync> FromRequest<S> for ReadBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await;
        let body = body.map_err(|error| Problem::bad_request(error.to_string().into()))?;
        Ok(Self(body))
    }
}

impl Deref for ReadBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Reads the body within the limits on its length, its time and the memory of all bodies.
pub(super) async fn read(gateway: &Gateway, request: Request) -> Result<Request, Problem> {
    let max = gateway.limits().max_body_bytes;
    let too_large = || {
        let detail = format!("the body is too large, expected at most {max} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail.into())
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > max) {
        return Err(too_large());
    }
    let (parts, body) = gateway.admission().limit_body(request).into_parts();
    let body = match Limited::new(body, max).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
        Err(error) => {
            let status = match error.downcast_ref() {
                Some(BodyError::TooSlow) => StatusCode::REQUEST_TIMEOUT,
                Some(BodyError::NoMemory) => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::BAD_REQUEST,
            };
            return Err(Problem::new(status, error.to_string().into()));
        }
    };
    Ok(Request::from_parts(parts, Body::from(body)))
}
