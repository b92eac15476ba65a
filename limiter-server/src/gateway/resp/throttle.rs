//! `CL.THROTTLE key max_burst count period [quantity]`, the command of redis-cell.
//!
//! The generic cell rate algorithm stores when a key has drained. A funnel of capacity
//! `max_burst + 1` that drains `count` per `period` stores the same, so a change of the numbers
//! keeps the usage as in redis-cell. All of these funnels have one policy name, which is the prefix
//! of their keys. A key `policy:NAME:KEY` selects a registered policy, and the numbers are ignored.
//! Tests: below.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use limiter_core::{Amount, Key, Limiter, Origin, Policy, Rate, Rejection};

use crate::access::{AccessDenial, Action, Client, Target};
use crate::gateway::charge::{LimitResult, RequestedLimit, charge_all};
use crate::gateway::readiness::ReadinessState;
use crate::gateway::resp::reply::{Reply, access_error};
use crate::gateway::resp::shown::shown;
use crate::gateway::resp::throttle_command::{ThrottleCommand, ThrottleLimit};
use crate::gateway::{Gateway, RecordedDecision};
use crate::key_text::joined;

/// The policy name of limits that the command describes.
const POLICY: &str = "CL.THROTTLE";
/// The start of keys that name a registered policy.
const POLICY_PREFIX: &str = "policy:";
/// The largest number of prepared policies.
const MAX_PREPARED: usize = 1_000;

impl ThrottleCommand {
    /// Decides.
    pub(super) async fn run(self, gateway: &Gateway, client: &Client) -> Reply {
        let limit = match self.requested_limit(gateway, client) {
            Ok(limit) => limit,
            Err(reply) => return reply,
        };
        let decided = match self.quantity {
            0 => peek(gateway.limiter(), &limit).await.map(Some),
            _ => {
                let charged = charge_all(gateway.limiter(), std::slice::from_ref(&limit)).await;
                charged.map(|results| results.into_iter().next())
            }
        };
        if let (Ok(Some(result)), 1..) = (&decided, self.quantity) {
            let decided = RecordedDecision {
                peer: None,
                is_allowed: result.allowed,
                origin: result.origin,
                outcome: result.outcome.as_ref(),
            };
            let key = || (joined([self.key_of_policy()]), None);
            gateway.record_call(limit.policy.name(), decided, key);
        }
        match decided {
            Ok(Some(result)) => result_reply(&limit.policy, &result),
            Ok(None) => Reply::error("ERR the decision has no result"),
            Err(rejection) => error_reply(&rejection),
        }
    }

    /// Returns the key without the name of a registered policy.
    fn key_of_policy(&self) -> &str {
        let named = self.key.strip_prefix(POLICY_PREFIX);
        let (_, key) = named
            .and_then(|named| named.split_once(':'))
            .unwrap_or(("", &self.key));
        key
    }

    fn requested_limit(&self, gateway: &Gateway, client: &Client) -> Result<RequestedLimit, Reply> {
        let (policy, key) = match self.key.strip_prefix(POLICY_PREFIX) {
            Some(named) => {
                let action = match self.quantity {
                    0 => Action::Peek,
                    _ => Action::Check,
                };
                registered(gateway, client, action, named)?
            }
            None => {
                may_state_limits(gateway, client).map_err(|denial| access_error(&denial))?;
                let policy = gateway.throttle_policies().policy(self.limit);
                let policy = policy.map_err(|error| Reply::error(format!("ERR {error}")))?;
                (policy, Key::from(self.key.as_str()).into_owned())
            }
        };
        Ok(RequestedLimit {
            policy,
            key,
            cost: Amount::from(self.quantity),
            group: None,
        })
    }
}

/// Decides whether a client may state the numbers of a limit. Without configured clients, the local
/// ones may, because the listener is off unless the settings name its address.
fn may_state_limits(gateway: &Gateway, client: &Client) -> Result<(), AccessDenial> {
    let access = gateway.access();
    let action = match access.table().accepts_anonymous() {
        true => Action::Check,
        false => Action::Namespace,
    };
    access.may(client, action, &Target::NONE)
}

/// Decides a quantity of zero, which an exhausted limit allows too.
async fn peek(limiter: &Limiter, limit: &RequestedLimit) -> Result<LimitResult, Rejection> {
    let decision = limiter.peek(&limit.policy, &limit.key).cost(0_u64).await?;
    Ok(LimitResult {
        allowed: decision.is_allowed(),
        would_deny: decision.would_deny(),
        origin: decision.origin(),
        outcome: decision.outcome_at(0).cloned(),
        can_retry: !decision.origin().is_independent_of_permits(),
    })
}

/// Returns the policy and the key of `NAME:KEY`.
fn registered(
    gateway: &Gateway,
    client: &Client,
    action: Action,
    named: &str,
) -> Result<(Policy, Key<'static>), Reply> {
    if gateway.readiness().state() == ReadinessState::WaitsForPolicies {
        return Err(Reply::error("LOADING the server has no policies yet, try again"));
    }
    let Some((name, key)) = named.split_once(':') else {
        return Err(Reply::error(format!(
            "ERR key is {}, expected policy:NAME:KEY",
            shown(format!("{POLICY_PREFIX}{named}").as_bytes())
        )));
    };
    let permitted = gateway.may(client, action, name);
    permitted.map_err(|denial| access_error(&denial))?;
    let key = Key::from(key).into_owned();
    let policy = gateway.limiter().policy(name, &key);
    let policy = policy.map_err(|rejection| match rejection {
        Rejection::NotConfigured { .. } => Reply::error(format!(
            "ERR policy is {}, expected a configured policy",
            shown(name.as_bytes())
        )),
        rejection => error_reply(&rejection),
    })?;
    // The library's own rejection names its functions.
    if policy.algorithm_name() == "concurrency" {
        return Err(Reply::error(format!(
            "ERR policy {} limits concurrent requests, expected a rate policy: use POST /v1/acquire",
            shown(name.as_bytes())
        )));
    }
    Ok((policy, key))
}

/// Returns the five integers.
fn result_reply(policy: &Policy, result: &LimitResult) -> Reply {
    let limit = integer(policy.quota().whole());
    let (remaining, reset) = match &result.outcome {
        Some(outcome) => (
            integer(outcome.remaining().whole()),
            seconds(outcome.reset_after()),
        ),
        // A policy that is off, a key list, or an outage: no usage is known.
        None if result.allowed => (limit, 0),
        None => (0, 0),
    };
    let retry_after = match &result.outcome {
        _ if result.allowed => -1,
        Some(outcome) if result.can_retry => seconds(outcome.retry_after()),
        // The store is unavailable, and may be available soon.
        None if result.origin == Origin::FailedClosed => 1,
        _ => -1,
    };
    let numbers = [i64::from(!result.allowed), limit, remaining, retry_after, reset];
    Reply::Array(numbers.into_iter().map(Reply::Integer).collect())
}

/// Returns whole seconds, rounded as in redis-cell: up, after a fraction of a millisecond was
/// dropped.
fn seconds(span: Duration) -> i64 {
    let more = u64::from(span.subsec_millis() > 0);
    integer(span.as_secs().saturating_add(more))
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn error_reply(rejection: &Rejection) -> Reply {
    match rejection {
        Rejection::Config(error) => Reply::error(format!("ERR {error}")),
        rejection => {
            // The library logs the beginning and the end of an outage.
            tracing::debug!(error = %rejection.diagnostic(), "cannot decide a RESP command");
            Reply::error(format!("UNAVAILABLE {rejection}"))
        }
    }
}

/// The policies of limits that commands describe, built once per limit.
#[derive(Debug)]
pub(crate) struct ThrottlePolicies {
    deadline: Duration,
    prepared: RwLock<HashMap<ThrottleLimit, Policy>>,
}

impl ThrottlePolicies {
    /// Policies whose decisions take at most this duration.
    pub(crate) fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            prepared: RwLock::default(),
        }
    }

    fn policy(&self, limit: ThrottleLimit) -> Result<Policy, limiter_core::ConfigError> {
        let prepared = self.prepared.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy) = prepared.get(&limit) {
            return Ok(policy.clone());
        }
        drop(prepared);
        let period = Duration::from_secs(limit.period_seconds);
        let policy = Policy::funnel(POLICY)
            .capacity(limit.max_burst.saturating_add(1))
            .rate(Rate::per(limit.count, period)?)
            .deadline(self.deadline)
            .build()?;
        let mut prepared = self.prepared.write().unwrap_or_else(PoisonError::into_inner);
        // Clients choose the numbers, so the number of policies must be bounded.
        if prepared.len() >= MAX_PREPARED {
            prepared.clear();
        }
        prepared.insert(limit, policy.clone());
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_as_in_redis_cell() {
        for (micros, expected) in [
            (0, 0),
            (999, 0),
            (1_000, 1),
            (1_000_000, 1),
            (2_000_999, 2),
            (2_001_000, 3),
        ] {
            assert_eq!(seconds(Duration::from_micros(micros)), expected, "{micros}");
        }
    }

    #[test]
    fn prepared_policies_are_bounded_and_share_one_name() {
        let policies = ThrottlePolicies::new(Policy::DEFAULT_DEADLINE);
        for max_burst in 0..1_500 {
            let limit = ThrottleLimit {
                max_burst,
                count: 30,
                period_seconds: 60,
            };
            let policy = policies.policy(limit).unwrap();
            assert_eq!((policy.name(), policy.quota().whole()), (POLICY, max_burst + 1));
        }
        assert!(policies.prepared.read().unwrap().len() <= MAX_PREPARED);
    }
}
