//! Reservations, which a client settles by an id.
//!
//! Limits of different keys form several sets, each with a reservation of the library. The id of
//! the client contains the ids of all of them. Tests: `tests/http_api.rs`.

use std::time::Duration;

use axum::response::Response;
use limiter_core::detached::{DetachedReservation, SettlementOutcome};
use limiter_core::{Amount, Decision, Key, LimitRequest, Limiter, Policy, Rejection};
use serde_json::{Map, json};

use crate::access::Action;
use crate::gateway::charge::refund::{ChargedSets, report};
use crate::gateway::charge::sets::{AtomicSet, sum};
use crate::gateway::http::caller::Caller;
use crate::gateway::http::check::{reserve_sets, run_to_completion};
use crate::gateway::http::client_id::{ClientId, EncodedLimits};
use crate::gateway::http::guard::AdmittedCall;
use crate::gateway::http::openapi::{ChangeResponses, DecisionResponses};
use crate::gateway::http::permits::expiring;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::reply;
use crate::gateway::http::request::{self, LimitsBody, SettleBody};
use crate::gateway::http::resolved_limits::{ResolvedLimits, require_countable};

/// The time after which a reservation expires unless the request sets another one.
const LIFETIME: Duration = Duration::from_secs(600);

/// The longest lifetime of a reservation, in milliseconds: seven days, as in the library.
const MAX_MILLIS: u64 = 7 * 24 * 3_600_000;

/// `POST /v1/reserve`
#[utoipa::path(
    post,
    path = "/v1/reserve",
    request_body = LimitsBody,
    responses(DecisionResponses),
)]
pub(super) async fn reserve(call: AdmittedCall) -> Result<Response, Problem> {
    let mut body: LimitsBody = request::read(&call.body)?;
    let lifetime = body.expires_in_ms.take();
    let lifetime = lifetime.map_or(Ok(LIFETIME), lifetime_of)?;
    let names = body.names();
    let resolved = ResolvedLimits::find(&call.caller, Action::Reserve, body)?;
    let sets = resolved.sets();
    let encoded = EncodedLimits::new(names, &sets)?;
    let AdmittedCall { caller, place, .. } = call;
    let gateway = caller.gateway.clone();
    let reserved = run_to_completion(place, async move {
        let reserved = reserve_detached(&caller, &resolved, &sets, lifetime).await?;
        let registry = caller.gateway.limiter().registry();
        for limit in resolved.limits() {
            caller.gateway.issued_policies().record(registry, &limit.policy);
        }
        Ok(reserved)
    });
    let reserved = reserved.await?;
    let expires_at = reserved.iter().map(DetachedReservation::expires_at).min();
    let mut fields = expires_at.map(expiring).unwrap_or_default();
    let ids = reserved.iter().map(DetachedReservation::id);
    fields.insert("id".into(), json!(encoded.with_ids(ids)));
    let decisions = reserved.iter().map(DetachedReservation::decision);
    let decisions: Vec<Decision> = decisions.cloned().collect();
    Ok(reply::allowed(&gateway, &decisions, fields))
}

/// Returns the lifetime of a request. The library rejects others after the charge.
fn lifetime_of(millis: u64) -> Result<Duration, Problem> {
    match millis {
        1..=MAX_MILLIS => Ok(Duration::from_millis(millis)),
        _ => Err(Problem::bad_request(
            format!("`expires_in_ms` is {millis}, expected 1 to {MAX_MILLIS}").into(),
        )),
    }
}

/// Reserves all sets and exchanges them for ids, or reserves none.
async fn reserve_detached(
    caller: &Caller,
    resolved: &ResolvedLimits,
    sets: &[AtomicSet],
    lifetime: Duration,
) -> Result<Vec<DetachedReservation>, Problem> {
    let reserved = reserve_sets(caller, resolved, sets).await?;
    let mut reservations = reserved.into_reservations().into_iter();
    let mut detached = Vec::with_capacity(sets.len());
    while let Some(reservation) = reservations.next() {
        match reservation.detach(lifetime).await {
            Ok(reservation) => detached.push(reservation),
            Err(rejection) => {
                let mut rest: ChargedSets = reservations.collect();
                rest.refund().await;
                for (reservation, set) in detached.iter().zip(sets) {
                    let nothing = set.charges(resolved.limits()).map(|request| request.cost(0_u32));
                    let limiter = caller.gateway.limiter();
                    report(limiter.settle_reservation(reservation.id(), nothing).await);
                }
                return Err(Problem::of_rejection(&caller.gateway, &rejection));
            }
        }
    }
    Ok(detached)
}

/// `POST /v1/settle`
#[utoipa::path(
    post,
    path = "/v1/settle",
    request_body = SettleBody,
    responses(ChangeResponses),
)]
pub(super) async fn settle(call: AdmittedCall) -> Result<Response, Problem> {
    let AdmittedCall { caller, .. } = &call;
    let gateway = &caller.gateway;
    let rejected = |rejection: Rejection| Problem::of_rejection(gateway, &rejection);
    let body: SettleBody = request::read(&call.body)?;
    let actuals = body.actuals()?;
    let ClientId { ids, limits, sets } = ClientId::parse(&body.id)?;
    if limits.len() != actuals.len() {
        let detail = format!(
            "`actuals` has {} numbers, expected {}, one for each limit of the reservation",
            actuals.len(),
            limits.len()
        );
        return Err(Problem::bad_request(detail.into()));
    }
    // The limits of each set, in the order of its reservation.
    let mut used: Vec<Vec<UsedLimit>> = ids.iter().map(|_| Vec::new()).collect();
    for (((policy, key), actual), set) in limits.iter().zip(actuals).zip(sets) {
        caller.require_by_id(Action::Reserve, policy)?;
        let key = key.to_key();
        let issued = gateway.issued_policies();
        let policy = issued.find(gateway.limiter(), Action::Reserve, (policy, &key));
        let policy = policy.map_err(|rejection| Problem::of_rejected_id(gateway, &rejection))?;
        // The sets of an id are below the number of its ids.
        let Some(of_set) = used.get_mut(set) else { continue };
        let repeated = of_set
            .iter_mut()
            .find(|of| of.policy.name() == policy.name() && of.key == key);
        match repeated {
            Some(of) => of.actual = sum(of.actual, actual),
            None => of_set.push(UsedLimit { policy, key, actual }),
        }
    }
    for of in used.iter().flatten() {
        require_countable(&of.policy, of.actual)?;
    }
    let mut outcomes = Vec::with_capacity(ids.len());
    for (id, used) in ids.iter().zip(&used) {
        outcomes.push(settle_one(gateway.limiter(), id, used).await.map_err(rejected)?);
    }
    if outcomes.iter().all(|of| *of == SettlementOutcome::Unknown) {
        return Err(Problem::not_found("no reservation of this id exists: it expired"));
    }
    let mut fields = Map::new();
    // A repeated settlement succeeds as well.
    let is_settled = outcomes.contains(&SettlementOutcome::Settled);
    fields.insert("settled".into(), json!(is_settled));
    Ok(reply::object(fields))
}

/// A limit of a reservation, and the amount that was used.
#[derive(Debug)]
struct UsedLimit {
    policy: Policy,
    key: Key<'static>,
    actual: Amount,
}

async fn settle_one(limiter: &Limiter, id: &str, used: &[UsedLimit]) -> Result<SettlementOutcome, Rejection> {
    let used = used
        .iter()
        .map(|of| LimitRequest::new(&of.policy, &of.key).cost(of.actual));
    limiter.settle_reservation(id, used).await
}
