//! Headers and checks that protect the pages.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::admin::pages::Pages;
use crate::admin::pages::failure::PageFailure;
use crate::host_name;

const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'self'; \
     frame-ancestors 'none'; object-src 'none'";

/// Adds the headers of private pages.
pub(super) async fn with_page_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // `no-referrer` would remove the origin from the forms of the pages.
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
        headers.insert(name, HeaderValue::from_static("same-origin"));
    }
    response
}

/// Rejects names that another party can point at this machine.
pub(super) async fn require_allowed_host(
    State(pages): State<Pages>,
    request: Request,
    next: Next,
) -> Response {
    let host = host_of(request.headers()).or_else(|| request.uri().host());
    let is_allowed = |host: &str| {
        let name = host_name::without_port(host);
        host_name::is_local(host) || pages.allowed_hosts.iter().any(|of| of.eq_ignore_ascii_case(name))
    };
    if !host.is_some_and(is_allowed) {
        return PageFailure::bad_request(host_name::not_accepted(host)).into_response();
    }
    next.run(request).await
}

fn host_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::HOST).and_then(|value| value.to_str().ok())
}
