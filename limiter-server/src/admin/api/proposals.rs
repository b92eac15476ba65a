//! Proposals of editors: list, approve, reject.
//!
//! An approval passes the checks of a save by the approver (`edit::approve`), so it needs the role
//! that the change needs and conflicts if the policy has changed. An owner rejects a proposal, and
//! its author withdraws it by the same route. A page of the list is read until it is full, because
//! roles hide proposals.
//!
//! Tests: `tests/control_plane/proposals.rs`, `tests/admin_api.rs`, `tests/api_lists.rs`.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::paging::page;
use crate::admin::api::policies::{ReasonBody, is_readable, require_readers};
use crate::admin::api::problem::AdminProblem;
use crate::admin::edit;
use crate::admin::permissions::{AdminAction, Object, may};
use crate::store::{Author, Origin, ProposalFilter, StoredProposal, now_micros};

#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct ProposalQuery {
    /// Decided proposals too.
    #[serde(default)]
    all: bool,
    /// The `next` of the previous page.
    after: Option<String>,
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
    let after = match &query.after {
        None => None,
        Some(id) => Some(find(&admin, &caller, &namespace, id).await?),
    };
    let limit = page(query.limit);
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    // One more than a page shows whether there is another one.
    let mut filter = ProposalFilter {
        is_open: !query.all,
        after,
        limit: limit.saturating_add(1),
    };
    let mut visible = Vec::new();
    loop {
        let found = admin.store().proposals(&namespace, &filter).await?;
        let is_last = found.len() <= wanted;
        filter.after = found.last().cloned();
        let readable = found
            .iter()
            .filter(|of| is_readable(&caller.0, &namespace, of.apps.as_deref()));
        visible.extend(readable.map(proposal_json));
        if is_last || visible.len() > wanted {
            break;
        }
    }
    let has_more = visible.len() > wanted;
    visible.truncate(wanted);
    let next = visible.last().filter(|_| has_more).map(|last| last["id"].clone());
    Ok(Json(json!({ "proposals": visible, "next": next })))
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
    require_readers(
        &admin,
        (&proposal.namespace, &proposal.name),
        Some(&proposal.body),
    )
    .await?;
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
