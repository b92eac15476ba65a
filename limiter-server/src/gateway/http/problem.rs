//! Responses that report a problem, as RFC 9457 defines them.
//!
//! A client needs the reason of a failure in a form that programs can read. A `Problem` contains
//! the status and the members of the body. A denial also has the policy, the numbers of its limits,
//! the origin, the node and the revision, the headers `RateLimit` and `Retry-After`, and a link to
//! the page that explains it, if one is configured. The key is a member only if the settings permit
//! it.
//!
//! Tests: `tests/explanations.rs`, `tests/http_api.rs`.

use std::borrow::Cow;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use limiter_core::{Decision, Rejection};
use limiter_tower::RateLimitHeaders;
use serde_json::{Map, Value, json};
use tonic::Code;

use crate::access::AccessDenial;
use crate::gateway::Gateway;
use crate::gateway::explanation::origin_name;
use crate::gateway::http::reply;
use crate::store::now_micros;

/// A response that is not a success.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    fields: Map<String, Value>,
    decision: Option<Box<Decision>>,
    retry_after: Option<u64>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: Cow<'static, str>) -> Self {
        let mut fields = Map::new();
        fields.insert("type".into(), json!("about:blank"));
        fields.insert("title".into(), json!(status.canonical_reason()));
        fields.insert("status".into(), json!(status.as_u16()));
        fields.insert("detail".into(), json!(detail));
        Self {
            status,
            fields,
            decision: None,
            retry_after: None,
        }
    }

    pub(super) fn bad_request(detail: Cow<'static, str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found(detail: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, Cow::Borrowed(detail))
    }

    /// Returns the answer to a client that lacks credentials or a scope.
    pub(super) fn of_denial(denial: &AccessDenial) -> Self {
        let status = match denial {
            _ if denial.is_forbidden() => StatusCode::FORBIDDEN,
            _ if denial.is_unavailable() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::UNAUTHORIZED,
        };
        Self::new(status, Cow::Owned(denial.to_string()))
    }

    /// Returns the answer to a call by an id that was rejected. The policy of an id was configured
    /// when a node issued it.
    pub(super) fn of_rejected_id(gateway: &Gateway, rejection: &Rejection) -> Self {
        match rejection {
            Rejection::NotConfigured { policy } => {
                let detail = format!(
                    "the policy `{policy:.120}` of the id was removed: only nodes that have issued ids of this policy \
                     accept them"
                );
                Self::new(StatusCode::NOT_FOUND, Cow::Owned(detail))
            }
            rejection => Self::of_rejection(gateway, rejection),
        }
    }

    /// Returns the answer to an error of Envoy's protocol.
    pub(super) fn of_status(status: &tonic::Status) -> Self {
        let code = match status.code() {
            Code::InvalidArgument | Code::FailedPrecondition => StatusCode::BAD_REQUEST,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(code, Cow::Owned(status.message().to_owned()))
    }

    /// Replaces the status of a limited call, for proxies that accept certain ones only.
    pub(super) fn with_deny_status(mut self, status: StatusCode) -> Self {
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            self.status = status;
            self.fields.insert("status".into(), json!(status.as_u16()));
        }
        self
    }

    /// Returns the answer to a rejected call, with the explanation of a denial.
    pub(super) fn of_rejection(gateway: &Gateway, rejection: &Rejection) -> Self {
        // Costs, keys and ids come from the client, and so do names of policies.
        let status = match rejection {
            Rejection::Config(error) => return Self::bad_request(Cow::Owned(error.to_string())),
            Rejection::NotConfigured { policy } => {
                let detail = format!("no policy `{policy:.120}` is configured");
                return Self::new(StatusCode::NOT_FOUND, Cow::Owned(detail));
            }
            rejection => rejection.http_status(),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut problem = Self::new(status, Cow::Owned(rejection.to_string()));
        if let Ok(Value::Object(fields)) = serde_json::from_str(&rejection.problem_json()) {
            problem.fields = fields;
        }
        if rejection.is_unavailable() {
            // The library logs the beginning and the end of an outage.
            tracing::debug!(error = %rejection.diagnostic(), "cannot decide an HTTP request");
        }
        problem.fields.insert("allowed".into(), json!(false));
        problem.fields.insert("node".into(), json!(gateway.node()));
        problem
            .fields
            .insert("revision".into(), json!(gateway.revision()));
        match rejection {
            Rejection::NeverFits { policy, .. } => {
                problem.fields.insert("policy".into(), json!(policy.name()));
            }
            rejection => {
                let denied_by = rejection.decision().and_then(Decision::denied_by);
                let name = denied_by.map(|limit| limit.policy().name());
                problem
                    .fields
                    .extend(name.map(|name| ("policy".into(), json!(name))));
            }
        }
        if let Rejection::Forbidden { policy, .. } = rejection {
            problem.fields.insert("policy".into(), json!(policy));
        }
        if let Some(decision) = rejection.decision() {
            problem.describe(decision);
        }
        if let Rejection::Forbidden { .. } = rejection {
            // A key list, a block and a suspension have no quota, and no retry succeeds.
            problem.decision = None;
        }
        problem.retry_after = rejection.retry_after_seconds();
        problem.link_to_explanation(gateway, None);
        problem
    }

    fn describe(&mut self, decision: &Decision) {
        let origin = origin_name(decision.origin());
        self.fields.insert("origin".into(), json!(origin));
        let limits = reply::limits(std::slice::from_ref(decision));
        self.fields.insert("limits".into(), limits.into());
        self.decision = Some(Box::new(decision.clone()));
    }

    /// Adds the numbers of limits that were peeked, because the limits that `is_denied` accepts by
    /// their number denied the call before they were known.
    pub(super) fn with_numbers(mut self, peeked: &Decision, is_denied: impl Fn(usize) -> bool) -> Self {
        self.describe(peeked);
        if let Some(limits) = self.fields.get_mut("limits").and_then(Value::as_array_mut) {
            deny(limits, is_denied);
        }
        self
    }

    /// Adds the number of limits that were refunded before the problem, in their order.
    pub(super) fn with_refunded(mut self, limits: usize) -> Self {
        self.fields.insert("refunded".into(), json!(limits));
        self
    }

    /// Returns whether the answer has the numbers of the limits of a denial.
    pub(super) fn describes_limits(&self) -> bool {
        self.fields.contains_key("limits")
    }

    /// Adds the numbers of limits before and after those of the denial.
    pub(super) fn with_other_limits(mut self, before: Vec<Value>, after: Vec<Value>) -> Self {
        if let Some(limits) = self.fields.get_mut("limits").and_then(Value::as_array_mut) {
            limits.splice(0..0, before);
            limits.extend(after);
        }
        self
    }

    /// Moves the time of a retry to that of the latest of further denials, in seconds. Without a
    /// time for one of them, no retry succeeds.
    pub(super) fn with_other_waits(mut self, waits: &[Option<u64>]) -> Self {
        let Some(own) = self.retry_after else {
            return self;
        };
        let latest = waits
            .iter()
            .try_fold(own, |latest, wait| wait.map(|wait| latest.max(wait)));
        if latest != Some(own) {
            let detail = match latest {
                Some(seconds) => format!("rate limit reached, retry after {seconds} seconds"),
                None => "rate limit reached".to_owned(),
            };
            self.fields.insert("detail".into(), json!(detail));
            self.retry_after = latest;
        }
        self
    }

    /// Adds the key of the limit that denied, with its parts separated by ` / `, as far as the
    /// settings allow it to be shown.
    pub(super) fn with_key(mut self, gateway: &Gateway, key: &str) -> Self {
        let shown = gateway.shown_key(key);
        if let Some(key) = &shown {
            self.fields.insert("key".into(), json!(key));
        }
        self.link_to_explanation(gateway, shown.as_deref());
        self
    }

    /// Sets `instance` to the page that explains a denial, if its address is configured.
    fn link_to_explanation(&mut self, gateway: &Gateway, key: Option<&str>) {
        let policy = self.fields.get("policy").and_then(Value::as_str);
        let url = policy.and_then(|policy| gateway.explain_url(policy, key, now_micros()));
        if let Some(url) = url {
            self.fields.insert("instance".into(), json!(url));
        }
    }
}

/// Denies the limits that `is_denied` accepts by their number. Their cost never fits, so no retry
/// succeeds, and the time of the peek is removed.
pub(super) fn deny(limits: &mut [Value], is_denied: impl Fn(usize) -> bool) {
    for (number, limit) in limits.iter_mut().enumerate() {
        if let Some(limit) = limit.as_object_mut().filter(|_| is_denied(number)) {
            limit.insert("allowed".into(), json!(false));
            limit.insert("retry_after_ms".into(), Value::Null);
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Value::Object(self.fields).to_string();
        let content_type = (header::CONTENT_TYPE, Rejection::PROBLEM_JSON);
        let mut response = (self.status, [content_type], body).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                header::HeaderValue::from_static("Bearer"),
            );
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(decision) = &self.decision {
            RateLimitHeaders::default().write(decision, headers);
        }
        response
    }
}
