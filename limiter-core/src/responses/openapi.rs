//! The responses of a rejection in an OpenAPI document (feature `utoipa`).
//!
//! The test compares the schema with the problem documents that are sent.

use std::collections::BTreeMap;

use utoipa::openapi::RefOr;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type};

use crate::decision::Rejection;

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
        let retry_after = HeaderBuilder::new()
            .schema(ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)))
            .description(Some(
                "Seconds until an equal request can be admitted; absent if none can",
            ))
            .build();
        [
            ("403", response("A list of keys denies the request")),
            (
                "429",
                response("A rate limit denies the request").header("Retry-After", retry_after),
            ),
            ("500", response("The rate limiter is misconfigured")),
            ("503", response("The rate limiter is unavailable")),
        ]
        .into_iter()
        .map(|(status, response)| (status.to_owned(), RefOr::T(response.build())))
        .collect()
    }
}

fn response(description: &str) -> ResponseBuilder {
    let content = ContentBuilder::new().schema(Some(problem_schema())).build();
    ResponseBuilder::new()
        .description(description)
        .content(Rejection::PROBLEM_JSON, content)
}

/// The schema of [`Rejection::problem_json`].
fn problem_schema() -> ObjectBuilder {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let kind = text().format(Some(SchemaFormat::KnownFormat(KnownFormat::Uri)));
    let status = ObjectBuilder::new().schema_type(Type::Integer);
    let violated = ArrayBuilder::new().items(text());
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some("Problem details (RFC 9457)"))
        .property("type", kind)
        .property("title", text())
        .property("status", status)
        .property("detail", text())
        .property("violated-policies", violated)
        .required("type")
        .required("title")
        .required("status")
        .required("detail")
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
            Rejection::Config(ConfigError::missing("rate")),
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
