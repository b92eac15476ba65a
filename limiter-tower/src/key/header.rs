//! A header's value as the key.

use std::fmt::Display;

use http::{HeaderName, HeaderValue, Request, StatusCode};
use limiter_core::Key;

use super::extraction::{Extraction, KeyRejection, Missing};
use super::extractor::KeyExtractor;
use super::forwarded::trimmed;

/// Limits by the value of a header; in gRPC, by a metadata entry.
///
/// A request without the header, or with an empty one, is refused with 400 (INVALID_ARGUMENT),
/// unless [`or_reject`](Header::or_reject) or [`or_skip`](Header::or_skip) says otherwise. One that
/// repeats it is always refused with 400: who checks the first and who counts the last would speak
/// of different clients.
///
/// The header must be one that the client cannot choose freely, such as an API key that is verified
/// further out; else every request brings a fresh budget. Its value becomes part of the key, and so
/// stands in the store in plain. It counts as it was written, but for blanks around it: one that
/// says the same in several ways, as `Authorization` does, whose scheme may be in letters of either
/// case, gives a client as many budgets. There whoever verifies it sets an
/// [`extension`](super::extension).
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
/// When `name` cannot be the name of a header: it is written in the program, so the first start
/// shows it.
#[track_caller]
pub fn header(name: impl TryInto<HeaderName, Error: Display>) -> Header {
    Header {
        name: named(name),
        missing: Missing::default(),
    }
}

/// Limits by the value of a metadata entry: [`header`] under the name that gRPC has for it.
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
/// When `name` cannot be the name of an entry, or ends with `-bin`: a binary value can be written
/// in several ways, each of which would be another key.
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

/// A header's name that is written in the program.
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

/// As many headers as are looked through one by one: a program sends about so many, a browser more.
const FEW: usize = 8;

/// Finds the key in a header. Made by [`header`].
#[derive(Clone, Debug)]
#[must_use = "an extractor is to be given to `RateLimitLayer::key`"]
pub struct Header {
    name: HeaderName,
    missing: Missing,
}

impl Header {
    /// ResponseConfig a request without the header with this status or
    /// [refusal](KeyRejection#a-whole-response), as 401 with `WWW-Authenticate`. Default: 400.
    pub fn or_reject(self, refusal: impl Into<KeyRejection>) -> Self {
        Self {
            missing: Missing::Refuse(refusal.into()),
            ..self
        }
    }

    /// Lets a request without the header pass, unlimited and uncounted. Default: it is refused.
    pub fn or_skip(self) -> Self {
        Self {
            missing: Missing::Skip,
            ..self
        }
    }
}

impl<B> KeyExtractor<B> for Header {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        let bad_request =
            |what: &str| KeyRejection::new(StatusCode::BAD_REQUEST, format!("header `{}` {what}", self.name));
        let headers = request.headers();
        // To compare a few names takes half the time of a hash, and of a search for repetitions.
        let (first, second) = if headers.len() <= FEW {
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
                None => self.missing.answer(|| bad_request("is required")),
            },
        }
    }
}

/// The key that a value names, if it says anything. What is visible ASCII, as nearly all are, need
/// not be looked through for UTF-8.
///
/// Blanks around a value are no part of it (RFC 9110, 5.5). Whoever reads HTTP/1 leaves them out;
/// in HTTP/2 they arrive, and each number of them would be another key.
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
    fn answer(extractor: &Header, values: &[&str]) -> Extraction<'static> {
        let request = values.iter().fold(Request::builder(), |request, value| {
            request.header("x-api-key", *value)
        });
        match extractor.extract(&request.body(()).expect("valid values")) {
            Extraction::Key(key) => Extraction::Key(key.into_owned()),
            Extraction::Limits(terms) => Extraction::Limits(terms.into_owned()),
            Extraction::Skip => Extraction::Skip,
            Extraction::Reject(refusal) => Extraction::Reject(refusal),
            Extraction::Pending(later) => Extraction::Pending(later),
        }
    }

    #[test]
    fn only_one_value_that_says_something_is_a_key() {
        let strict = header("X-Api-Key");
        assert_eq!(answer(&strict, &["ann"]), Extraction::Key(Key::from("ann")));
        for refused in [&[] as &[&str], &[""], &["ann", "bob"], &["ann", "ann"], &["", ""]] {
            assert!(
                matches!(answer(&strict, refused), Extraction::Reject(refusal) if refusal.status() == 400)
            );
        }
    }

    #[test]
    fn the_answer_to_a_missing_one_can_be_chosen() {
        let unauthorized = header("x-api-key").or_reject(StatusCode::UNAUTHORIZED);
        assert_eq!(
            answer(&unauthorized, &[]),
            Extraction::Reject(StatusCode::UNAUTHORIZED.into())
        );
        let bare = header("x-api-key").or_reject(401);
        assert_eq!(
            answer(&bare, &[]),
            Extraction::Reject(StatusCode::UNAUTHORIZED.into())
        );
        assert_eq!(KeyRejection::from(42), StatusCode::INTERNAL_SERVER_ERROR.into());
        let lenient = header("x-api-key").or_skip();
        assert_eq!(answer(&lenient, &[]), Extraction::Skip);
        assert!(
            matches!(answer(&lenient, &["ann", "bob"]), Extraction::Reject(_)),
            "a repeated one is never skipped"
        );
    }

    #[test]
    #[should_panic(expected = "the metadata `trace-bin` is binary")]
    fn metadata_that_is_binary_is_no_key() {
        let _ = metadata("Trace-Bin");
    }

    #[test]
    #[should_panic(expected = "the name of a key's header cannot be used")]
    fn a_name_that_is_none_shows_at_start_up() {
        let _ = header("x api key");
    }
}
