//! Answers to calls that succeeded.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use limiter_core::{Amount, Decision, LimitOutcome};
use limiter_tower::RateLimitHeaders;
use serde::ser::{Serialize, SerializeSeq, Serializer};
use serde_json::{Map, Number, Value};

use crate::gateway::Gateway;
use crate::gateway::explanation::origin_name;

/// The length of most answers in bytes, for which the buffer is reserved.
const USUAL_BYTES: usize = 256;

/// The largest number of limits in the rate limit headers.
const MAX_LIMITS_IN_HEADERS: usize = 16;

/// The body of an allowed decision. It is written without intermediate JSON values, because this is
/// the most frequent answer.
#[derive(serde::Serialize)]
struct AllowedBody<'a> {
    allowed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    would_deny: bool,
    limits: Limits<'a>,
    delay_ms: u64,
    origin: Option<&'static str>,
    revision: u64,
    node: &'a str,
    #[serde(flatten, skip_serializing_if = "Map::is_empty")]
    more: Map<String, Value>,
}

/// The limits of decisions in their order. Limits that were not decided, such as those of a policy
/// that is off, are absent.
pub(super) struct Limits<'a>(pub(super) &'a [Decision]);

/// The numbers of one limit.
#[derive(serde::Serialize)]
struct LimitNumbers<'a> {
    policy: &'a str,
    allowed: bool,
    limit: JsonAmount,
    remaining: JsonAmount,
    retry_after_ms: u64,
    reset_after_ms: u64,
}

/// An exact number: an integer unless the amount has a fraction.
struct JsonAmount(Amount);

impl Serialize for Limits<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut limits = serializer.serialize_seq(None)?;
        for limit in self.0.iter().flat_map(Decision::limits) {
            limits.serialize_element(&LimitNumbers::new(limit))?;
        }
        limits.end()
    }
}

impl<'a> LimitNumbers<'a> {
    fn new(limit: &'a LimitOutcome) -> Self {
        Self {
            policy: limit.policy().name(),
            allowed: limit.is_allowed(),
            limit: JsonAmount(limit.policy().quota()),
            remaining: JsonAmount(limit.remaining()),
            retry_after_ms: millis(limit.retry_after()),
            reset_after_ms: millis(limit.reset_after()),
        }
    }
}

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

/// The answer of an allowed decision about one or several sets of limits.
pub(super) fn allowed(gateway: &Gateway, decisions: &[Decision], more: Map<String, Value>) -> Response {
    let delay = decisions.iter().map(Decision::delay).max();
    let body = AllowedBody {
        allowed: true,
        would_deny: decisions.iter().any(Decision::would_deny),
        limits: Limits(decisions),
        delay_ms: millis(delay.unwrap_or_default()),
        origin: decisions.last().map(|decision| origin_name(decision.origin())),
        revision: gateway.revision(),
        node: gateway.node(),
        more,
    };
    let mut response = json(&body);
    write_headers(decisions, response.headers_mut());
    response
}

/// Writes the rate limit headers, one line each. Of more limits than the headers contain, they show
/// the sets with the smallest remaining share of a limit.
fn write_headers(decisions: &[Decision], headers: &mut HeaderMap) {
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

/// The smallest remaining share of a limit, in millionths of its capacity.
fn smallest_share(decision: &Decision) -> u128 {
    let shares = decision.limits().iter().map(|limit| {
        let capacity = limit.policy().quota().as_thousandths().max(1);
        limit.remaining().as_thousandths().saturating_mul(1_000_000) / capacity
    });
    shares.min().unwrap_or(u128::MAX)
}

/// A JSON object.
pub(super) fn object(fields: Map<String, Value>) -> Response {
    json(&fields)
}

fn json(body: &impl Serialize) -> Response {
    let mut text = Vec::with_capacity(USUAL_BYTES);
    // Texts, numbers and maps with keys of text are always JSON, and memory accepts every write.
    let _ = serde_json::to_writer(&mut text, body);
    let mut response = Response::new(Body::from(text));
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// Whole milliseconds, rounded up, so that a client that waits is not early.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
