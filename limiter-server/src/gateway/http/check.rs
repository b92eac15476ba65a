//! Checks, peeks, refunds and resets.
//!
//! Limits with one key are decided atomically. Sets with different keys are decided in order, all
//! within the longest deadline of their policies; when one denies, the sets that were charged are
//! cancelled and the others are not charged. Tests: `tests/http_api.rs`, `tests/http_changes.rs`.

use axum::http::StatusCode;
use axum::response::Response;
use limiter_core::Decision;
use serde_json::Map;

use crate::access::Action;
use crate::gateway::Gateway;
use crate::gateway::admission::CallPlace;
use crate::gateway::charge::refund::ChargedSets;
use crate::gateway::charge::sets::AtomicSet;
use crate::gateway::charge::timed::TimedLimits;
use crate::gateway::http::caller::Caller;
use crate::gateway::http::guard::AdmittedCall;
use crate::gateway::http::openapi::{ChangeResponses, DecisionResponses};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::reply;
use crate::gateway::http::request;
use crate::gateway::http::resolved_limits::{ResolvedLimits, require_countable};

/// `POST /v1/check`
#[utoipa::path(
    post,
    path = "/v1/check",
    request_body = request::LimitsBody,
    responses(DecisionResponses),
)]
pub(super) async fn check(call: AdmittedCall) -> Result<Response, Problem> {
    let resolved = ResolvedLimits::find(&call.caller, Action::Check, request::read(&call.body)?)?;
    let AdmittedCall { caller, place, .. } = call;
    if resolved.only().is_some() {
        let decisions = charge_sets(&caller, &resolved).await?;
        return Ok(reply::allowed(&caller.gateway, &decisions, Map::new()));
    }
    let gateway = caller.gateway.clone();
    // A task of its own, so that a client that leaves does not keep a part of the charges.
    let charged = run_to_completion(place, async move { charge_sets(&caller, &resolved).await });
    Ok(reply::allowed(&gateway, &charged.await?, Map::new()))
}

/// Runs a call to its end, also if its client leaves. It keeps its place until then.
pub(super) async fn run_to_completion<T: Send + 'static>(
    place: CallPlace,
    call: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let placed = async move {
        let _place = place;
        call.await
    };
    tokio::spawn(placed).await.unwrap_or_else(|error| {
        tracing::error!(%error, "a call ended without an answer");
        let detail = "the call ended without an answer; its charges are unknown".into();
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail))
    })
}

/// `POST /v1/peek`
#[utoipa::path(
    post,
    path = "/v1/peek",
    request_body = request::LimitsBody,
    responses(DecisionResponses),
)]
pub(super) async fn peek(call: AdmittedCall) -> Result<Response, Problem> {
    let resolved = ResolvedLimits::find(&call.caller, Action::Peek, request::read(&call.body)?)?;
    let gateway = &call.caller.gateway;
    let mut decisions = Vec::new();
    let mut timed = TimedLimits::new(resolved.limits());
    for set in resolved.sets() {
        let peeked = gateway.limiter().peek_all(set.charges(timed.next())).await;
        match peeked.and_then(Decision::require) {
            Ok(allowed) => decisions.push(allowed.into_decision()),
            Err(rejection) => return Err(resolved.rejected(gateway, &set, &rejection).await),
        }
    }
    Ok(reply::allowed(gateway, &decisions, Map::new()))
}

/// `POST /v1/refund`
#[utoipa::path(
    post,
    path = "/v1/refund",
    request_body = request::LimitsBody,
    responses(ChangeResponses),
)]
pub(super) async fn refund(call: AdmittedCall) -> Result<Response, Problem> {
    let resolved = ResolvedLimits::find(&call.caller, Action::Refund, request::read(&call.body)?)?;
    for limit in resolved.limits() {
        require_countable(&limit.policy, limit.cost)?;
    }
    let AdmittedCall { caller, place, .. } = call;
    // A task of its own, so that a client that leaves does not refund a part of the limits.
    run_to_completion(place, async move { refund_all(&caller.gateway, &resolved).await }).await?;
    Ok(reply::object(Map::new()))
}

/// Refunds the limits in their order. No store refunds limits of different keys together, and a
/// repeated refund returns the permits again, so a problem has the number of refunded limits.
async fn refund_all(gateway: &Gateway, resolved: &ResolvedLimits) -> Result<(), Problem> {
    for (refunded, limit) in resolved.limits().iter().enumerate() {
        let refund = gateway.limiter().refund(&limit.policy, &limit.key);
        if let Err(rejection) = refund.cost(limit.cost).await {
            return Err(Problem::of_rejection(gateway, &rejection).with_refunded(refunded));
        }
    }
    Ok(())
}

/// `POST /v1/reset`
#[utoipa::path(
    post,
    path = "/v1/reset",
    request_body = request::LimitsBody,
    responses(ChangeResponses),
)]
pub(super) async fn reset(call: AdmittedCall) -> Result<Response, Problem> {
    let resolved = ResolvedLimits::find(&call.caller, Action::Reset, request::read(&call.body)?)?;
    let gateway = &call.caller.gateway;
    for limit in resolved.limits() {
        let reset = gateway.limiter().reset(&limit.policy, &limit.key).await;
        reset.map_err(|rejection| Problem::of_rejection(gateway, &rejection))?;
    }
    Ok(reply::object(Map::new()))
}

/// Charges all sets, or none.
async fn charge_sets(caller: &Caller, resolved: &ResolvedLimits) -> Result<Vec<Decision>, Problem> {
    let sets = resolved.sets();
    match sets.as_slice() {
        [only] => Ok(vec![charge_set(caller, resolved, only).await?]),
        _ => Ok(reserve_sets(caller, resolved, &sets).await?.keep()),
    }
}

/// Reserves the limits of all sets, or none.
pub(super) async fn reserve_sets(
    caller: &Caller,
    resolved: &ResolvedLimits,
    sets: &[AtomicSet],
) -> Result<ChargedSets, Problem> {
    let (gateway, limiter) = (&caller.gateway, caller.gateway.limiter());
    let mut charged = ChargedSets::default();
    let mut timed = TimedLimits::new(resolved.limits());
    for set in sets {
        match timed.reserve(limiter, set).await {
            Ok(reservation) => {
                resolved.record(caller, set, reservation.decision());
                charged.add(reservation);
            }
            Err(rejection) => {
                if let Some(decision) = rejection.decision() {
                    resolved.record(caller, set, decision);
                }
                charged.refund().await;
                return Err(resolved.rejected(gateway, set, &rejection).await);
            }
        }
    }
    Ok(charged)
}

/// Charges the limits of one set.
async fn charge_set(
    caller: &Caller,
    resolved: &ResolvedLimits,
    set: &AtomicSet,
) -> Result<Decision, Problem> {
    let limits = set.charges(resolved.limits());
    let checked = caller.gateway.limiter().check_all(limits).await;
    if let Ok(decision) = &checked {
        resolved.record(caller, set, decision);
    }
    let allowed = checked.and_then(Decision::require);
    match allowed {
        Ok(allowed) => Ok(allowed.into_decision()),
        Err(rejection) => Err(resolved.rejected(&caller.gateway, set, &rejection).await),
    }
}
