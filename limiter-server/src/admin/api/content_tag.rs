//! Answers that a client polls: the tag of their content, and 304 if the client has it.

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::admin::api::policies::insert_tag;

/// Answers with JSON and the weak tag of `content`, the part of the answer that does not change by
/// itself.
pub(super) fn answer(request: &HeaderMap, content: &Value, answer: Value) -> Response {
    let digest = Sha256::digest(content.to_string());
    let digits: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("W/\"{digits}\"");
    let known = request.get(header::IF_NONE_MATCH);
    let mut response = match known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Json(answer).into_response(),
    };
    insert_tag(response.headers_mut(), &tag);
    response
}
