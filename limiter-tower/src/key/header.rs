//! The value of a header, or of a metadata entry of gRPC, as the key.
//!
//! The extractor borrows the value from the request, without surrounding blanks. An empty value
//! counts as an absent one, which is rejected with 400 by default.
//!
//! Invariants: a request that repeats the header is always rejected, since two components could use
//! different values of it; and blanks around a value never yield another key. Tests: below, and
//! `tests/contract/hostile.rs`.

use std::fmt::Display;

use http::{HeaderName, HeaderValue, Request, StatusCode};
use limiter_core::Key;

use super::extraction::{Extraction, KeyRejection, Missing};
use super::extractor::KeyExtractor;
use super::forwarded::trimmed;

/// Limits by the value of a header; with gRPC, by a metadata entry.
///
/// A request with a missing or an empty header is rejected with 400 (INVALID_ARGUMENT), unless
/// [`or_reject`](Header::or_reject) or [`or_skip`](Header::or_skip) is set. A request that repeats
/// the header is always rejected with 400, because a component that verifies the first value and a
/// component that limits by the last one would identify different clients.
///
/// The client must not be able to choose the header freely: it should be, for example, an API key
/// that an outer layer verifies. Otherwise every request can bring a new budget. The value becomes
/// a part of the key, and is stored in plain text. Values are compared byte by byte, except for
/// surrounding blanks. If a header has several spellings of one value, as `Authorization` with its
/// case-insensitive scheme, a client has one budget for each spelling. In this case, let the layer
/// that verifies the value set an [`extension`](super::extension).
///
/// ```
/// use http::StatusCode;
/// use limiter_tower::key;
///
/// let by_api_key = key::header("X-Api-Key").or_reject(StatusCode::UNAUTHORIZED);
/// ```
///
/// # Panics
///
/// Panics if `name` is not a valid header name. The name is a constant of the program, so the error
/// appears at the first start.
#[track_caller]
pub fn header(name: impl TryInto<HeaderName, Error: Display>) -> Header {
    Header {
        name: named(name),
        missing: Missing::default(),
    }
}

/// Limits by the value of a metadata entry, as [`header`].
///
/// ```
/// use http::StatusCode;
/// use limiter_tower::key;
///
/// let by_api_key = key::metadata("x-api-key").or_reject(StatusCode::UNAUTHORIZED);
/// ```
///
/// # Panics
///
/// Panics if `name` is not a valid metadata name, or ends with `-bin`: a binary value has several
/// encodings, each of which would be another key.
#[track_caller]
pub fn metadata(name: impl TryInto<HeaderName, Error: Display>) -> Header {
    let header = header(name);
    assert!(
        !header.name.as_str().ends_with("-bin"),
        "the metadata `{}` is binary: one value has several texts, and so several keys",
        header.name
    );
    header
}

/// Converts the name of a header, which is a constant of the program.
#[track_caller]
pub(super) fn named(name: impl TryInto<HeaderName, Error: Display>) -> HeaderName {
    match name.try_into() {
        Ok(name) => name,
        #[expect(
            clippy::panic,
            reason = "documented: the name is a literal, and the layer is built at start-up"
        )]
        Err(error) => panic!("the name of a key's header cannot be used: {error}"),
    }
}

/// The maximum number of headers for a linear search. A program sends about this number, a browser
/// sends more.
const LINEAR_SEARCH_MAX: usize = 8;

/// Reads the key from a header. Created by [`header`].
#[derive(Clone, Debug)]
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct Header {
    name: HeaderName,
    missing: Missing,
}

impl Header {
    /// Rejects a request without the header with this status or
    /// [response](KeyRejection#a-whole-response), for example 401 with `WWW-Authenticate`. Default:
    /// 400.
    pub fn or_reject(self, rejection: impl Into<KeyRejection>) -> Self {
        Self {
            missing: Missing::Refuse(rejection.into()),
            ..self
        }
    }

    /// Lets a request without the header pass, neither limited nor counted. Default: it is
    /// rejected.
    pub fn or_skip(self) -> Self {
        Self {
            missing: Missing::Skip,
            ..self
        }
    }
}

impl<B> KeyExtractor<B> for Header {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        let bad_request = |problem: &str| {
            KeyRejection::new(
                StatusCode::BAD_REQUEST,
                format!("header `{}` {problem}", self.name),
            )
        };
        let headers = request.headers();
        // Comparing a few names takes half the time of a hash and a search for repetitions.
        let (first, second) = if headers.len() <= LINEAR_SEARCH_MAX {
            let mut values = headers
                .iter()
                .filter(|(name, _)| **name == self.name)
                .map(|(_, value)| value);
            (values.next(), values.next())
        } else {
            let mut values = headers.get_all(&self.name).iter();
            (values.next(), values.next())
        };
        match (first, second) {
            (Some(_), Some(_)) => Extraction::Reject(bad_request("must be given once")),
            (value, _) => match value.and_then(key) {
                Some(key) => Extraction::Key(key),
                None => self.missing.extraction(|| bad_request("is required")),
            },
        }
    }
}

/// Returns the key of a value, or none if the value is empty. Visible ASCII, which nearly all
/// values are, needs no UTF-8 validation.
///
/// Blanks around a value are not part of it (RFC 9110, 5.5). HTTP/1 parsers remove them; in HTTP/2
/// they are preserved, and each number of blanks would be another key.
#[inline]
fn key(value: &HeaderValue) -> Option<Key<'_>> {
    let bytes = trimmed(value.as_bytes());
    match value.to_str() {
        _ if bytes.is_empty() => None,
        Ok(text) if text.len() == bytes.len() => Some(text.into()),
        _ => Some(bytes.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::expect_used, reason = "a test ends that way")]
    fn extract_from(extractor: &Header, values: &[&str]) -> Extraction<'static> {
        let request = values.iter().fold(Request::builder(), |request, value| {
            request.header("x-api-key", *value)
        });
        match extractor.extract(&request.body(()).expect("valid values")) {
            Extraction::Key(key) => Extraction::Key(key.into_owned()),
            Extraction::Limits(request_limits) => Extraction::Limits(request_limits.into_owned()),
            Extraction::Skip => Extraction::Skip,
            Extraction::Reject(rejection) => Extraction::Reject(rejection),
            Extraction::Pending(pending) => Extraction::Pending(pending),
        }
    }

    #[test]
    fn only_a_single_nonempty_value_is_a_key() {
        let strict = header("X-Api-Key");
        assert_eq!(extract_from(&strict, &["ann"]), Extraction::Key(Key::from("ann")));
        for refused in [&[] as &[&str], &[""], &["ann", "bob"], &["ann", "ann"], &["", ""]] {
            assert!(
                matches!(extract_from(&strict, refused), Extraction::Reject(rejection) if rejection.status() == 400)
            );
        }
    }

    #[test]
    fn response_to_missing_header_is_configurable() {
        let unauthorized = header("x-api-key").or_reject(StatusCode::UNAUTHORIZED);
        assert_eq!(
            extract_from(&unauthorized, &[]),
            Extraction::Reject(StatusCode::UNAUTHORIZED.into())
        );
        let bare = header("x-api-key").or_reject(401);
        assert_eq!(
            extract_from(&bare, &[]),
            Extraction::Reject(StatusCode::UNAUTHORIZED.into())
        );
        assert_eq!(KeyRejection::from(42), StatusCode::INTERNAL_SERVER_ERROR.into());
        let lenient = header("x-api-key").or_skip();
        assert_eq!(extract_from(&lenient, &[]), Extraction::Skip);
        assert!(
            matches!(extract_from(&lenient, &["ann", "bob"]), Extraction::Reject(_)),
            "a repeated header is never skipped"
        );
    }

    #[test]
    #[should_panic(expected = "the metadata `trace-bin` is binary")]
    fn binary_metadata_is_rejected_at_construction() {
        let _ = metadata("Trace-Bin");
    }

    #[test]
    #[should_panic(expected = "the name of a key's header cannot be used")]
    fn invalid_header_name_is_rejected_at_construction() {
        let _ = header("x api key");
    }
}
