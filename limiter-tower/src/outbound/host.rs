//! The host as the key.

use http::header::HOST;
use http::uri::Authority;
use http::{Request, StatusCode};
use limiter_core::Key;

use crate::key::{Extraction, KeyExtractor, KeyRejection};

/// Gives each host that a client calls a separate budget: the host of the request's URI, else that
/// of its `Host` header, in lower case, without the port, and without the dot of the root
/// (`example.com.`).
///
/// A request without a host is not sent: its error is a [`KeyRejection`] with 400.
///
/// ```
/// use http::Request;
/// use limiter_core::Key;
/// use limiter_tower::key::{Extraction, KeyExtractor};
/// use limiter_tower::outbound;
///
/// let request = Request::get("https://API.example.com:8443/v1").body(()).unwrap();
/// assert_eq!(outbound::host().extract(&request), Extraction::Key(Key::from("api.example.com")));
/// ```
pub fn host() -> Host {
    Host(())
}

/// Returns the called host as the key. Created by [`host`].
#[derive(Clone, Copy, Debug)]
#[must_use = "pass the extractor to `OutboundLayer::key`"]
pub struct Host(());

impl<B> KeyExtractor<B> for Host {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        if let Some(host) = request.uri().host() {
            return Extraction::Key(key(host));
        }
        let header = request.headers().get(HOST).map(|host| host.as_bytes());
        match header.map(Authority::try_from) {
            Some(Ok(authority)) => Extraction::Key(key(authority.host()).into_owned()),
            _ => Extraction::Reject(KeyRejection::new(
                StatusCode::BAD_REQUEST,
                "the request has no host",
            )),
        }
    }
}

/// Host names are case-insensitive.
fn key(host: &str) -> Key<'_> {
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Key::from(host.to_ascii_lowercase())
    } else {
        Key::from(host)
    }
}
