//! Responses to calls that succeeded: the numbers of each limit, as JSON and as headers.
//!
//! An amount is an integer unless it has a fraction, and a wait is rounded up to milliseconds, so
//! that a client that waits is not early. The headers show at most `MAX_LIMITS_IN_HEADERS` limits;
//! of more, they show the decisions with the smallest remaining share.
//!
//! Tests: `tests/http_api.rs`.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use limiter_core::{Amount, Decision};
use limiter_tower::RateLimitHeaders;
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Number, Value};

use crate::gateway::Gateway;
use crate::gateway::explanation::origin_name;
use crate::gateway::http::json_text::JsonText;

/// The largest number of limits in the rate limit headers.
const MAX_LIMITS_IN_HEADERS: usize = 16;

/// An exact number: an integer unless the amount has a fraction.
struct JsonAmount(Amount);

impl Serialize for JsonAmount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(amount) = self;
        if amount.is_whole() {
            return serializer.serialize_u64(amount.whole());
        }
        let text = format!("{}.{:03}", amount.whole(), amount.as_thousandths() % 1_000);
        match text.parse::<Number>() {
            Ok(number) => number.serialize(serializer),
            Err(_) => serializer.serialize_unit(),
        }
    }
}

/// Returns the answer of an allowed decision about one or several sets of limits.
pub(super) fn allowed(gateway: &Gateway, decisions: &[Decision], more: Map<String, Value>) -> Response {
    let delay = decisions.iter().map(Decision::delay).max();
    let mut text = JsonText::new();
    text.begin_object();
    text.field("allowed", &true);
    if decisions.iter().any(Decision::would_deny) {
        text.field("would_deny", &true);
    }
    write_limits(&mut text, decisions);
    text.field("delay_ms", &millis(delay.unwrap_or_default()));
    let origin = decisions.last().map(|decision| origin_name(decision.origin()));
    text.field("origin", &origin);
    text.field("revision", &gateway.revision());
    text.field("node", &gateway.node());
    for (name, value) in &more {
        text.escaped_field(name, value);
    }
    text.end_object();
    let mut response = json(text.into_bytes());
    write_headers(decisions, response.headers_mut());
    response
}

/// Writes the field `limits`: the numbers of each limit of decisions, in their order. Limits that
/// were not decided, such as those of a policy that is off, are absent.
fn write_limits(text: &mut JsonText, decisions: &[Decision]) {
    text.begin_list("limits");
    for limit in decisions.iter().flat_map(Decision::limits) {
        text.begin_object();
        text.field("policy", &limit.policy().name());
        text.field("allowed", &limit.is_allowed());
        text.field("limit", &JsonAmount(limit.policy().quota()));
        text.field("remaining", &JsonAmount(limit.remaining()));
        text.field("retry_after_ms", &millis(limit.retry_after()));
        text.field("reset_after_ms", &millis(limit.reset_after()));
        text.end_object();
    }
    text.end_list();
}

/// Returns the numbers of each limit of decisions, as in the field `limits` of an answer.
pub(super) fn limits(decisions: &[Decision]) -> Vec<Value> {
    let mut text = JsonText::new();
    text.begin_object();
    write_limits(&mut text, decisions);
    text.end_object();
    // The text has one field, which is a list.
    let read = serde_json::from_slice::<Map<String, Value>>(&text.into_bytes()).unwrap_or_default();
    match read.into_iter().next() {
        Some((_, Value::Array(limits))) => limits,
        _ => Vec::new(),
    }
}

/// Writes the rate limit headers, one line each. Of more limits than the headers contain, they show
/// the sets with the smallest remaining share of a limit.
fn write_headers(decisions: &[Decision], headers: &mut HeaderMap) {
    if let [only] = decisions {
        // One decision has at most as many limits as the headers.
        return RateLimitHeaders::default().write(only, headers);
    }
    let mut shown: Vec<&Decision> = decisions.iter().collect();
    let mut free = MAX_LIMITS_IN_HEADERS;
    let limits: usize = decisions.iter().map(|decision| decision.limits().len()).sum();
    if limits > free {
        shown.sort_by_key(|decision| smallest_share(decision));
    }
    for decision in shown {
        let Some(left) = free.checked_sub(decision.limits().len()) else {
            break;
        };
        free = left;
        RateLimitHeaders::default().write(decision, headers);
    }
    for name in ["ratelimit-policy", "ratelimit"] {
        let lines: Vec<_> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        // A list of header values is a header value.
        if lines.len() > 1
            && let Ok(line) = HeaderValue::from_bytes(&lines.join(&b", "[..]))
        {
            headers.insert(name, line);
        }
    }
}

/// Returns the smallest remaining share of a limit, in millionths of its capacity.
fn smallest_share(decision: &Decision) -> u128 {
    let shares = decision.limits().iter().map(|limit| {
        let capacity = limit.policy().quota().as_thousandths().max(1);
        limit.remaining().as_thousandths().saturating_mul(1_000_000) / capacity
    });
    shares.min().unwrap_or(u128::MAX)
}

/// Returns a JSON object.
pub(super) fn object(fields: Map<String, Value>) -> Response {
    // Values with keys of text are always JSON.
    json(serde_json::to_vec(&fields).unwrap_or_default())
}

fn json(text: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(text));
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// Returns whole milliseconds, rounded up, so that a client that waits is not early.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
