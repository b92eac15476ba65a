//! Answers to the script that refreshes a page: nothing if the page has not changed.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};

/// The header of requests of the script.
const REFRESH: &str = "x-refresh";

/// Gives pages for the script an `ETag`, and answers 304 if the script has the same page.
pub(super) async fn with_tag(request: Request, next: Next) -> Response {
    if !request.headers().contains_key(REFRESH) {
        return next.run(request).await;
    }
    let known = request.headers().get(header::IF_NONE_MATCH).cloned();
    let response = next.run(request).await;
    if response.status() != StatusCode::OK {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let body = body.to_bytes();
    let digest: String = Sha256::digest(&body)
        .iter()
        .take(12)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let Ok(tag) = HeaderValue::from_str(&format!("\"{digest}\"")) else {
        return Response::from_parts(parts, Body::from(body));
    };
    if known.as_ref() == Some(&tag) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    parts.headers.insert(header::ETAG, tag);
    Response::from_parts(parts, Body::from(body))
}
