//! The session cookie.

use std::time::Duration;

use axum::http::{HeaderMap, header};

use crate::host_name;

/// The name of the session cookie.
pub const COOKIE: &str = "__Host-limiter";
/// The name of the session cookie on `http://localhost` and loopback addresses, where browsers
/// accept no cookie with the prefix `__Host-`. Requests to another `Host` cannot use it.
pub const LOOPBACK_COOKIE: &str = "limiter";

/// Returns the value of the header `Set-Cookie`.
pub(super) fn set_cookie(request: &HeaderMap, value: &str, lifetime: Duration) -> String {
    let seconds = lifetime.as_secs();
    match is_for_loopback(request) {
        true => format!("{LOOPBACK_COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax"),
        false => format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; Secure; SameSite=Lax"),
    }
}

/// Returns whether the browser addresses this machine itself.
fn is_for_loopback(request: &HeaderMap) -> bool {
    let host = request.get(header::HOST).and_then(|value| value.to_str().ok());
    host.is_some_and(host_name::is_loopback)
}

/// Returns the secret of the session of a request.
pub(super) fn session_of(headers: &HeaderMap) -> Option<String> {
    let expected = match is_for_loopback(headers) {
        true => LOOPBACK_COOKIE,
        false => COOKIE,
    };
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';'));
    pairs.find_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == expected && !value.is_empty()).then(|| value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_read_from_its_cookie_alone() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, "a=b; __Host-limiter=secret; c=d".parse().unwrap());
        assert_eq!(session_of(&headers).as_deref(), Some("secret"));
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, "limiter=secret".parse().unwrap());
        headers.append(header::HOST, "limits.example".parse().unwrap());
        assert_eq!(session_of(&headers), None);
        headers.insert(header::HOST, "127.0.0.1:8082".parse().unwrap());
        assert_eq!(session_of(&headers).as_deref(), Some("secret"));
    }
}
