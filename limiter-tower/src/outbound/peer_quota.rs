//! For how long a peer asks to be left alone, as its response says. Pure: what is heard depends on
//! nothing but the arguments.
//!
//! What is malformed, said twice in different words, or open to more than one reading counts as not
//! said.

mod fields;
mod grpc;
mod legacy;
mod protobuf;

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, StatusCode};

use crate::responses::grpc::response_type;

/// The pause that a response asks for. `now` is this process's time, for moments that cannot be
/// held against the peer's own.
pub(crate) fn pause(
    status: StatusCode,
    headers: &HeaderMap,
    now: &dyn Fn() -> SystemTime,
) -> Option<Duration> {
    if headers.get(CONTENT_TYPE).and_then(response_type).is_some() {
        return grpc::pause(headers);
    }
    let now = Now { headers, own: now };
    // `Retry-After` of another status tells of a redirection, or of maintenance to come.
    let said = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => retry_after(headers, &now),
        _ => None,
    };
    said.or_else(|| fields::pause(headers))
        .or_else(|| legacy::pause(headers, &now))
}

/// RFC 9110, 10.2.3: whole seconds, or a date.
fn retry_after(headers: &HeaderMap, now: &Now<'_>) -> Option<Duration> {
    let said = only(headers, &RETRY_AFTER)?;
    let pause = match digits(said) {
        Some(seconds) => Duration::from_secs(seconds),
        // More than can be counted is a number all the same, and for whoever sends requests as good
        // as for ever.
        None if !said.is_empty() && said.bytes().all(|byte| byte.is_ascii_digit()) => Duration::MAX,
        None => now.until(httpdate::parse_http_date(said).ok()?)?,
    };
    // No pause at all is what a limiter says that rounds down; it may tell more in other fields.
    (!pause.is_zero()).then_some(pause)
}

/// The value of a field that is given once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value.to_str().ok()?.trim_matches([' ', '\t'])),
        _ => None,
    }
}

/// A number of digits and nothing else: `from_str` would take a sign.
fn digits<N: FromStr>(text: &str) -> Option<N> {
    let all = text.bytes().all(|byte| byte.is_ascii_digit());
    if all { text.parse().ok() } else { None }
}

/// The moment of a response.
struct Now<'a> {
    headers: &'a HeaderMap,
    own: &'a dyn Fn() -> SystemTime,
}

impl Now<'_> {
    /// Time until a moment that the peer names; `None` where it is over. By the peer's clock, if
    /// the response says what that is: then the time is right whatever the clock is worth, and none
    /// too short, since dates are cut off to a second.
    fn until(&self, moment: SystemTime) -> Option<Duration> {
        let date = only(self.headers, &DATE).and_then(|date| httpdate::parse_http_date(date).ok());
        let now = date.unwrap_or_else(self.own);
        moment.duration_since(now).ok()
    }
}

#[cfg(test)]
mod tests;
