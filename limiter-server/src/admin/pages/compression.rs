//! Compresses pages and answers of the API.
//!
//! A compressed answer reveals by its length whether a text of the request equals a secret of the
//! page (BREACH). The answers contain no such secret: forms have no token, because requests of
//! other origins are recognized by `Sec-Fetch-Site` and `Origin`, and the session is a cookie. The
//! one secret that a page shows, a new bearer token, is in the answer to a POST request, and only
//! answers to GET requests are compressed. `tests/pages.rs` verifies both.

use std::io::Write as _;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt as _;

/// Shorter answers are not worth the computation.
const MIN_LENGTH: usize = 1_024;
/// Higher levels take several times as long and save little.
const LEVEL: u32 = 5;

/// Returns whether the client accepts gzip.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING);
    let accepted = accepted.and_then(|value| value.to_str().ok());
    accepted.is_some_and(|value| {
        value.split(',').any(|of| {
            let mut parts = of.split(';').map(str::trim);
            parts.next() == Some("gzip") && parts.all(|part| !matches!(part, "q=0" | "q=0.0"))
        })
    })
}

/// Compresses text for clients that accept it.
pub(super) async fn compress(request: Request, next: Next) -> Response {
    let is_compressible = request.method() == Method::GET && accepts_gzip(request.headers());
    let response = next.run(request).await;
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let is_text = content_type.is_some_and(|of| {
        let types: [&[u8]; 2] = [b"text/html", b"application/json"];
        types.iter().any(|text| of.as_bytes().starts_with(text))
    });
    if !is_compressible || !is_text {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let body = body.to_bytes();
    parts
        .headers
        .insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if body.len() < MIN_LENGTH {
        return Response::from_parts(parts, Body::from(body));
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
    // A write to memory does not fail.
    let compressed = encoder.write_all(&body).and_then(|()| encoder.finish());
    let Ok(compressed) = compressed else {
        return Response::from_parts(parts, Body::from(body));
    };
    let gzip = HeaderValue::from_static("gzip");
    parts.headers.insert(header::CONTENT_ENCODING, gzip);
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(compressed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_encodings_are_read() {
        for (value, expected) in [
            ("gzip, deflate, br", true),
            ("br, gzip;q=0.5", true),
            ("gzip;q=0", false),
            ("br", false),
            ("x-gzip", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value.parse().unwrap())]);
            assert_eq!(accepts_gzip(&headers), expected, "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
