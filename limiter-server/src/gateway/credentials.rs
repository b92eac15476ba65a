//! The credentials of a request: a bearer token, or the certificate of its connection.

use axum::http::{Extensions, HeaderMap, header};

use crate::access::Client;

/// The scheme of the header, followed by the start of a token.
const SCHEME: &str = "bearer ";
const TOKEN_PREFIX: &str = "lim_";

/// Returns the client of a request. A token takes precedence over the certificate of the
/// connection.
///
/// Credentials of another form are ignored, because a proxy can forward the credentials that its
/// clients send to the service behind it; they grant nothing here.
#[must_use]
pub fn client(headers: &HeaderMap, extensions: &Extensions) -> Client {
    match token(headers) {
        Some(secret) => Client::of_secret(secret),
        None => extensions.get::<Client>().cloned().unwrap_or_default(),
    }
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let scheme = value.get(..SCHEME.len())?;
    let secret = value.get(SCHEME.len()..)?.trim();
    (scheme.eq_ignore_ascii_case(SCHEME) && secret.starts_with(TOKEN_PREFIX)).then_some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_limiter_tokens_are_credentials() {
        for (value, expected) in [
            ("Bearer lim_1", Some("lim_1")),
            ("bearer  lim_1 ", Some("lim_1")),
            ("Bearer eyJhbGciOi", None),
            ("Basic lim_1", None),
            ("lim_1", None),
            ("Bearer", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(token(&headers), expected, "{value}");
        }
    }
}
