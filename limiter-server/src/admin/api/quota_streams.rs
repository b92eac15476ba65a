//! The current assignments of the quota service.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::admin::api::caller::AdminCaller;
use crate::admin::api::problem::AdminProblem;

/// Returns the assignments of the streams of this node; `null` on a node without a gateway. They
/// contain keys of clients, which only administrators read.
pub(super) async fn list(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    Ok(Json(
        json!({ "node": admin.node(), "assignments": assignments(&admin, &namespace) }),
    ))
}

#[cfg(feature = "rlqs")]
fn assignments(admin: &Admin, namespace: &str) -> Value {
    let rows = admin
        .gateway(namespace)
        .map(|of| of.gateway.quota().assignments());
    json!(rows)
}

#[cfg(not(feature = "rlqs"))]
fn assignments(_admin: &Admin, _namespace: &str) -> Value {
    Value::Null
}
