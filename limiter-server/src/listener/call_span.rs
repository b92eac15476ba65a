//! The span of a call, at the level debug.
//!
//! A filter such as `RUST_LOG=info,limiter_server::call=debug` writes one line per call, with its
//! duration. Without it, a span costs one comparison. Spans contain no keys and no values of
//! descriptors. Tests: `tests/call_spans.rs`.

use std::fmt::Debug;

use axum::http::{Request, StatusCode};
use tracing::field::{Empty, debug};
use tracing::{Level, Span};

/// The target of the spans in filters.
macro_rules! target {
    () => {
        "limiter_server::call"
    };
}

/// Returns the span of an HTTP request, gRPC calls included. Paths of the admin part contain names
/// of keys.
pub(super) fn of_request<B>(protocol: &'static str, request: &Request<B>) -> Span {
    let path = match protocol {
        "admin" => None,
        _ => Some(request.uri().path()),
    };
    tracing::debug_span!(
        target: target!(),
        "call",
        protocol,
        method = %request.method(),
        path,
        status = Empty,
        domain = Empty,
        code = Empty,
    )
}

/// Returns the span of a command of RESP.
pub(crate) fn of_command(command: &'static str) -> Span {
    tracing::debug_span!(target: target!(), "call", protocol = "resp", command)
}

/// Records the status of an HTTP response.
pub(super) fn record_status(span: &Span, status: StatusCode) {
    if !span.is_disabled() {
        span.record("status", status.as_u16());
    }
}

/// Records the domain and the result of a call of the rate limit service in its span.
pub(crate) fn record_rate_limit(domain: &str, code: impl Debug) {
    if tracing::enabled!(target: target!(), Level::DEBUG) {
        Span::current()
            .record("domain", domain)
            .record("code", debug(code));
    }
}
