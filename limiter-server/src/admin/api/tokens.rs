//! Bearer tokens of a namespace: list, create, revoke, confirm, rotate.
//!
//! All routes need an administrator of the namespace. `admin::tokens` issues and rotates tokens and
//! rejects scopes above the roles of the caller. The secret is in the response of a creation or a
//! rotation only. Tests: `tests/admin_api.rs`, `tests/issued_tokens.rs`, `tests/pages/people.rs`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::paging::{ListPage, by_field};
use crate::admin::api::problem::AdminProblem;
use crate::admin::tokens::{self, TokenFailure, TokenRequest};
use crate::store::{StoredToken, TokenChange, now_micros};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenBody {
    name: String,
    /// Scopes such as `check:*`, `refund:policy=search`, `admin:viewer` or `admin:owner:checkout`.
    scopes: Vec<String>,
    expires_in_days: Option<i64>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateBody {
    overlap_seconds: Option<i64>,
}

fn token_json(token: &StoredToken) -> Value {
    json!({
        "id": token.id,
        "name": token.label,
        "scopes": token.scopes.split_whitespace().collect::<Vec<_>>(),
        "state": tokens::state(token, now_micros()),
        "created_by": token.created_by,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "used_day": token.used_day,
    })
}

pub(super) async fn list(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    page: ListPage,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let tokens = admin.store().tokens(&namespace).await?;
    let tokens = tokens.iter().map(token_json).collect();
    let (tokens, next) = page.select(tokens, by_field("id"))?;
    Ok(Json(json!({ "tokens": tokens, "next": next })))
}

/// Creates a token and shows its secret, which is not stored.
pub(super) async fn create(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    JsonBody(body): JsonBody<TokenBody>,
) -> Result<(StatusCode, Json<Value>), AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let request = TokenRequest {
        namespace,
        name: body.name,
        scopes: body.scopes,
        days: body.expires_in_days,
    };
    let issued = tokens::issue(admin.store(), &caller.0, request).await?;
    let secret = issued.secret.reveal();
    let answer = json!({ "id": issued.id, "secret": secret, "expires_at": issued.expires_at });
    Ok((StatusCode::CREATED, Json(answer)))
}

pub(super) async fn revoke(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let revoked =
        admin
            .store()
            .change_token(&namespace, &id, TokenChange::Revoke, &caller.0.name, now_micros());
    revoked.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Accepts a token again that was suspended with its creator or after a restored database.
pub(super) async fn confirm(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let confirmed = admin.store().change_token(
        &namespace,
        &id,
        TokenChange::Confirm,
        &caller.0.name,
        now_micros(),
    );
    confirmed.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Creates a token with the same scopes and ends the previous one after an overlap.
pub(super) async fn rotate(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
    JsonBody(body): JsonBody<RotateBody>,
) -> Result<(StatusCode, Json<Value>), AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let token = (namespace.as_str(), id.as_str());
    let issued = tokens::rotate(admin.store(), &caller.0, token, body.overlap_seconds).await?;
    let answer = json!({
        "id": issued.id,
        "secret": issued.secret.reveal(),
        "expires_at": issued.expires_at,
        "previous_ends_at": issued.previous_ends_at,
    });
    Ok((StatusCode::CREATED, Json(answer)))
}

impl From<TokenFailure> for AdminProblem {
    fn from(failure: TokenFailure) -> Self {
        match failure {
            TokenFailure::Malformed(reason) => Self::bad_request(reason),
            TokenFailure::InvalidName(reason) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, reason),
            TokenFailure::Forbidden(reason) => Self::forbidden(reason),
            TokenFailure::NotFound => Self::not_found(),
            TokenFailure::Store(error) => error.into(),
        }
    }
}
