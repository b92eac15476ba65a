//! Reads the pause that a peer requests in its response. Pure: the result depends only on the
//! arguments.
//!
//! A field that is malformed, ambiguous, or repeated with another value is ignored.

mod fields;
mod grpc;
mod legacy;
mod protobuf;

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::responses::grpc::response_type;

/// Returns the pause that a response requests. `now` is the time of this process, for times that
/// cannot be compared with the peer's own clock.
pub(crate) fn pause(
    status: StatusCode,
    headers: &HeaderMap,
    now: &dyn Fn() -> SystemTime,
) -> Option<Duration> {
    if headers.get(CONTENT_TYPE).and_then(response_type).is_some() {
        return grpc::pause(headers);
    }
    let now = Now { headers, own: now };
    // With another status, `Retry-After` announces a redirection or maintenance.
    let retry_after = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => retry_after(headers, &now),
        _ => None,
    };
    retry_after
        .or_else(|| fields::pause(headers))
        .or_else(|| legacy::pause(headers, &now))
}

/// RFC 9110, 10.2.3: whole seconds, or a date.
fn retry_after(headers: &HeaderMap, now: &Now<'_>) -> Option<Duration> {
    let seconds_or_date = only(headers, &RETRY_AFTER)?;
    let pause = match digits(seconds_or_date) {
        Some(seconds) => Duration::from_secs(seconds),
        // A number that overflows is still a number; as a pause it is infinite.
        None if !seconds_or_date.is_empty() && seconds_or_date.bytes().all(|byte| byte.is_ascii_digit()) => {
            Duration::MAX
        }
        None => now.until(httpdate::parse_http_date(seconds_or_date).ok()?)?,
    };
    // A zero pause comes from a limiter that rounds down; other fields may state the time.
    (!pause.is_zero()).then_some(pause)
}

/// Returns the only value of a field. A proxy may repeat the line of the server.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let text = |value: &'a HeaderValue| Some(value.to_str().ok()?.trim_matches([' ', '\t']));
    let mut values = headers.get_all(name).iter().map(text);
    let first = values.next()??;
    values.all(|value| value == Some(first)).then_some(first)
}

/// Reads a number of digits only; `from_str` would accept a sign.
fn digits<N: FromStr>(text: &str) -> Option<N> {
    let all = text.bytes().all(|byte| byte.is_ascii_digit());
    if all { text.parse().ok() } else { None }
}

/// The time of a response.
struct Now<'a> {
    headers: &'a HeaderMap,
    own: &'a dyn Fn() -> SystemTime,
}

impl Now<'_> {
    /// Returns the time until a moment that the peer states; `None` if it has passed. It is
    /// relative to the response's `Date`, if present: then it does not depend on the local clock,
    /// and it is never too short, because dates are truncated to seconds.
    fn until(&self, moment: SystemTime) -> Option<Duration> {
        let date = only(self.headers, &DATE).and_then(|date| httpdate::parse_http_date(date).ok());
        let now = date.unwrap_or_else(self.own);
        moment.duration_since(now).ok()
    }
}

#[cfg(test)]
mod tests;
