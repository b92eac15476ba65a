//! Refunds and loans: what the second script is asked, and what it answers; the layout is told in `lua/account.lua`.

use bb8_redis::redis::Value;

use super::script::{ACCOUNT, Call};
use super::{Route, reply, wire};
use crate::algorithm::{Borrowing, Loan, Outcome};
use crate::clock::Clock;
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Namespace;
use crate::policy::{Algorithm, Policy};
use crate::request::{Limit, Request, Verdict};
use crate::units::Timestamp;

const REFUND: u8 = 0;
const LEND: u8 = 1;

/// Integers of an outcome.
const OUTCOME_FIELDS: usize = 5;
/// Integers that a loan adds to it.
const LOAN_FIELDS: usize = 3;

/// Lends permits. Cheap to clone, and outlives the call that began.
#[derive(Clone, Debug)]
pub(crate) struct Lender {
    route: Route,
    clock: Clock,
    namespace: Namespace,
}

/// One limit, of which something is to be lent.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) policy: Policy,
    key: String,
}

/// What a lender answers.
#[derive(Clone, Debug)]
pub(crate) struct Lending {
    pub(crate) verdict: Verdict,
    pub(crate) loan: Loan,
}

impl Lender {
    pub(super) fn new(route: Route, clock: Clock, namespace: Namespace) -> Self {
        Self {
            route,
            clock,
            namespace,
        }
    }

    pub(crate) fn account(&self, limit: &Limit<'_>) -> Account {
        Account {
            policy: limit.policy.clone(),
            key: key(limit, &self.namespace),
        }
    }

    /// Asks for a loan.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether something was lent or charged; neither is ever done twice.
    pub(crate) async fn lend(&self, account: &Account, ask: &Borrowing) -> Result<Lending, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(1);
        push(&mut plan, LEND, account.policy.algorithm(), ask);
        let call = Call::new(
            &ACCOUNT,
            vec![account.key.clone()],
            plan,
            account.policy.deadline(),
        );
        let (decided_at, mut outcomes) = read(&self.route.run(&call).await?, 1)?;
        match outcomes.pop() {
            Some(outcome) => {
                let (outcome, loan) = outcome?;
                let outcomes = [outcome].into_iter().collect();
                let verdict = Verdict { decided_at, outcomes };
                Ok(Lending { verdict, loan })
            }
            None => Err(malformed()),
        }
    }
}

/// The call that gives back what each limit of the request costs.
pub(super) fn refund(request: &Request<'_>, namespace: &Namespace, injected: Option<Timestamp>) -> Call {
    let keys = request.limits.iter().map(|limit| key(limit, namespace)).collect();
    let mut plan = wire::head(injected);
    plan.push(u8::try_from(request.limits.len()).unwrap_or(u8::MAX));
    for limit in &request.limits {
        let ask = Borrowing {
            cost: limit.cost,
            ..Borrowing::default()
        };
        push(&mut plan, REFUND, limit.policy.algorithm(), &ask);
    }
    Call::new(&ACCOUNT, keys, plan, request.deadline())
}

/// How the limits stand after a refund.
pub(super) fn refunded(reply: &Value, request: &Request<'_>) -> Result<Verdict, StoreError> {
    let (decided_at, outcomes) = read(reply, request.limits.len())?;
    let outcomes = outcomes.into_iter().map(|outcome| Ok(outcome?.0));
    Ok(Verdict {
        decided_at,
        outcomes: outcomes.collect::<Result<_, StoreError>>()?,
    })
}

fn key(limit: &Limit<'_>, namespace: &Namespace) -> String {
    let (algorithm, policy) = (limit.policy.algorithm().code(), limit.policy.escaped_name());
    namespace.redis_key(algorithm, policy, limit.group(), &limit.key)
}

fn push(plan: &mut Vec<u8>, operation: u8, algorithm: &Algorithm, ask: &Borrowing) {
    let (code, numbers) = wire::parameters(algorithm);
    plan.extend_from_slice(&[operation, code]);
    plan.extend_from_slice(&ask.cost.to_le_bytes());
    for number in numbers {
        plan.extend_from_slice(&number.to_le_bytes());
    }
    let Borrowing {
        want, epoch, report, ..
    } = ask;
    for number in [*want, *epoch, report.spent, report.returned] {
        plan.extend_from_slice(&number.to_le_bytes());
    }
    plan.extend_from_slice(&report.epoch.to_le_bytes());
}

type Answers = Vec<Result<(Outcome, Loan), StoreError>>;

fn read(reply: &Value, limits: usize) -> Result<(Timestamp, Answers), StoreError> {
    let numbers = integers(reply)?;
    let (now, answers) = numbers.split_first().ok_or_else(malformed)?;
    let fields = OUTCOME_FIELDS + LOAN_FIELDS;
    if answers.len() != limits * fields {
        return Err(malformed());
    }
    let answer = |fields: &[u64]| {
        let (outcome, loan) = fields.split_at(OUTCOME_FIELDS);
        let &[amount, epoch, life] = loan else {
            return Err(malformed());
        };
        let epoch = u32::try_from(epoch).map_err(|_| malformed())?;
        Ok((read_outcome(outcome)?, Loan { amount, epoch, life }))
    };
    let answers = answers.chunks_exact(fields).map(answer).collect();
    Ok((Timestamp::from_micros(*now), answers))
}

/// Integers, none of them negative.
fn integers(reply: &Value) -> Result<Vec<u64>, StoreError> {
    let Value::Array(integers) = reply else {
        return Err(malformed());
    };
    let number = |integer: &Value| match integer {
        Value::Int(number) => u64::try_from(*number).map_err(|_| malformed()),
        _ => Err(malformed()),
    };
    integers.iter().map(number).collect()
}

fn read_outcome(fields: &[u64]) -> Result<Outcome, StoreError> {
    match *fields {
        // Whoever waits would ask again at once, and for ever.
        [1, _, 0, ..] => Err(malformed()),
        [fits @ (0 | 1), remaining, retry_after, reset_after, expires_after] => Ok(Outcome {
            fits: fits == 0,
            remaining,
            retry_after,
            reset_after,
            expires_after,
        }),
        [2, ..] => Err(reply::unreadable_as(reply::WRONG_TYPE)?),
        [3, ..] => Err(reply::unreadable_as(reply::UNKNOWN_LAYOUT)?),
        _ => Err(malformed()),
    }
}

fn malformed() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "the script's reply is malformed")
}

#[cfg(test)]
mod tests;
