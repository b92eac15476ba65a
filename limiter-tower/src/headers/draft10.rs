//! Writes drafts 10 and 11: two lists with one item for each limit.
//!
//! Clients of these drafts select the limit themselves, so the lists contain all of them. The item
//! of a policy does not depend on the request and is cached with the policy; the item of a limit
//! contains the remaining permits and the time for which they have to suffice.
//!
//! Invariant: both values are lists of RFC 9651 (`lists_are_valid_structured_fields` in
//! `headers/tests/syntax.rs`). Further tests: `headers/tests/`, `tests/http/nested.rs`.

use std::time::Duration;

use http::HeaderValue;
use limiter_core::__private::cached_text;
use limiter_core::{Decision, LimitOutcome};

use super::header_buffer::HeaderBuffer;
use super::{
    Costs, MergedFields, RateLimitHeaders, Unsettled, fields_for, full_for, known_of, remaining, window,
};

/// Writes the value of `RateLimit-Policy` and then of `RateLimit`. `None` if there are no limits.
pub(super) fn write(
    decision: &Decision,
    open: &Unsettled,
    dialect: RateLimitHeaders,
    costs: &Costs,
    text: &mut HeaderBuffer,
) -> Option<MergedFields> {
    for limit in fields_for(decision) {
        separate(text, 0);
        text.push(cached_text(limit.policy(), || item(limit)));
    }
    let (first, mut longest) = (text.len(), Duration::ZERO);
    for limit in known_of(decision, open) {
        separate(text, first);
        longest = longest.max(write_limit(limit, dialect, costs, text));
    }
    (first > 0).then(|| MergedFields {
        ends: [first, text.len()],
        full_for: longest,
    })
}

/// Formats the item of a policy. It does not depend on the request.
#[cold]
fn item(limit: &LimitOutcome) -> String {
    let (policy, mut text) = (limit.policy(), HeaderBuffer::default());
    text.string(policy.name());
    text.push(";q=");
    text.integer(policy.quota().whole());
    if limit.effective_window().is_none() {
        text.push(";qu=\"concurrent-requests\"");
    } else if policy.window().as_secs() > 0 {
        text.push(";w=");
        text.seconds(policy.window());
    }
    text.into_string()
}

/// Writes the item of a limit. Returns the time for which it has no remaining permits.
fn write_limit(
    limit: &LimitOutcome,
    dialect: RateLimitHeaders,
    costs: &Costs,
    text: &mut HeaderBuffer,
) -> Duration {
    let remaining = remaining(limit, costs);
    text.string(limit.policy().name());
    text.push(";r=");
    text.integer(remaining);
    let Some(window) = window(limit, costs) else {
        return Duration::ZERO;
    };
    let until_more = match dialect {
        RateLimitHeaders::Draft10 if limit.is_allowed() && costs.missing_cost(limit).is_none() => {
            Some(limit.next_after())
        }
        _ => None,
    };
    text.push(";t=");
    // An unused limit has no next permit.
    text.seconds(until_more.filter(|more| !more.is_zero()).unwrap_or(window));
    full_for(remaining, window)
}

/// Writes a separator unless this is the first item of the list at `start`.
fn separate(text: &mut HeaderBuffer, start: usize) {
    if text.len() > start {
        text.push(", ");
    }
}

/// Returns whether the value is a list of strings, so that items can be appended.
pub(super) fn is_list(value: &HeaderValue) -> bool {
    value.as_bytes().trim_ascii_start().first() == Some(&b'"')
}
