//! Rejects requests that a page of another origin causes.

use axum::http::{HeaderMap, Method};

use crate::admin::auth::AuthError;

/// Rejects requests that a page of another origin causes.
///
/// # Errors
///
/// [`AuthError::CrossOrigin`] for such a request.
pub fn require_same_origin(method: &Method, headers: &HeaderMap) -> Result<(), AuthError> {
    if method.is_safe() {
        return Ok(());
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_same = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => site == "same-origin" || site == "none",
        (None, Some(origin)) => {
            let host = origin.split_once("://").map(|(_, host)| host);
            host.is_some() && host == text("host")
        }
        // Browsers send one of both with every request that changes something.
        (None, None) => true,
    };
    match is_same {
        true => Ok(()),
        false => Err(AuthError::CrossOrigin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_other_origins_are_rejected() {
        let cases: [(&[(&'static str, &'static str)], bool); 7] = [
            (&[("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("origin", "http://a:1"), ("host", "a:1")], true),
            (&[("origin", "http://b:1"), ("host", "a:1")], false),
            (&[("origin", "null"), ("host", "a:1")], false),
        ];
        for (given, expected) in cases {
            let mut headers = HeaderMap::new();
            for (name, value) in given {
                headers.insert(*name, value.parse().unwrap());
            }
            let accepted = require_same_origin(&Method::POST, &headers).is_ok();
            assert_eq!(accepted, expected, "{given:?}");
            assert!(require_same_origin(&Method::GET, &headers).is_ok());
        }
    }
}
