//! Proposals of editors.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::policies::{ReasonBody, is_readable, page};
use crate::admin::api::problem::AdminProblem;
use crate::admin::edit;
use crate::admin::permissions::{AdminAction, Object, may};
use crate::store::{Author, Origin, StoredProposal, now_micros};

#[derive(Debug, Deserialize)]
pub(super) struct ProposalQuery {
    /// Decided proposals too.
    #[serde(default)]
    all: bool,
    limit: Option<i64>,
}

fn proposal_json(proposal: &StoredProposal) -> Value {
    json!({
        "id": proposal.id,
        "name": proposal.name,
        "base": proposal.base,
        "toml": proposal.body,
        "apps": proposal.apps,
        "reason": proposal.reason,
        "author": proposal.author,
        "created_at": proposal.created_at,
        "state": proposal.state.name(),
        "decided_by": proposal.decided_by,
        "decided_at": proposal.decided_at,
    })
}

pub(super) async fn list(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<ProposalQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let proposals = admin
        .store()
        .proposals(&namespace, !query.all, page(query.limit))
        .await?;
    let proposals = proposals
        .iter()
        .filter(|of| is_readable(&caller.0, &namespace, of.apps.as_deref()));
    let proposals: Vec<Value> = proposals.map(proposal_json).collect();
    Ok(Json(json!({ "proposals": proposals })))
}

async fn find(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    id: &str,
) -> Result<StoredProposal, AdminProblem> {
    caller.require_namespace(admin, namespace)?;
    let found = admin.store().proposal(namespace, id).await?;
    let found = found.filter(|of| is_readable(&caller.0, namespace, of.apps.as_deref()));
    found.ok_or_else(AdminProblem::not_found)
}

pub(super) async fn approve(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
    JsonBody(body): JsonBody<ReasonBody>,
) -> Result<Json<Value>, AdminProblem> {
    let proposal = find(&admin, &caller, &namespace, &id).await?;
    let reason = body.reason.or_else(|| proposal.reason.clone());
    let revision = edit::approve(admin.store(), &caller.0, &proposal, reason).await?;
    if let Some(publisher) = admin.publisher(&namespace) {
        publisher.wake();
    }
    Ok(Json(json!({ "revision": revision, "state": "pending" })))
}

/// Owners reject a proposal; its author withdraws it.
pub(super) async fn reject(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
    JsonBody(body): JsonBody<ReasonBody>,
) -> Result<StatusCode, AdminProblem> {
    let proposal = find(&admin, &caller, &namespace, &id).await?;
    if proposal.author != caller.0.name {
        let object = Object::Policy {
            namespace: &namespace,
            apps: proposal.apps.as_deref(),
        };
        let verdict = may(&caller.0, AdminAction::EditPolicy, object);
        AdminProblem::unless(verdict, "an owner or the author rejects proposals")?;
    }
    let author = Author {
        name: caller.0.name,
        origin: Origin::Api,
        reason: body.reason,
        at: now_micros(),
    };
    admin.store().reject(&namespace, &id, &author).await?;
    Ok(StatusCode::NO_CONTENT)
}
