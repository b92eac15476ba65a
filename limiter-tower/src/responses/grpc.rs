//! The wire format of a gRPC response without a message: headers only, including the status.
//!
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>, sections "Trailers-Only" and
//! "Percent-Encoded".
//!
//! Invariant: the status of a rejection is never OK. Tests: below
//! (`grpc_code_of_rejection_is_never_ok`), `tests/grpc.rs`, `tests/grpc/details.rs`,
//! `tests/frozen.rs` (`grpc_rejections_are_frozen`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use limiter_core::__private::{RETRY_PUSHBACK_MS, grpc_status_details, retry_pushback_ms};
use limiter_core::Rejection;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC: &str = "application/grpc";
const GRPC_WEB: [&str; 2] = ["application/grpc-web-text", "application/grpc-web"];

/// Returns the content type of the response, if the request's content type is one of gRPC's.
///
/// gRPC-Web clients accept a trailers-only response with their own content type. The rest of the
/// request's content type is not repeated, because the client must not control the response.
pub(crate) fn response_type(request: &HeaderValue) -> Option<HeaderValue> {
    let is = |kind: &&str| {
        let Some((start, rest)) = request.as_bytes().split_at_checked(kind.len()) else {
            return false;
        };
        start.eq_ignore_ascii_case(kind.as_bytes()) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
    };
    let kind = [GRPC].into_iter().chain(GRPC_WEB).find(is)?;
    Some(HeaderValue::from_static(kind))
}

/// Returns the response to a call that the limiter rejects, with details for programs:
/// `google.rpc.Status` in binary, and the time after which a client library may retry.
pub(crate) fn rejected(content_type: HeaderValue, rejection: &Rejection, domain: &str) -> Response<Bytes> {
    let mut response = trailers_only(content_type, rejection.grpc_code(), &rejection.client_message());
    let headers = response.headers_mut();
    let details = STANDARD_NO_PAD.encode(grpc_status_details(rejection, domain));
    // Base64 is always a valid value.
    if let Ok(details) = HeaderValue::try_from(details) {
        headers.insert(GRPC_STATUS_DETAILS, details);
    }
    if let Some(millis) = retry_pushback_ms(rejection) {
        headers.insert(
            HeaderName::from_static(RETRY_PUSHBACK_MS),
            HeaderValue::from(millis),
        );
    }
    response
}

/// Returns whether a gRPC response without this header is invalid or has another meaning.
pub(crate) fn is_essential(name: &HeaderName) -> bool {
    name == header::CONTENT_TYPE || name == GRPC_STATUS
}

pub(crate) fn trailers_only(content_type: HeaderValue, code: i32, message: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    // Percent-encoded text is always a valid value; otherwise the status alone would be sufficient.
    if let Ok(message) = HeaderValue::try_from(percent_encoded(message)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

/// Returns the gRPC code of an HTTP status, by the mapping of `google.rpc.Code`.
pub(crate) fn code(status: StatusCode) -> i32 {
    match status.as_u16() {
        400 => 3,        // INVALID_ARGUMENT
        401 => 16,       // UNAUTHENTICATED
        403 => 7,        // PERMISSION_DENIED
        404 => 5,        // NOT_FOUND
        409 => 10,       // ABORTED
        429 => 8,        // RESOURCE_EXHAUSTED
        501 => 12,       // UNIMPLEMENTED
        503 => 14,       // UNAVAILABLE
        504 => 4,        // DEADLINE_EXCEEDED
        500..=599 => 13, // INTERNAL
        _ => 2,          // UNKNOWN
    }
}

/// The maximum length of an encoded message. Clients reject headers above 16 KiB in total, and do
/// not receive the status then.
const MAX_MESSAGE_BYTES: usize = 1_024;

/// Printable ASCII except the percent sign is not encoded. The text is cut at a character, at the
/// maximum length.
fn percent_encoded(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len().min(MAX_MESSAGE_BYTES));
    for character in text.chars() {
        let before = encoded.len();
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            match byte {
                b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
                // Writing to a String cannot fail.
                _ => drop(write!(encoded, "%{byte:02X}")),
            }
        }
        if encoded.len() > MAX_MESSAGE_BYTES {
            encoded.truncate(before);
            break;
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_detected_by_content_type() {
        let answer = |request: &'static str| response_type(&HeaderValue::from_static(request));
        for grpc in [
            "application/grpc",
            "application/grpc+proto",
            "Application/GRPC",
            "application/grpc; x=y",
        ] {
            assert_eq!(
                answer(grpc),
                Some(HeaderValue::from_static("application/grpc")),
                "{grpc}"
            );
        }
        for (web, expected) in [
            ("application/grpc-web", "application/grpc-web"),
            ("Application/gRPC-Web+proto", "application/grpc-web"),
            ("application/grpc-web-text", "application/grpc-web-text"),
            (
                "application/grpc-web-text+proto, text/html",
                "application/grpc-web-text",
            ),
        ] {
            assert_eq!(answer(web), Some(HeaderValue::from_static(expected)), "{web}");
        }
        for other in [
            "",
            "application/json",
            "application/grpcs",
            "application/grpc-else",
            "application/grpc-website",
            "application/grpc, text/html",
            "text/application/grpc",
        ] {
            assert_eq!(answer(other), None, "{other}");
        }
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("100% é\r\n~"), "100%25 %C3%A9%0D%0A~");
    }

    #[test]
    fn grpc_code_of_rejection_is_never_ok() {
        for status in (100..=999).filter_map(|status| StatusCode::from_u16(status).ok()) {
            assert_ne!(code(status), 0, "{status}");
        }
        assert_eq!(code(StatusCode::UNAUTHORIZED), 16);
        assert_eq!(code(StatusCode::BAD_GATEWAY), 13);
    }
}
