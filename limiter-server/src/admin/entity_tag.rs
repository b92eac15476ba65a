//! Tags of answers (RFC 9110, section 8.8.3), so that a client that polls receives 304 without a
//! body while nothing has changed. Tests: `unchanged_answer_is_not_sent_again` in
//! `tests/api_lists.rs`, and `tests/pages.rs`.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};

use crate::admin::permissions::Actor;

/// The bytes of the digest in a tag.
const DIGEST_BYTES: usize = 12;

/// Gives the answers of the API an `ETag`. Pages, which call the API in this process, do not
/// compare them.
pub(super) async fn of_api(request: Request, next: Next) -> Response {
    if request.method() != Method::GET || request.extensions().get::<Actor>().is_some() {
        return next.run(request).await;
    }
    answer(request, next).await
}

/// Runs a request. Answers 304 if the client has the same content, and otherwise adds a tag of the
/// content if the answer has none.
pub(super) async fn answer(request: Request, next: Next) -> Response {
    let mut known = HeaderMap::new();
    for value in request.headers().get_all(header::IF_NONE_MATCH) {
        known.append(header::IF_NONE_MATCH, value.clone());
    }
    let response = next.run(request).await;
    if response.status() != StatusCode::OK {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let body = body.to_bytes();
    let tag = match parts.headers.get(header::ETAG) {
        Some(tag) => tag.clone(),
        None => tag_of(&body),
    };
    if is_known(&known, &tag) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    parts.headers.insert(header::ETAG, tag);
    Response::from_parts(parts, Body::from(body))
}

fn tag_of(body: &[u8]) -> HeaderValue {
    let digest = Sha256::digest(body);
    let digits = digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}"));
    let tag = format!("\"{}\"", digits.collect::<String>());
    HeaderValue::from_str(&tag).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

/// Returns whether `If-None-Match` lists a tag. The comparison is weak, as the header requires.
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let opaque = |text: &str| text.trim().trim_start_matches("W/").to_owned();
    let Ok(tag) = tag.to_str().map(opaque) else {
        return false;
    };
    let lines = headers.get_all(header::IF_NONE_MATCH).iter();
    lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .any(|known| opaque(known) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_tag_is_known() {
        let tag = HeaderValue::from_static("\"7-6-pending\"");
        let is_known = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static(text));
            super::is_known(&headers, &tag)
        };
        assert!(is_known("\"7-6-pending\""));
        assert!(is_known("\"a\", W/\"7-6-pending\""));
        assert!(!is_known("\"7\""));
        assert!(!super::is_known(&HeaderMap::new(), &tag));
    }
}
