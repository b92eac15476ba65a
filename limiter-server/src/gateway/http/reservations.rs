//! Reservations, which a client settles by an id.

use std::time::Duration;

use axum::response::Response;
use limiter_core::detached::SettlementOutcome;
use limiter_core::{Key, LimitRequest, Policy, Rejection};
use serde_json::{Map, json};

use crate::access::Action;
use crate::gateway::http::body::ReadBody;
use crate::gateway::http::caller::Caller;
use crate::gateway::http::check::find_all;
use crate::gateway::http::client_id::{ClientId, EncodedLimits};
use crate::gateway::http::openapi::{ChangeResponses, DecisionResponses};
use crate::gateway::http::permits::expiring;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::reply;
use crate::gateway::http::request::{self, LimitsBody, SettleBody};

/// The time after which a reservation expires unless the request sets another one.
const LIFETIME: Duration = Duration::from_secs(600);

/// `POST /v1/reserve`
#[utoipa::path(
    post,
    path = "/v1/reserve",
    request_body = LimitsBody,
    responses(DecisionResponses),
)]
pub(super) async fn reserve(caller: Caller, body: ReadBody) -> Result<Response, Problem> {
    let rejected = |rejection: Rejection| Problem::of_rejection(&caller.gateway, &rejection);
    let body: LimitsBody = request::read(&body)?;
    let lifetime = body.expires_in_ms.map_or(LIFETIME, Duration::from_millis);
    let encoded = EncodedLimits::new(&body.names())?;
    let limits = find_all(&caller, Action::Reserve, body)?;
    let gateway = &caller.gateway;
    let reserved = gateway
        .limiter()
        .reserve_all(limits.iter().map(|limit| limit.request()));
    let reservation = reserved.await.map_err(rejected)?;
    let reservation = reservation.detach(lifetime).await.map_err(rejected)?;
    for limit in &limits {
        gateway.issued_policies().record(&limit.policy);
    }
    let mut fields = expiring(reservation.expires_at());
    fields.insert("id".into(), json!(encoded.with_id(reservation.id())));
    Ok(reply::allowed(gateway, &[reservation.decision().clone()], fields))
}

/// `POST /v1/settle`
#[utoipa::path(
    post,
    path = "/v1/settle",
    request_body = SettleBody,
    responses(ChangeResponses),
)]
pub(super) async fn settle(caller: Caller, body: ReadBody) -> Result<Response, Problem> {
    let gateway = &caller.gateway;
    let rejected = |rejection: Rejection| Problem::of_rejection(gateway, &rejection);
    let body: SettleBody = request::read(&body)?;
    let actuals = body.actuals()?;
    let ClientId { id, limits } = ClientId::parse(&body.id)?;
    if limits.len() != actuals.len() {
        let detail = format!("{} amounts for {} limits", actuals.len(), limits.len());
        return Err(Problem::bad_request(detail.into()));
    }
    let mut found: Vec<(Policy, Key<'static>)> = Vec::new();
    for (policy, key) in &limits {
        caller.require(Action::Reserve, policy)?;
        let key = key.to_key();
        let policy = gateway.issued_policies().find(gateway.limiter(), policy, &key);
        let policy = policy.map_err(rejected)?;
        found.push((policy, key));
    }
    let used = found.iter().zip(actuals);
    let used = used.map(|((policy, key), actual)| LimitRequest::new(policy, key).cost(actual));
    let settled = gateway
        .limiter()
        .settle_reservation(&id, used)
        .await
        .map_err(rejected)?;
    if settled == SettlementOutcome::Unknown {
        return Err(Problem::not_found("no reservation of this id exists: it expired"));
    }
    let mut fields = Map::new();
    // A repeated settlement succeeds as well.
    fields.insert("settled".into(), json!(settled == SettlementOutcome::Settled));
    Ok(reply::object(fields))
}
