//! The rules of a namespace.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody, expected_revision};
use crate::admin::api::policies::insert_tag;
use crate::admin::api::problem::AdminProblem;
use crate::admin::edit;
use crate::store::{DocumentKind, Origin, RULES};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesBody {
    toml: String,
    reason: Option<String>,
}

pub(super) async fn read(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
) -> Result<Response, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let found = admin
        .store()
        .document(&namespace, DocumentKind::Rules, RULES)
        .await?;
    let revision = found.as_ref().map_or(0, |of| of.revision);
    let rules: Value = match &found {
        None => json!({ "toml": "", "revision": 0, "state": "published" }),
        Some(of) => json!({
            "toml": of.body,
            "revision": of.revision,
            "published": of.published,
            "state": of.state.name(),
            "updated_by": of.updated_by,
            "updated_at": of.updated_at,
        }),
    };
    let mut response = Json(rules).into_response();
    insert_tag(response.headers_mut(), &format!("\"{revision}\""));
    Ok(response)
}

pub(super) async fn save(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<RulesBody>,
) -> Result<Response, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let expected = expected_revision(&headers)?;
    let (store, actor) = (admin.store(), &caller.0);
    let saved = edit::save_rules(
        store,
        actor,
        &namespace,
        expected,
        &body.toml,
        body.reason,
        Origin::Api,
    );
    let revision = saved.await?;
    if let Some(publisher) = admin.publisher(&namespace) {
        publisher.wake();
    }
    let mut response = Json(json!({ "revision": revision, "state": "pending" })).into_response();
    insert_tag(response.headers_mut(), &format!("\"{revision}\""));
    Ok(response)
}
