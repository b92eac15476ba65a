//! Who decided, as an operator reads it in a header.

use http::HeaderValue;
use limiter_core::{Decision, Origin};

/// `memory`, or `local-fallback;would-deny`: a token of a structured field, with what else is to be
/// said as its parameters.
pub(super) fn value(decision: &Decision) -> HeaderValue {
    let mut text = name(decision.origin()).to_owned();
    for (holds, said) in [
        (decision.would_deny(), ";would-deny"),
        (decision.is_degraded(), ";degraded"),
        (decision.is_blocked(), ";blocked"),
        (decision.store_error().is_some(), ";store-out"),
    ] {
        if holds {
            text.push_str(said);
        }
    }
    // Of the letters above every value is valid.
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
        _ => "unknown",
    }
}
