//! The limits of a request: their policies, their atomic sets, and the response to a denial.
//!
//! A request can contain limits that no single script decides. The file finds the policy of each
//! limit, requires the scope and the kind of policy for the action, and divides the limits into
//! sets that are decided atomically. After a denial it peeks the other sets, so that the response
//! has the numbers of all limits, and finds the key of the limit that denied.
//!
//! Tests: `tests/all_or_nothing.rs`, `tests/explanations.rs`, `tests/http_api.rs`.

use limiter_core::{Amount, Decision, LimitOutcome, Rejection};
use serde_json::Value;

use crate::access::Action;
use crate::gateway::charge::RequestedLimit;
use crate::gateway::charge::sets::{AtomicSet, atomic_sets};
use crate::gateway::charge::timed::TimedLimits;
use crate::gateway::http::caller::Caller;
use crate::gateway::http::problem::{self, Problem};
use crate::gateway::http::reply;
use crate::gateway::http::request::{KeyBody, LimitBody, LimitsBody};
use crate::gateway::{Gateway, RecordedDecision};

/// The limits of a request whose policies were found, in the order of the request.
#[derive(Clone, Debug)]
pub(super) struct ResolvedLimits {
    limits: Vec<RequestedLimit>,
    /// The keys as the client sent them.
    sent_keys: Vec<KeyBody>,
}

impl ResolvedLimits {
    /// Finds the policies of the limits, on which the client may take the action.
    pub(super) fn find(caller: &Caller, action: Action, body: LimitsBody) -> Result<Self, Problem> {
        let bodies = body.into_limits()?;
        let limits = bodies.iter().map(|limit| find(caller, action, limit));
        let limits: Vec<RequestedLimit> = limits.collect::<Result<_, _>>()?;
        Ok(Self {
            limits,
            sent_keys: bodies.into_iter().map(|limit| limit.key).collect(),
        })
    }

    /// Returns the limits.
    pub(super) fn limits(&self) -> &[RequestedLimit] {
        &self.limits
    }

    /// Returns the only limit, if there is one.
    pub(super) fn only(&self) -> Option<&RequestedLimit> {
        match self.limits.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Returns the sets that are decided atomically, in the order of their first limits.
    pub(super) fn sets(&self) -> Vec<AtomicSet> {
        atomic_sets(&self.limits, 0..self.limits.len())
    }

    /// Returns the answer to a rejection of a set, with the key of the limit that denied. A cost
    /// above a capacity is rejected before the store is called, so a peek returns the numbers.
    pub(super) async fn rejected(
        &self,
        gateway: &Gateway,
        set: &AtomicSet,
        rejection: &Rejection,
    ) -> Problem {
        let mut problem = Problem::of_rejection(gateway, rejection);
        if let Rejection::NeverFits { .. } = rejection {
            let limits = set.charges(&self.limits).map(|request| request.cost(1_u32));
            if let Ok(peeked) = gateway.limiter().peek_all(limits).await {
                let denied = self.never_fitting(gateway, set, &peeked).await;
                problem = problem.with_numbers(&peeked, |number| denied.contains(&number));
            }
        }
        if problem.describes_limits() {
            problem = self.with_other_sets(gateway, set, problem).await;
        }
        let denied = self
            .denied_by(set, rejection)
            .and_then(|at| self.sent_keys.get(at));
        match denied {
            Some(key) => problem.with_key(gateway, &key.to_string()),
            None => problem,
        }
    }

    /// Adds the limits of the other sets, which are peeked, in the order of the sets.
    async fn with_other_sets(&self, gateway: &Gateway, denied: &AtomicSet, problem: Problem) -> Problem {
        let (mut before, mut after, mut waits) = (Vec::new(), Vec::new(), Vec::new());
        let mut is_before = true;
        let mut timed = TimedLimits::new(&self.limits);
        for set in self.sets() {
            if set.firsts().eq(denied.firsts()) {
                is_before = false;
                continue;
            }
            // Without a store, the numbers of the sets that follow are not known either.
            let Ok((numbers, denial)) = self.numbers(gateway, &set, &mut timed).await else {
                break;
            };
            waits.extend(denial);
            match is_before {
                true => before.extend(numbers),
                false => after.extend(numbers),
            }
        }
        problem.with_other_limits(before, after).with_other_waits(&waits)
    }

    /// Returns the numbers of the limits of a set, which are peeked, and for a denial the seconds
    /// until a retry succeeds, if one can.
    async fn numbers(
        &self,
        gateway: &Gateway,
        set: &AtomicSet,
        timed: &mut TimedLimits<'_>,
    ) -> Result<(Vec<Value>, Option<Option<u64>>), Rejection> {
        let limiter = gateway.limiter();
        let peeked = limiter.peek_all(set.charges(timed.next())).await;
        let Err(Rejection::NeverFits { .. }) = peeked else {
            let peeked = peeked?;
            let numbers = reply::limits(std::slice::from_ref(&peeked));
            let denial = peeked.require().err();
            return Ok((numbers, denial.map(|denial| denial.retry_after_seconds())));
        };
        let limits = set.charges(timed.next()).map(|request| request.cost(1_u32));
        let peeked = limiter.peek_all(limits).await?;
        let denied = self.never_fitting(gateway, set, &peeked).await;
        let mut limits = reply::limits(&[peeked]);
        problem::deny(&mut limits, |number| denied.contains(&number));
        Ok((limits, Some(None)))
    }

    /// Returns the limits of a peek whose cost never fits, by their numbers among its limits.
    async fn never_fitting(&self, gateway: &Gateway, set: &AtomicSet, peeked: &Decision) -> Vec<usize> {
        let decided = (0..set.firsts().count()).filter(|number| peeked.outcome_at(*number).is_some());
        let mut found = Vec::new();
        for (at, number) in decided.enumerate() {
            if set.never_fits(gateway.limiter(), number, &self.limits).await {
                found.push(at);
            }
        }
        found
    }

    /// Returns the position of the limit that denied.
    fn denied_by(&self, set: &AtomicSet, rejection: &Rejection) -> Option<usize> {
        let decision = rejection.decision();
        let is_denied = |number: &usize| {
            let outcome = decision.and_then(|decision| decision.outcome_at(*number));
            outcome.is_some_and(|outcome| !outcome.is_allowed())
        };
        let is_named = |at: usize, name: &str| self.limits.get(at).is_some_and(|of| of.policy.name() == name);
        let mut firsts = set.firsts().enumerate();
        if let Rejection::NeverFits { policy, .. } = rejection {
            let never_fits = |(number, at): &(usize, usize)| {
                is_named(*at, policy.name()) && set.exceeds_quota(*number, &self.limits)
            };
            return firsts.find(never_fits).map(|(_, at)| at);
        }
        let number = (0..set.firsts().count()).find(is_denied);
        if let Some(at) = number.and_then(|number| set.firsts().nth(number)) {
            return Some(at);
        }
        let Rejection::Forbidden { policy: name, .. } = rejection else {
            return None;
        };
        set.firsts().find(|at| is_named(*at, name))
    }

    /// Records the decision about a set for the admin UI.
    pub(super) fn record(&self, caller: &Caller, set: &AtomicSet, decision: &Decision) {
        for (number, at) in set.firsts().enumerate() {
            let (Some(limit), Some(sent_key)) = (self.limits.get(at), self.sent_keys.get(at)) else {
                continue;
            };
            let outcome = decision.outcome_at(number);
            let decided = RecordedDecision {
                peer: caller.peer,
                is_allowed: decision.is_allowed()
                    || (decision.denied_by().is_some() && outcome.is_none_or(LimitOutcome::is_allowed)),
                origin: decision.origin(),
                outcome,
            };
            let key = || (sent_key.to_string(), None);
            caller.gateway.record_call(limit.policy.name(), decided, key);
        }
    }
}

/// Finds the policy of a limit.
fn find(caller: &Caller, action: Action, limit: &LimitBody) -> Result<RequestedLimit, Problem> {
    caller.require(action, &limit.policy)?;
    let gateway = &caller.gateway;
    let rejected = |rejection: Rejection| Problem::of_rejection(gateway, &rejection);
    let key = limit.key.to_key();
    let policy = gateway.limiter().policy(&limit.policy, &key).map_err(rejected)?;
    require_kind(&policy, action)?;
    let cost = limit.cost()?;
    Ok(RequestedLimit {
        policy,
        key,
        cost,
        group: None,
    })
}

/// Requires whole permits of a policy that counts nothing else. The library rejects other amounts
/// when it changes the limit, after those before it.
pub(super) fn require_countable(policy: &limiter_core::Policy, amount: Amount) -> Result<(), Problem> {
    let counts_fractions = matches!(policy.algorithm_name(), "token_bucket" | "funnel");
    if counts_fractions || amount.is_whole() {
        return Ok(());
    }
    let name = policy.name();
    let detail = format!("the amount for policy `{name}` is {amount}, expected whole permits");
    Err(Problem::bad_request(detail.into()))
}

/// Requires a concurrency policy for permits, and another policy for charges. The library's own
/// rejection names its functions.
pub(super) fn require_kind(policy: &limiter_core::Policy, action: Action) -> Result<(), Problem> {
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
