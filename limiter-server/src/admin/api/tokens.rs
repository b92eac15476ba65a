//! Bearer tokens of a namespace.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::Scope;
use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::people::require_name;
use crate::admin::api::problem::AdminProblem;
use crate::admin::auth::{TOKEN_PREFIX, parse_admin_scope};
use crate::admin::permissions::may_grant;
use crate::secret::{Secret, random_id};
use crate::store::{NewStoredToken, StoredToken, now_micros};

const MICROS_PER_DAY: i64 = 86_400_000_000;
/// The default and the longest lifetime in days.
const LIFETIME_DAYS: (i64, i64) = (90, 3_650);
/// The default and the longest time for which a rotated token remains valid, in seconds.
const OVERLAP_SECONDS: (i64, i64) = (86_400, 30 * 86_400);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenBody {
    name: String,
    /// Scopes such as `check:*`, `refund:policy=search`, `admin:viewer` or `admin:owner:checkout`.
    scopes: Vec<String>,
    expires_in_days: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateBody {
    overlap_seconds: Option<i64>,
}

fn token_json(token: &StoredToken) -> Value {
    let state = match token {
        of if of.revoked_at.is_some_and(|at| at <= now_micros()) => "revoked",
        of if of.expires_at <= now_micros() => "expired",
        of if of.is_suspended => "suspended",
        _ => "valid",
    };
    json!({
        "id": token.id,
        "name": token.label,
        "scopes": token.scopes.split_whitespace().collect::<Vec<_>>(),
        "state": state,
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
) -> Result<Json<Value>, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let tokens = admin.store().tokens(&namespace).await?;
    let tokens: Vec<Value> = tokens.iter().map(token_json).collect();
    Ok(Json(json!({ "tokens": tokens })))
}

/// Fails for scopes that are malformed or exceed the roles of the caller.
fn require_scopes(caller: &AdminCaller, namespace: &str, scopes: &[String]) -> Result<(), AdminProblem> {
    if scopes.is_empty() {
        return Err(AdminProblem::bad_request("expected at least one scope"));
    }
    for scope in scopes {
        let is_plain = !scope.is_empty() && !scope.chars().any(|of| of.is_whitespace() || of.is_control());
        if !is_plain {
            return Err(AdminProblem::bad_request("expected scopes without spaces"));
        }
        if !scope.starts_with("admin:") {
            scope.parse::<Scope>().map_err(AdminProblem::bad_request)?;
            continue;
        }
        let Some((role, app)) = parse_admin_scope(scope) else {
            let detail = format!("scope `{scope}` is unknown, expected admin:<role> or admin:<role>:<app>");
            return Err(AdminProblem::bad_request(detail));
        };
        if !may_grant(&caller.0, role, namespace, app) {
            return Err(AdminProblem::forbidden(format!(
                "scope `{scope}` exceeds your own roles"
            )));
        }
    }
    Ok(())
}

/// Creates a token and shows its secret, which is not stored.
pub(super) async fn create(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    JsonBody(body): JsonBody<TokenBody>,
) -> Result<(StatusCode, Json<Value>), AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    require_name(&body.name)?;
    require_scopes(&caller, &namespace, &body.scopes)?;
    let days = body.expires_in_days.unwrap_or(LIFETIME_DAYS.0);
    if !(1..=LIFETIME_DAYS.1).contains(&days) {
        return Err(AdminProblem::bad_request(
            "expected expires_in_days from 1 to 3650",
        ));
    }
    let (secret, now) = (Secret::generate(TOKEN_PREFIX), now_micros());
    let new = NewStoredToken {
        id: random_id(),
        hash: secret.hash(),
        label: body.name,
        namespace,
        scopes: body.scopes.join(" "),
        created_by: caller.0.name,
        created_at: now,
        expires_at: now.saturating_add(days * MICROS_PER_DAY),
    };
    admin.store().add_token(&new, None).await?;
    let answer = json!({ "id": new.id, "secret": secret.reveal(), "expires_at": new.expires_at });
    Ok((StatusCode::CREATED, Json(answer)))
}

pub(super) async fn revoke(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let revoked = admin
        .store()
        .change_token(&namespace, &id, true, &caller.0.name, now_micros());
    revoked.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Accepts a token again that was suspended after the database was restored.
pub(super) async fn confirm(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let confirmed = admin
        .store()
        .change_token(&namespace, &id, false, &caller.0.name, now_micros());
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
    let now = now_micros();
    let old = admin.store().token(&namespace, &id).await?;
    let old = old.filter(|token| token.is_valid_at(now));
    let old = old.ok_or_else(AdminProblem::not_found)?;
    let scopes: Vec<String> = old.scopes.split_whitespace().map(str::to_owned).collect();
    require_scopes(&caller, &namespace, &scopes)?;
    let overlap = body
        .overlap_seconds
        .unwrap_or(OVERLAP_SECONDS.0)
        .clamp(0, OVERLAP_SECONDS.1);
    let ends_at = now.saturating_add(overlap * 1_000_000).min(old.expires_at);
    let secret = Secret::generate(TOKEN_PREFIX);
    let new = NewStoredToken {
        id: random_id(),
        hash: secret.hash(),
        label: old.label,
        namespace,
        scopes: old.scopes,
        created_by: caller.0.name,
        created_at: now,
        expires_at: now.saturating_add(old.expires_at - old.created_at),
    };
    admin.store().add_token(&new, Some((&id, ends_at))).await?;
    let answer = json!({
        "id": new.id,
        "secret": secret.reveal(),
        "expires_at": new.expires_at,
        "previous_ends_at": ends_at,
    });
    Ok((StatusCode::CREATED, Json(answer)))
}
