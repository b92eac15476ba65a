//! The connection of an app: the addresses of the gateway, the last call, test calls.
//!
//! A user must see whether the calls of an app arrive. The last calls are those that this node
//! keeps in memory, of policies that the caller may read. Test calls use one key, wait for the
//! publication of a policy that was saved a moment before, and are charged and counted as all other
//! calls.
//!
//! Tests: `tests/pages/snippets.rs`, `tests/pages/explain.rs`, `tests/control_plane/namespaces.rs`.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use limiter_core::{Key, Limiter, Policy};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use crate::admin::Admin;
use crate::admin::api::caller::AdminCaller;
use crate::admin::api::keys::{gateway, key_under};
use crate::admin::api::policies::{find, is_readable};
use crate::admin::api::problem::AdminProblem;
use crate::admin::permissions::{AdminAction, Object, may};
use crate::gateway::RecordedDecision;
use crate::store::{DocumentKind, StoredDocument};

/// The number of test calls.
const TEST_CALLS: usize = 10;
/// The time for which test calls wait for the publication of a policy that was saved a moment ago.
const PUBLICATION_WAIT: Duration = Duration::from_secs(5);
const PUBLICATION_POLL: Duration = Duration::from_millis(50);
/// The key of test calls.
const TEST_KEY: &str = "limiter-test";

#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct ConnectQuery {
    /// The app whose last call is shown.
    app: Option<String>,
}

/// Returns the addresses at which clients reach the gateway, and the last calls to this node:
/// `seen` under policies that name the app, or all without `app`, and `shared` under policies of
/// all apps.
pub(super) async fn read(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<ConnectQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let addresses = admin.addresses(&namespace);
    let documents = admin.store().documents(&namespace).await?;
    let readable = |of: &&StoredDocument| {
        of.kind == DocumentKind::Policy && is_readable(&caller.0, &namespace, of.apps.as_deref())
    };
    let last_call = |is_wanted: &dyn Fn(Option<&[String]>) -> bool| {
        let activity = admin.gateway(&namespace)?.gateway.activity();
        let wanted = documents
            .iter()
            .filter(readable)
            .filter(|of| is_wanted(of.apps.as_deref()));
        // An earlier call under the name is one of a deleted policy.
        let calls = wanted.filter_map(|of| {
            let call = activity.last_call(&of.name)?;
            (call.at >= of.created_at).then_some((&of.name, call))
        });
        let (policy, call) = calls.max_by_key(|(_, call)| call.at)?;
        Some(json!({ "policy": policy, "at": call.at, "from": call.peer.map(|peer| peer.to_string()) }))
    };
    // A call under a policy of all apps can be one of another app.
    let (seen, shared) = match &query.app {
        None => (last_call(&|_| true), None),
        Some(app) => (
            last_call(&|apps| apps.is_some_and(|apps| apps.contains(app))),
            last_call(&|apps| apps.is_none()),
        ),
    };
    Ok(Json(json!({
        "http": addresses.http,
        "grpc": addresses.grpc,
        "tls": addresses.tls,
        "node": admin.node(),
        "sees_calls": admin.gateway(&namespace).is_some(),
        "seen": seen,
        "shared": shared,
    })))
}

/// Returns the policy, after its publication.
async fn in_force(limiter: &Limiter, name: &str, key: &Key<'_>) -> Option<Policy> {
    let started = Instant::now();
    loop {
        match limiter.policy(name, key) {
            Ok(policy) => return Some(policy),
            Err(_) if started.elapsed() < PUBLICATION_WAIT => {}
            Err(_) => return None,
        }
        tokio::time::sleep(PUBLICATION_POLL).await;
    }
}

/// Sends calls of a test key through the limiter of this node. They are counted as all others.
pub(super) async fn test_calls(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<Value>, AdminProblem> {
    let document = find(&admin, &caller, &namespace, &name).await?;
    let document = Some(document).filter(|of| !of.is_deleted);
    let document = document.ok_or_else(AdminProblem::not_found)?;
    let object = Object::Policy {
        namespace: &namespace,
        apps: document.apps.as_deref(),
    };
    let verdict = may(&caller.0, AdminAction::EditNumbers, object);
    AdminProblem::unless(
        verdict,
        "test calls need the role editor in all apps of the policy",
    )?;
    let policy = document.policy().ok();
    if policy.is_some_and(|of| of.entry().policy().algorithm_name() == "concurrency") {
        let detail = format!(
            "policy `{name}` limits concurrent requests, and test calls hold no permit: use /v1/acquire"
        );
        return Err(AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let of_gateway = gateway(&admin, &namespace)?;
    let sent = of_gateway.runtime.spawn(async move {
        let gateway = of_gateway.gateway;
        let limiter = gateway.limiter();
        let parts = [TEST_KEY.to_owned()];
        let key = key_under(&name, &parts, &limiter.registry().rules());
        let policy = in_force(limiter, &name, &key).await?;
        let (mut allowed, mut denied, mut would_deny) = (0, 0, 0);
        for _ in 0..TEST_CALLS {
            let decision = limiter.check(&policy, &key).await.ok()?;
            match decision.is_allowed() {
                true => allowed += 1_u32,
                false => denied += 1_u32,
            }
            would_deny += u32::from(decision.would_deny() && decision.is_allowed());
            let decided = RecordedDecision {
                peer: None,
                is_allowed: decision.is_allowed(),
                origin: decision.origin(),
                outcome: decision.outcome_at(0),
            };
            gateway.record_call(&name, decided, || (TEST_KEY.to_owned(), None));
        }
        Some((allowed, denied, would_deny))
    });
    match sent.await {
        Ok(Some((allowed, denied, would_deny))) => Ok(Json(json!({
            "key": TEST_KEY,
            "allowed": allowed,
            "denied": denied,
            "would_deny": would_deny,
        }))),
        _ => {
            let detail =
                "the policy is not in force yet, or the store of the limits does not answer: try again";
            Err(AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
        }
    }
}
