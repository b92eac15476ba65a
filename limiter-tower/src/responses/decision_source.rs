//! A response header that shows the source of a decision to operators.

use http::HeaderValue;
use limiter_core::{Decision, Origin};

/// `memory`, or `local-fallback;would-deny`: a token of a structured field, with further properties
/// as parameters.
pub(super) fn value(decision: &Decision) -> HeaderValue {
    let mut text = name(decision.origin()).to_owned();
    for (holds, parameter) in [
        (decision.would_deny(), ";would-deny"),
        (decision.is_degraded(), ";degraded"),
        (decision.is_blocked(), ";blocked"),
        (decision.store_error().is_some(), ";store-out"),
    ] {
        if holds {
            text.push_str(parameter);
        }
    }
    // Every combination of the values above is a valid header value.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("unknown"))
}

fn name(origin: Origin) -> &'static str {
    match origin {
        Origin::Redis => "redis",
        Origin::DenyCache => "deny-cache",
        Origin::Memory => "memory",
        Origin::Lease => "lease",
        Origin::LocalFallback => "local-fallback",
        Origin::FailedOpen => "failed-open",
        Origin::FailedClosed => "failed-closed",
        Origin::NotConfigured => "not-configured",
        Origin::KeyList => "key-list",
        Origin::Off => "off",
        Origin::Suspension => "suspension",
        Origin::Block => "block",
        _ => "unknown",
    }
}
