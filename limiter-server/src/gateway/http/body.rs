//! Reads the bodies of requests within the limits, before the calls take their places.

use std::pin::pin;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use tonic::codegen::StdError;

use crate::gateway::Gateway;
use crate::gateway::admission::{BodyError, LimitedBody};
use crate::gateway::http::problem::Problem;

/// The bytes of a rejected request that are read, and the time for them.
const DISCARDED_BYTES: usize = 16 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the rest of a small body whose request is rejected. An answer that ends an HTTP/2 stream
/// before the request is complete resets the stream, and some clients then drop the answer (curl
/// 7.88).
pub(super) async fn discard<B>(body: B)
where
    B: http_body::Body<Data = Bytes, Error: Into<StdError>> + Unpin,
{
    let mut body = Limited::new(body, DISCARDED_BYTES);
    let read = async { while let Some(Ok(_)) = body.frame().await {} };
    // A longer or slower body is not worth the wait: the answer follows in any case.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, read).await;
}

/// Reads the body within the limits on its length, its time and the memory of all bodies.
pub(super) async fn read<B>(gateway: &Gateway, headers: &HeaderMap, body: B) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<StdError>>,
{
    let max = gateway.limits().max_body_bytes;
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > max) {
        return Err(too_large(max));
    }
    collect(gateway.admission().limit_body(body), max).await
}

/// Reads a body to its end. A body of one chunk, as most are, is not copied.
async fn collect<B>(body: LimitedBody<B>, max: usize) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<StdError>>,
{
    let mut body = pin!(body);
    let (mut first, mut all) = (Bytes::new(), Vec::new());
    while !body.is_end_stream()
        && let Some(frame) = body.frame().await
    {
        let frame = frame.map_err(|error| not_received(&error))?;
        let Ok(chunk) = frame.into_data() else { continue };
        let read = first.len().max(all.len());
        if chunk.len() > max.saturating_sub(read) {
            return Err(too_large(max));
        }
        if read == 0 {
            first = chunk;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&chunk);
    }
    Ok(match all.is_empty() {
        true => first,
        false => all.into(),
    })
}

fn too_large(max: usize) -> Problem {
    let detail = format!("the body is too large, expected at most {max} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail.into())
}

fn not_received(error: &BodyError) -> Problem {
    let status = match error {
        BodyError::TooSlow => StatusCode::REQUEST_TIMEOUT,
        BodyError::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
        BodyError::Connection(_) => StatusCode::BAD_REQUEST,
    };
    Problem::new(status, error.to_string().into())
}
