//! Answers to calls that succeeded.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use limiter_core::{Amount, Decision};
use limiter_tower::RateLimitHeaders;
use serde_json::{Map, Number, Value, json};

use crate::gateway::Gateway;
use crate::gateway::explanation::origin_name;

/// The answer of an allowed decision about one or several sets of limits.
pub(super) fn allowed(gateway: &Gateway, decisions: &[Decision], more: Map<String, Value>) -> Response {
    let mut headers = HeaderMap::new();
    let mut shown = Vec::new();
    let mut delay = Duration::ZERO;
    for decision in decisions {
        RateLimitHeaders::default().write(decision, &mut headers);
        if let Value::Array(limits) = limits(decision) {
            shown.extend(limits);
        }
        delay = delay.max(decision.delay());
    }
    let origin = decisions.last().map(|decision| origin_name(decision.origin()));
    let mut fields = more;
    fields.insert("allowed".into(), json!(true));
    if decisions.iter().any(Decision::would_deny) {
        fields.insert("would_deny".into(), json!(true));
    }
    fields.insert("limits".into(), Value::Array(shown));
    fields.insert("delay_ms".into(), millis(delay));
    fields.insert("origin".into(), json!(origin));
    fields.insert("revision".into(), json!(gateway.limiter().registry().revision()));
    fields.insert("node".into(), json!(gateway.node()));
    let mut response = object(fields);
    response.headers_mut().extend(headers);
    response
}

/// A JSON object.
pub(super) fn object(fields: Map<String, Value>) -> Response {
    let content_type = (header::CONTENT_TYPE, "application/json");
    ([content_type], Value::Object(fields).to_string()).into_response()
}

/// The limits of a decision in their order. Limits that were not decided, such as those of a policy
/// that is off, are absent.
pub(super) fn limits(decision: &Decision) -> Value {
    let limits = decision.limits().iter().map(|limit| {
        json!({
            "policy": limit.policy().name(),
            "allowed": limit.is_allowed(),
            "limit": amount(limit.policy().quota()),
            "remaining": amount(limit.remaining()),
            "retry_after_ms": millis(limit.retry_after()),
            "reset_after_ms": millis(limit.reset_after()),
        })
    });
    Value::Array(limits.collect())
}

/// Whole milliseconds, rounded up, so that a client that waits is not early.
pub(super) fn millis(span: Duration) -> Value {
    json!(u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX))
}

/// An exact number: an integer unless the amount has a fraction.
fn amount(amount: Amount) -> Value {
    if amount.is_whole() {
        return json!(amount.whole());
    }
    let text = format!("{}.{:03}", amount.whole(), amount.as_thousandths() % 1_000);
    text.parse::<Number>().map_or(Value::Null, Value::Number)
}
