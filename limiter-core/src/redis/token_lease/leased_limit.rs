//! Refunds and loans: what the second script is asked, and what it answers; the layout is told in
//! `lua/account.lua`.

use std::iter;
use std::time::Duration;

use bb8_redis::redis::Value;

use crate::algorithm;
use crate::algorithm::{Change, LeaseGrant, LeaseRequest, Mode, StepOutcome, UsageReport};
use crate::error::StoreError;
use crate::key::Namespace;
use crate::policy::{Algorithm, Policy};
use crate::redis::Route;
use crate::redis::script::reply::{LimitReply, Reader, malformed};
use crate::redis::script::{ACCOUNT, Call, reply, wire};
use crate::request::{RequestedLimit, Verdict};
use crate::support::clock::Clock;
use crate::units::Timestamp;

const REFUND: u8 = 0;
const LEND: u8 = 1;
const OWE: u8 = 2;

/// Lends permits. Cheap to clone, and outlives the call that began.
#[derive(Clone, Debug)]
pub(crate) struct RedisTokenLender {
    route: Route,
    clock: Clock,
    namespace: Namespace,
}

/// One limit, of which something is to be lent.
#[derive(Clone, Debug)]
pub(crate) struct LeasedLimit {
    pub(crate) policy: Policy,
    pub(crate) key: String,
}

/// What a lender answers.
#[derive(Clone, Debug)]
pub(crate) struct LeaseReply {
    pub(crate) verdict: Verdict,
    pub(crate) loan: LeaseGrant,
}

impl RedisTokenLender {
    pub(crate) fn new(route: Route, clock: Clock, namespace: Namespace) -> Self {
        Self {
            route,
            clock,
            namespace,
        }
    }

    pub(crate) fn account(&self, limit: &RequestedLimit<'_>) -> LeasedLimit {
        LeasedLimit {
            policy: limit.policy.clone(),
            key: key(limit, &self.namespace),
        }
    }

    /// Asks for a loan.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether something was lent or charged; neither is ever
    /// done twice.
    pub(crate) async fn grant_lease(
        &self,
        account: &LeasedLimit,
        ask: &LeaseRequest,
    ) -> Result<LeaseReply, StoreError> {
        let algorithm = account.policy.algorithm();
        let plan = plan(LEND, algorithm, ask, self.clock.injected());
        let call = Call::new(&ACCOUNT, [&account.key], plan, account.policy.deadline());
        let reply = self.route.run(&call).await?;
        let reply = AccountReply::read(&reply)?;
        let LimitReply::Stored(mut state) = LimitReply::read(reply.piece, algorithm)? else {
            return Err(malformed());
        };
        let (outcome, loan) = algorithm::grant_lease(algorithm, &mut state, ask, reply.now);
        // Script and algorithm agree, or one of them is not what this program was built with.
        if loan.amount != reply.lent {
            return Err(malformed());
        }
        let mut verdict = verdict(outcome, reply.now);
        if !outcome.fits {
            verdict.states = Some([Some(state)].into());
        }
        Ok(LeaseReply { verdict, loan })
    }
}

/// The call that gives back what a limit costs, or charges it whatever is left.
pub(crate) fn apply_change(
    limit: &RequestedLimit<'_>,
    change: Change,
    key: String,
    injected: Option<Timestamp>,
    deadline: Duration,
) -> Call<'static> {
    let (operation, whole_at) = match change {
        Change::Refund { whole_at } => (REFUND, whole_at),
        Change::ForceCharge => (OWE, 0),
    };
    let ask = LeaseRequest {
        cost: limit.cost,
        want: whole_at,
        ..LeaseRequest::default()
    };
    let plan = plan(operation, limit.policy.algorithm(), &ask, injected);
    Call::new(&ACCOUNT, [key], plan, deadline)
}

/// The call that asks for nothing, after which a server knows the script.
pub(crate) fn nothing(deadline: Duration) -> Call<'static> {
    Call::new(&ACCOUNT, iter::empty::<String>(), wire::head(None), deadline)
}

/// How the limit stands after a change.
pub(crate) fn changed(
    reply: &Value,
    limit: &RequestedLimit<'_>,
    change: Change,
) -> Result<Verdict, StoreError> {
    let algorithm = limit.policy.algorithm();
    let reply = AccountReply::read(reply)?;
    let outcome = match &mut LimitReply::read(reply.piece, algorithm)? {
        LimitReply::Stored(state) => algorithm::change(algorithm, state, limit.cost, change, reply.now),
        window @ LimitReply::Window { .. } => window.outcome(algorithm, 0, 0, reply.now, Mode::Peek),
    };
    Ok(verdict(outcome, reply.now))
}

fn verdict(outcome: StepOutcome, now: u64) -> Verdict {
    Verdict::new(Timestamp::from_micros(now), [outcome].into_iter().collect())
}

pub(crate) fn key(limit: &RequestedLimit<'_>, namespace: &Namespace) -> String {
    let (algorithm, policy) = (limit.policy.code(), limit.policy.escaped_name());
    namespace.redis_key(algorithm, policy, limit.group(), &limit.key)
}

/// The call that asks for what a plan says about one key.
pub(crate) fn call(key: String, plan: Vec<u8>, deadline: Duration) -> Call<'static> {
    Call::new(&ACCOUNT, [key], plan, deadline)
}

pub(crate) fn plan(
    operation: u8,
    algorithm: &Algorithm,
    ask: &LeaseRequest,
    injected: Option<Timestamp>,
) -> Vec<u8> {
    let mut plan = wire::head(injected);
    let (code, [first, second, third]) = wire::parameters(algorithm);
    plan.extend_from_slice(&[operation, code]);
    let UsageReport {
        epoch,
        spent,
        returned,
    } = ask.report;
    for number in [
        ask.cost, first, second, third, ask.want, ask.epoch, spent, returned,
    ] {
        plan.extend_from_slice(&number.to_le_bytes());
    }
    plan.extend_from_slice(&epoch.to_le_bytes());
    plan
}

/// What the script says.
pub(crate) struct AccountReply<'a> {
    pub(crate) now: u64,
    pub(crate) lent: u64,
    pub(crate) piece: Reader<'a>,
}

impl<'a> AccountReply<'a> {
    pub(crate) fn read(reply: &'a Value) -> Result<Self, StoreError> {
        let Value::BulkString(bytes) = reply else {
            return Err(malformed());
        };
        let mut reader = Reader(bytes);
        let now = reader.moment()?;
        let [found] = reader.array()?;
        if found != reply::READABLE {
            return Err(reply::unreadable_as(found)?);
        }
        let lent = reader.number()?;
        let piece = reader.piece()?;
        Ok(Self { now, lent, piece })
    }
}

#[cfg(test)]
pub(crate) mod tests;
