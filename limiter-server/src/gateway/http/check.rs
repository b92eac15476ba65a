//! Checks, peeks, refunds and resets.
//!
//! Limits with one key are decided atomically. Sets with different keys are decided in order; when
//! one denies, the sets that were charged are cancelled and the others are not charged.

use std::net::IpAddr;

use axum::response::Response;
use limiter_core::{Amount, Decision, Key, LimitOutcome, LimitRequest, Policy, Rejection};
use serde_json::Map;

use crate::access::Action;
use crate::gateway::charge::refund::ChargedSets;
use crate::gateway::http::body::ReadBody;
use crate::gateway::http::caller::Caller;
use crate::gateway::http::openapi::{ChangeResponses, DecisionResponses};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::reply;
use crate::gateway::http::request::{self, KeyBody, LimitBody, LimitsBody};
use crate::gateway::{Gateway, RecordedDecision};

/// A limit whose policy was found.
#[derive(Clone, Debug)]
pub(super) struct FoundLimit {
    pub(super) policy: Policy,
    pub(super) key: Key<'static>,
    pub(super) cost: Amount,
    /// The key as the client sent it.
    sent_key: KeyBody,
}

impl FoundLimit {
    /// Finds the policy of a limit, on which the client may take the action.
    pub(super) fn find(caller: &Caller, action: Action, limit: LimitBody) -> Result<Self, Problem> {
        caller.require(action, &limit.policy)?;
        let gateway = &caller.gateway;
        let rejected = |rejection: Rejection| Problem::of_rejection(gateway, &rejection);
        let key = limit.key.to_key();
        let policy = gateway.limiter().policy(&limit.policy, &key).map_err(rejected)?;
        require_kind(&policy, action)?;
        let cost = limit.cost().map_err(|error| rejected(error.into()))?;
        Ok(Self {
            policy,
            key,
            cost,
            sent_key: limit.key,
        })
    }

    pub(super) fn request(&self) -> LimitRequest<'_> {
        LimitRequest::new(&self.policy, &self.key).cost(self.cost)
    }

    /// The tag that limits of one atomic decision share.
    fn tag(&self) -> Key<'static> {
        match self.policy.group() {
            Some(group) => Key::from(group).into_owned(),
            None => self.key.clone(),
        }
    }
}

/// Requires a concurrency policy for permits, and another policy for charges. The library's own
/// rejection names its functions.
pub(super) fn require_kind(policy: &Policy, action: Action) -> Result<(), Problem> {
    let name = policy.name();
    let detail = match (action, policy.algorithm_name() == "concurrency") {
        (Action::Acquire, false) => {
            format!("policy `{name}` limits a rate, expected a concurrency policy: use /v1/check")
        }
        (Action::Check | Action::Peek | Action::Reserve | Action::Refund, true) => {
            format!("policy `{name}` limits concurrent requests, expected a rate policy: use /v1/acquire")
        }
        _ => return Ok(()),
    };
    Err(Problem::bad_request(detail.into()))
}

pub(super) fn find_all(
    caller: &Caller,
    action: Action,
    body: LimitsBody,
) -> Result<Vec<FoundLimit>, Problem> {
    let limits = body.into_limits()?;
    limits
        .into_iter()
        .map(|limit| FoundLimit::find(caller, action, limit))
        .collect()
}

/// `POST /v1/check`
#[utoipa::path(
    post,
    path = "/v1/check",
    request_body = LimitsBody,
    responses(DecisionResponses),
)]
pub(super) async fn check(caller: Caller, body: ReadBody) -> Result<Response, Problem> {
    let limits = find_all(&caller, Action::Check, request::read(&body)?)?;
    let (gateway, peer) = (caller.gateway, caller.peer);
    let charged = match limits.as_slice() {
        [only] => charge_set(&gateway, peer, &[only])
            .await
            .map(|decision| vec![decision]),
        _ => charge_in_task(&gateway, peer, limits).await?,
    };
    match charged {
        Ok(decisions) => Ok(reply::allowed(&gateway, &decisions, Map::new())),
        Err(rejection) => Err(Problem::of_rejection(&gateway, &rejection)),
    }
}

/// Charges several limits in a task of its own, so that a client that leaves does not keep a part
/// of the charges.
async fn charge_in_task(
    gateway: &Gateway,
    peer: Option<IpAddr>,
    limits: Vec<FoundLimit>,
) -> Result<Result<Vec<Decision>, Rejection>, Problem> {
    let gateway = gateway.clone();
    let charged = tokio::spawn(async move { charge_sets(&gateway, peer, &limits).await });
    charged.await.map_err(|error| {
        tracing::error!(%error, "a check ended without an answer");
        Problem::bad_request("the check ended without an answer".into())
    })
}

/// `POST /v1/peek`
#[utoipa::path(
    post,
    path = "/v1/peek",
    request_body = LimitsBody,
    responses(DecisionResponses),
)]
pub(super) async fn peek(caller: Caller, body: ReadBody) -> Result<Response, Problem> {
    let limits = find_all(&caller, Action::Peek, request::read(&body)?)?;
    let gateway = caller.gateway;
    let mut decisions = Vec::new();
    for set in sets(&limits) {
        let peeked = gateway
            .limiter()
            .peek_all(set.iter().map(|limit| limit.request()));
        let decision = peeked.await.and_then(Decision::require);
        match decision {
            Ok(allowed) => decisions.push(allowed.into_decision()),
            Err(rejection) => return Err(Problem::of_rejection(&gateway, &rejection)),
        }
    }
    Ok(reply::allowed(&gateway, &decisions, Map::new()))
}

/// `POST /v1/refund`
#[utoipa::path(
    post,
    path = "/v1/refund",
    request_body = LimitsBody,
    responses(ChangeResponses),
)]
pub(super) async fn refund(caller: Caller, body: ReadBody) -> Result<Response, Problem> {
    let limits = find_all(&caller, Action::Refund, request::read(&body)?)?;
    let gateway = caller.gateway;
    for limit in &limits {
        let refund = gateway
            .limiter()
            .refund(&limit.policy, &limit.key)
            .cost(limit.cost);
        let refunded = refund.await;
        refunded.map_err(|rejection| Problem::of_rejection(&gateway, &rejection))?;
    }
    Ok(reply::object(Map::new()))
}

/// `POST /v1/reset`
#[utoipa::path(
    post,
    path = "/v1/reset",
    request_body = LimitsBody,
    responses(ChangeResponses),
)]
pub(super) async fn reset(caller: Caller, body: ReadBody) -> Result<Response, Problem> {
    let limits = find_all(&caller, Action::Reset, request::read(&body)?)?;
    let gateway = caller.gateway;
    for limit in &limits {
        let reset = gateway.limiter().reset(&limit.policy, &limit.key).await;
        reset.map_err(|rejection| Problem::of_rejection(&gateway, &rejection))?;
    }
    Ok(reply::object(Map::new()))
}

/// Charges all sets, or none.
async fn charge_sets(
    gateway: &Gateway,
    peer: Option<IpAddr>,
    limits: &[FoundLimit],
) -> Result<Vec<Decision>, Rejection> {
    let limiter = gateway.limiter();
    let sets = sets(limits);
    if let [only] = sets.as_slice() {
        return Ok(vec![charge_set(gateway, peer, only).await?]);
    }
    let mut charged = ChargedSets::default();
    for set in sets {
        match limiter.reserve_all(set.iter().map(|limit| limit.request())).await {
            Ok(reservation) => {
                record(gateway, peer, &set, reservation.decision());
                charged.add(reservation);
            }
            Err(rejection) => {
                if let Some(decision) = rejection.decision() {
                    record(gateway, peer, &set, decision);
                }
                charged.refund().await;
                return Err(rejection);
            }
        }
    }
    Ok(charged.keep())
}

/// Charges the limits of one set.
async fn charge_set(
    gateway: &Gateway,
    peer: Option<IpAddr>,
    set: &[&FoundLimit],
) -> Result<Decision, Rejection> {
    let checked = gateway
        .limiter()
        .check_all(set.iter().map(|limit| limit.request()));
    let decision = checked.await?;
    record(gateway, peer, set, &decision);
    Ok(decision.require()?.into_decision())
}

/// Records the decision about a set for the admin UI.
fn record(gateway: &Gateway, peer: Option<IpAddr>, set: &[&FoundLimit], decision: &Decision) {
    for (number, limit) in set.iter().enumerate() {
        let outcome = decision.outcome_at(number);
        let decided = RecordedDecision {
            peer,
            is_allowed: decision.is_allowed() || outcome.is_some_and(LimitOutcome::is_allowed),
            origin: decision.origin(),
            outcome,
        };
        let key = || (limit.sent_key.to_string(), None);
        gateway.record_call(limit.policy.name(), decided, key);
    }
}

/// The limits by their tag, in the order of their first limits.
fn sets(limits: &[FoundLimit]) -> Vec<Vec<&FoundLimit>> {
    let mut sets: Vec<(Key<'static>, Vec<&FoundLimit>)> = Vec::new();
    for limit in limits {
        let tag = limit.tag();
        match sets.iter_mut().find(|(of, _)| *of == tag) {
            Some((_, set)) => set.push(limit),
            None => sets.push((tag, vec![limit])),
        }
    }
    sets.into_iter().map(|(_, set)| set).collect()
}
