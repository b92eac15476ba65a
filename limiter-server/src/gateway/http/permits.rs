//! Permits of concurrency limits, which a client holds by an id.
//!
//! The id that a client receives contains the policy and the key besides the id of the library, so
//! that a client renews and releases a permit by its id alone. A change of these parts makes the id
//! invalid. Tests: `tests/http_api.rs`.

use axum::response::Response;
use limiter_core::detached::{PermitRelease, PermitRenewal};
use limiter_core::{Key, Policy, Rejection, Timestamp};
use serde_json::{Map, Value, json};

use crate::access::Action;
use crate::gateway::http::caller::Caller;
use crate::gateway::http::client_id::{ClientId, EncodedLimits};
use crate::gateway::http::guard::AdmittedCall;
use crate::gateway::http::openapi::{ChangeResponses, DecisionResponses};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::reply;
use crate::gateway::http::request::{self, IdBody, LimitsBody};
use crate::gateway::http::resolved_limits::ResolvedLimits;

/// `POST /v1/acquire`
#[utoipa::path(
    post,
    path = "/v1/acquire",
    request_body = LimitsBody,
    responses(DecisionResponses),
)]
pub(super) async fn acquire(call: AdmittedCall) -> Result<Response, Problem> {
    let body: LimitsBody = request::read(&call.body)?;
    let encoded = EncodedLimits::new(body.names(), &[])?;
    let found = ResolvedLimits::find(&call.caller, Action::Acquire, body)?;
    let gateway = &call.caller.gateway;
    let sets = found.sets();
    let (Some(limit), [set]) = (found.only(), sets.as_slice()) else {
        return Err(Problem::bad_request("a permit belongs to one limit".into()));
    };
    let acquire = gateway.limiter().acquire_concurrency(&limit.policy, &limit.key);
    let acquired = acquire.cost(limit.cost).detached().await;
    let decision = match &acquired {
        Ok(permit) => Some(permit.decision()),
        Err(rejection) => rejection.decision(),
    };
    if let Some(decision) = decision {
        found.record(&call.caller, set, decision);
    }
    let permit = match acquired {
        Ok(permit) => permit,
        Err(rejection) => return Err(found.rejected(gateway, set, &rejection).await),
    };
    gateway
        .issued_policies()
        .record(gateway.limiter().registry(), &limit.policy);
    let mut fields = expiring(permit.expires_at());
    fields.insert("id".into(), json!(encoded.with_ids([permit.id()])));
    Ok(reply::allowed(gateway, &[permit.decision().clone()], fields))
}

/// `POST /v1/renew`
#[utoipa::path(
    post,
    path = "/v1/renew",
    request_body = IdBody,
    responses(ChangeResponses),
)]
pub(super) async fn renew(call: AdmittedCall) -> Result<Response, Problem> {
    let IdBody { id: text } = request::read(&call.body)?;
    let (id, policy, key) = find_permit(&call.caller, &text)?;
    let gateway = &call.caller.gateway;
    let renewed = gateway.limiter().renew_permit(&policy, key, &id).await;
    match renewed.map_err(|rejection| Problem::of_rejection(gateway, &rejection))? {
        PermitRenewal::Renewed { expires_at } => {
            let mut fields = expiring(expires_at);
            fields.insert("id".into(), json!(text));
            Ok(reply::object(fields))
        }
        _ => Err(Problem::not_found(
            "no permit of this id is held: it was released or expired",
        )),
    }
}

/// `POST /v1/release`
#[utoipa::path(
    post,
    path = "/v1/release",
    request_body = IdBody,
    responses(ChangeResponses),
)]
pub(super) async fn release(call: AdmittedCall) -> Result<Response, Problem> {
    let IdBody { id } = request::read(&call.body)?;
    let (id, policy, key) = find_permit(&call.caller, &id)?;
    let gateway = &call.caller.gateway;
    let released = gateway.limiter().release_permit(&policy, key, &id).await;
    let released = released.map_err(|rejection| Problem::of_rejection(gateway, &rejection))?;
    let mut fields = Map::new();
    // A repeated release succeeds as well.
    fields.insert("released".into(), json!(released == PermitRelease::Released));
    Ok(reply::object(fields))
}

/// Returns the fields that say when an id expires, by the clock of the store.
pub(super) fn expiring(expires_at: Timestamp) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("expires_at".into(), json!(expires_at.as_micros() / 1_000));
    fields
}

fn find_permit(caller: &Caller, text: &str) -> Result<(String, Policy, Key<'static>), Problem> {
    let ClientId { ids, limits, .. } = ClientId::parse(text)?;
    let ([id], [(policy, key)]) = (ids.as_slice(), limits.as_slice()) else {
        return Err(Problem::bad_request("the id is not that of a permit".into()));
    };
    caller.require_by_id(Action::Acquire, policy)?;
    let (gateway, key) = (&caller.gateway, key.to_key());
    let issued = gateway.issued_policies();
    let found = issued.find(gateway.limiter(), Action::Acquire, (policy, &key));
    let policy = found.map_err(|rejection: Rejection| Problem::of_rejected_id(gateway, &rejection))?;
    Ok((id.clone(), policy, key))
}
