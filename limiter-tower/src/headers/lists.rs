//! Drafts 10 and 11: two lists, with an item for each limit.

use std::time::Duration;

use http::HeaderValue;
use limiter_core::__private::cached_text;
use limiter_core::{Decision, LimitOutcome};

use super::header_buffer::HeaderBuffer;
use super::{
    Costs, MergedFields, RateLimitHeaders, Unsettled, fields_for, full_for, known_of, remaining, window,
};

/// Writes the value of `RateLimit-Policy`, and then that of `RateLimit`. Returns where they end, if
/// there is anything to tell.
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
        longest = longest.max(service_limit(limit, dialect, costs, text));
    }
    (first > 0).then(|| MergedFields {
        ends: [first, text.len()],
        full_for: longest,
    })
}

/// The item of a policy, which is the same for all requests.
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

/// Returns how long nothing remains of it.
fn service_limit(
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
        RateLimitHeaders::Draft10 if limit.is_allowed() && costs.wanting(limit).is_none() => {
            Some(limit.next_after())
        }
        _ => None,
    };
    text.push(";t=");
    // Where nothing is used, nothing comes back.
    text.seconds(until_more.filter(|more| !more.is_zero()).unwrap_or(window));
    full_for(remaining, window)
}

/// Begins another item of the list that starts at `start`.
fn separate(text: &mut HeaderBuffer, start: usize) {
    if text.len() > start {
        text.push(", ");
    }
}

/// Whether a field is a list of strings, to which items may be added.
pub(super) fn is_list(value: &HeaderValue) -> bool {
    value.as_bytes().trim_ascii_start().first() == Some(&b'"')
}
