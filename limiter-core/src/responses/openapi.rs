//! The responses of a rejection in an OpenAPI document (feature `utoipa`).
//!
//! They are written as JSON, because the builders of utoipa 5 and 6 differ. The test compares the
//! schema with the problem documents that are sent.

use std::collections::BTreeMap;

use utoipa::openapi::RefOr;
use utoipa::openapi::response::{Response, ResponseBuilder};

use crate::decision::Rejection;

const RESPONSES: [(&str, &str, Option<&str>); 4] = [
    ("403", "A list of keys denies the request", None),
    ("429", "A rate limit denies the request", Some(RETRY_AFTER)),
    ("500", "The rate limiter is misconfigured", None),
    ("503", "The rate limiter is unavailable", None),
];

const RETRY_AFTER: &str = r#"{"Retry-After": {
    "description": "Seconds until an equal request can be admitted; absent if none can",
    "schema": {"type": "integer", "minimum": 1}
}}"#;

/// The schema of [`Rejection::problem_json`].
const PROBLEM: &str = r#"{
    "type": "object",
    "description": "Problem details (RFC 9457)",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "violated-policies": {"type": "array", "items": {"type": "string"}}
    }
}"#;

/// The responses that a handler sends for a [`Rejection`]: 403, 429, 500 and 503 with a problem
/// document, and 429 with `Retry-After`.
///
/// ```
/// use limiter_core::Rejection;
/// use utoipa::IntoResponses;
///
/// let responses = Rejection::responses();
/// assert_eq!(responses.keys().collect::<Vec<_>>(), ["403", "429", "500", "503"]);
/// ```
///
/// In `#[utoipa::path]`, write `responses((status = 200, …), Rejection)`.
#[cfg_attr(docsrs, doc(cfg(feature = "utoipa")))]
impl utoipa::IntoResponses for Rejection {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let all = RESPONSES.into_iter();
        all.map(|(status, description, headers)| {
            (status.to_owned(), RefOr::T(response(description, headers)))
        })
        .collect()
    }
}

fn response(description: &str, headers: Option<&str>) -> Response {
    let (kind, headers) = (Rejection::PROBLEM_JSON, headers.unwrap_or("{}"));
    let json = format!(
        r#"{{"description": "{description}", "headers": {headers}, "content": {{"{kind}": {{"schema": {PROBLEM}}}}}}}"#
    );
    // The JSON is constant; the test reads each response.
    serde_json::from_str(&json).unwrap_or_else(|_| ResponseBuilder::new().description(description).build())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use utoipa::IntoResponses;

    use crate::decision::Rejection;
    use crate::error::ConfigError;
    use crate::limiter::Limiter;
    use crate::policy::Policy;

    #[tokio::test]
    async fn sent_problem_documents_match_schema() {
        let limits = Limiter::in_process().build();
        let window = || Policy::sliding_window("p").limit(1).window("1m");
        let policy = window().build().unwrap();
        let denied = window().deny_keys(["k"]).build().unwrap();
        let _ = limits.check(&policy, "k").await.unwrap();
        let rejections = [
            limits.check(&policy, "k").await.unwrap().require().unwrap_err(),
            limits.check(&denied, "k").await.unwrap().require().unwrap_err(),
            limits.check(&policy, "k").cost(2).await.unwrap_err(),
            Rejection::Config(ConfigError::AlreadyInstalled),
        ];
        let responses = serde_json::to_value(Rejection::responses()).unwrap();
        for rejection in rejections {
            let sent: serde_json::Value = serde_json::from_str(&rejection.problem_json()).unwrap();
            let response = &responses[rejection.http_status().to_string()];
            let schema = &response["content"][Rejection::PROBLEM_JSON]["schema"];
            for required in schema["required"].as_array().unwrap() {
                assert!(sent.get(required.as_str().unwrap()).is_some(), "{sent}");
            }
            for (name, value) in sent.as_object().unwrap() {
                let kind = match value {
                    serde_json::Value::String(_) => "string",
                    serde_json::Value::Number(_) => "integer",
                    _ => "array",
                };
                assert_eq!(schema["properties"][name]["type"], kind, "{name} of {sent}");
            }
            let has_header = response["headers"].get("Retry-After").is_some();
            assert!(has_header || rejection.retry_after().is_none(), "{rejection:?}");
        }
    }
}
