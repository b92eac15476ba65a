//! Protection against web pages.
//!
//! A web page in a browser can reach a server that its author cannot: by a name of its own that
//! resolves to the server's address, or by a request that the browser sends without a preflight.
//! The `Host` allow-list prevents the first, the content type prevents the second. The server
//! answers no preflight, so pages of other origins cannot send JSON.

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};

use crate::error_text::not_json;
use crate::gateway::Gateway;
use crate::gateway::http::problem::Problem;
use crate::host_name;

/// A path whose clients send no content type, as with envoyproxy/ratelimit.
const TYPELESS_PATH: &str = "/json";

/// Rejects requests that a web page in a browser can cause.
pub(super) fn require_json(request: &Parts) -> Result<(), Problem> {
    if request.method != Method::POST {
        return Ok(());
    }
    let content_type = request.headers.get(header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes() == b"application/json") {
        return Ok(());
    }
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let essence = content_type.map(|value| value.split(';').next().unwrap_or_default().trim());
    let is_json = essence.is_some_and(|of| of.eq_ignore_ascii_case("application/json"));
    let may_be_typeless = || request.uri.path() == TYPELESS_PATH && !is_from_browser(&request.headers);
    if is_json || may_be_typeless() {
        return Ok(());
    }
    Err(Problem::bad_request(
        not_json(content_type.unwrap_or_default()).into(),
    ))
}

/// Returns whether a browser sends the request. All of them name the origin of a cross-origin POST.
fn is_from_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site")
}

/// Rejects names that another party can point at this machine.
pub(super) fn require_allowed_host(gateway: &Gateway, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    let host = headers.get(header::HOST);
    let host = host.and_then(|value| value.to_str().ok());
    let host = host.or_else(|| uri.host());
    let is_allowed =
        |host: &str| host_name::is_local(host) || gateway.allows_host(host_name::without_port(host));
    if host.is_some_and(is_allowed) {
        return Ok(());
    }
    Err(Problem::bad_request(host_name::not_accepted(host).into()))
}
