//! Refunds, leases and unconditional charges: encoding of the second script. The layout is
//! described in `lua/token_lease.lua`.
//!
//! The reply contains the state before the operation, from which the algorithm computes the outcome
//! (for a sliding window, the numbers after the operation). `compare_and_set.rs` and
//! `denial_window.rs` use this encoding for the other operations of the script.
//!
//! Invariant: a lease whose amount differs from the result of the algorithm is an error. Tests:
//! `leased_limit/tests.rs` (differential); `tests/frozen/redis.rs` (layout).

use std::iter;
use std::time::Duration;

use bb8_redis::redis::Value;

use crate::algorithm;
use crate::algorithm::{LeaseGrant, LeaseRequest, Mode, StepOutcome, UsageCorrection, UsageReport};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::key::Namespace;
use crate::policy::{Algorithm, Policy};
use crate::redis::Route;
use crate::redis::script::reply::{LimitReply, Reader, malformed};
use crate::redis::script::{Call, TOKEN_LEASE, reply, wire};
use crate::request::{ReportedState, ValidatedLimit, Verdict};
use crate::support::clock::Clock;
use crate::units::Timestamp;

const REFUND: u8 = 0;
const LEASE: u8 = 1;
const FORCE_CHARGE: u8 = 2;

/// Requests leases from Redis. Cheap to clone, and outlives the call that created it.
#[derive(Clone, Debug)]
pub(crate) struct RedisTokenLender {
    pub(in crate::redis) route: Route,
    pub(in crate::redis) clock: Clock,
    pub(in crate::redis) namespace: Namespace,
}

/// A limit with token leases.
#[derive(Clone, Debug)]
pub(crate) struct LeasedLimit {
    pub(crate) identity: Identity,
    pub(crate) policy: Policy,
    pub(crate) key: String,
}

/// Reply to a lease request.
#[derive(Clone, Debug)]
pub(crate) struct LeaseReply {
    pub(crate) verdict: Verdict,
    pub(crate) loan: LeaseGrant,
}

impl RedisTokenLender {
    pub(in crate::redis) fn new(route: Route, clock: Clock, namespace: Namespace) -> Self {
        Self {
            route,
            clock,
            namespace,
        }
    }

    pub(crate) fn leased_limit(&self, limit: &ValidatedLimit<'_>) -> LeasedLimit {
        LeasedLimit {
            identity: limit.identity,
            policy: limit.policy.clone(),
            key: key(limit, &self.namespace),
        }
    }

    /// Requests a lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether something was leased or charged; neither happens
    /// twice.
    pub(crate) async fn grant_lease(
        &self,
        leased_limit: &LeasedLimit,
        lease_request: &LeaseRequest,
    ) -> Result<LeaseReply, StoreError> {
        let algorithm = leased_limit.policy.algorithm();
        let plan = plan(LEASE, algorithm, lease_request, self.clock.injected());
        let call = Call::new(
            &TOKEN_LEASE,
            [&leased_limit.key],
            plan,
            leased_limit.policy.deadline(),
        );
        let reply = self.route.run(&call).await?;
        let reply = LeaseScriptReply::read(&reply)?;
        let LimitReply::Stored(mut state) = LimitReply::read(reply.piece, algorithm)? else {
            return Err(malformed());
        };
        let (outcome, loan) = algorithm::grant_lease(algorithm, &mut state, lease_request, reply.now);
        // The outcome of script and algorithm must agree; otherwise the versions differ.
        if loan.amount != reply.granted {
            return Err(malformed());
        }
        let mut verdict = verdict(outcome, reply.now);
        if !outcome.fits {
            verdict.states = Some([ReportedState::Stored(state)].into());
        }
        Ok(LeaseReply { verdict, loan })
    }
}

/// Creates the call that refunds the cost of a limit or charges it unconditionally.
pub(crate) fn apply_change(
    limit: &ValidatedLimit<'_>,
    change: UsageCorrection,
    key: String,
    injected: Option<Timestamp>,
    deadline: Duration,
) -> Call<'static> {
    let (operation, whole_at) = match change {
        UsageCorrection::Refund { whole_at } => (REFUND, whole_at),
        UsageCorrection::ForceCharge => (FORCE_CHARGE, 0),
    };
    let lease_request = LeaseRequest {
        cost: limit.cost,
        want: whole_at,
        ..LeaseRequest::default()
    };
    let plan = plan(operation, limit.policy.algorithm(), &lease_request, injected);
    Call::new(&TOKEN_LEASE, [key], plan, deadline)
}

/// Creates a call without a key, which loads the script into a server.
pub(crate) fn nothing(deadline: Duration) -> Call<'static> {
    Call::new(&TOKEN_LEASE, iter::empty::<String>(), wire::head(None), deadline)
}

/// Parses the outcome of a limit after a change.
pub(crate) fn changed(
    reply: &Value,
    limit: &ValidatedLimit<'_>,
    change: UsageCorrection,
) -> Result<Verdict, StoreError> {
    let algorithm = limit.policy.algorithm();
    let reply = LeaseScriptReply::read(reply)?;
    let outcome = match &mut LimitReply::read(reply.piece, algorithm)? {
        LimitReply::Stored(state) => algorithm::change(algorithm, state, limit.cost, change, reply.now),
        window @ LimitReply::Window { .. } => window.outcome(algorithm, 0, 0, reply.now, Mode::Peek),
    };
    Ok(verdict(outcome, reply.now))
}

fn verdict(outcome: StepOutcome, now: u64) -> Verdict {
    Verdict::new(Timestamp::from_micros(now), [outcome].into_iter().collect())
}

pub(crate) fn key(limit: &ValidatedLimit<'_>, namespace: &Namespace) -> String {
    let (algorithm, policy) = (limit.policy.code(), limit.policy.escaped_name());
    namespace.redis_key(algorithm, policy, limit.group(), &limit.key)
}

/// Creates the call that applies a plan to one key.
pub(crate) fn call(key: String, plan: Vec<u8>, deadline: Duration) -> Call<'static> {
    Call::new(&TOKEN_LEASE, [key], plan, deadline)
}

pub(crate) fn plan(
    operation: u8,
    algorithm: &Algorithm,
    lease_request: &LeaseRequest,
    injected: Option<Timestamp>,
) -> Vec<u8> {
    let mut plan = wire::head(injected);
    let (code, [first, second, third]) = wire::parameters(algorithm);
    plan.extend_from_slice(&[operation, code]);
    let UsageReport {
        epoch,
        spent,
        returned,
    } = lease_request.report;
    for number in [
        lease_request.cost,
        first,
        second,
        third,
        lease_request.want,
        lease_request.epoch,
        spent,
        returned,
    ] {
        plan.extend_from_slice(&number.to_le_bytes());
    }
    plan.extend_from_slice(&epoch.to_le_bytes());
    plan
}

/// The parsed reply of the script.
pub(crate) struct LeaseScriptReply<'a> {
    pub(crate) now: u64,
    pub(crate) granted: u64,
    pub(crate) piece: Reader<'a>,
}

impl<'a> LeaseScriptReply<'a> {
    pub(crate) fn read(reply: &'a Value) -> Result<Self, StoreError> {
        let Value::BulkString(bytes) = reply else {
            return Err(malformed());
        };
        let mut reader = Reader(bytes);
        let now = reader.timestamp()?;
        let [found] = reader.array()?;
        if found != reply::READABLE {
            return Err(reply::unreadable_as(found)?);
        }
        let granted = reader.number()?;
        let piece = reader.length_prefixed()?;
        Ok(Self { now, granted, piece })
    }
}

#[cfg(test)]
pub(crate) mod tests;
