//! Decides the limits of one request together: all are charged, or none.
//!
//! Limits that share a tag (their group, or else their key) form one [atomic set](sets). Sets with
//! different tags are decided in order. When a set denies, the sets that were charged are refunded
//! and the other sets are only peeked, for their numbers; the denial does not wait for late refunds
//! or unavailable numbers. [`ChargedSets`] refunds also when the request is abandoned. All sets of
//! a request together use at most the longest deadline of its policies ([`TimedLimits`]). Tests:
//! `tests/rate_limit_service.rs`.

pub(crate) mod refund;
pub(crate) mod sets;
pub(crate) mod timed;

use limiter_core::{Amount, Decision, Key, Limiter, Origin, Policy, Rejection};

use crate::gateway::charge::refund::ChargedSets;
use crate::gateway::charge::sets::{AtomicSet, atomic_sets};
use crate::gateway::charge::timed::TimedLimits;

/// A limit of a request, with its cost.
#[derive(Clone, Debug)]
pub struct RequestedLimit {
    /// The policy.
    pub policy: Policy,
    /// The key.
    pub key: Key<'static>,
    /// The cost; zero is a peek.
    pub cost: Amount,
    /// The group of the rule, which is the group of the key.
    pub group: Option<String>,
}

/// The result for one limit of a request.
#[derive(Clone, Debug)]
pub struct LimitResult {
    /// True if the limit allows the request.
    pub allowed: bool,
    /// True if the limit would deny the request if it were enforced.
    pub would_deny: bool,
    /// The origin of the decision.
    pub origin: Origin,
    /// The numbers; absent if no store decided.
    pub outcome: Option<limiter_core::LimitOutcome>,
    /// True if a retry can succeed.
    pub can_retry: bool,
}

impl LimitResult {
    /// The result of a limit that does not deny, without numbers.
    pub(crate) const UNKNOWN: Self = Self {
        allowed: true,
        would_deny: false,
        origin: Origin::FailedOpen,
        outcome: None,
        can_retry: true,
    };
}

/// Decides all limits. The results are in the order of the limits.
///
/// # Errors
///
/// [`Rejection`] when no decision was possible. Nothing is charged then.
pub async fn charge_all(limiter: &Limiter, limits: &[RequestedLimit]) -> Result<Vec<LimitResult>, Rejection> {
    if let [only] = limits {
        let set = AtomicSet::of_one(only.cost);
        let decided = match only.cost.is_zero() {
            true => peek(limiter, limits, &set).await?,
            false => check(limiter, limits, &set).await?,
        };
        return Ok(decided.into_iter().map(|(_, result)| result).collect());
    }
    let (results, charged) = reserve_all(limiter, limits).await?;
    let _ = charged.keep();
    Ok(results)
}

/// Decides all limits: the results in the order of the limits, and the charges, which are refunded
/// unless they are [kept](ChargedSets::keep). After a denial there are none.
///
/// # Errors
///
/// [`Rejection`] when no decision was possible. Nothing is charged then.
pub(crate) async fn reserve_all(
    limiter: &Limiter,
    limits: &[RequestedLimit],
) -> Result<(Vec<LimitResult>, ChargedSets), Rejection> {
    let mut results: Vec<Option<LimitResult>> = vec![None; limits.len()];
    let mut charged = ChargedSets::default();
    let mut denied = false;
    // Peeks first, because one that denies must prevent all charges.
    let (peeks, charges): (Vec<usize>, Vec<usize>) =
        (0..limits.len()).partition(|at| limits.get(*at).is_some_and(|limit| limit.cost.is_zero()));
    let sets = atomic_sets(limits, peeks).into_iter().map(|set| (set, true));
    let sets = sets.chain(atomic_sets(limits, charges).into_iter().map(|set| (set, false)));
    let mut timed = TimedLimits::new(limits);
    for (set, is_peek) in sets {
        let decided = match (denied, is_peek) {
            (true, _) => peek_denied(limiter, timed.next(), &set).await,
            (false, true) => peek(limiter, timed.next(), &set).await?,
            (false, false) => reserve(limiter, &mut timed, &set, &mut charged).await?,
        };
        let allowed = decided.iter().all(|(_, result)| result.allowed);
        place(&mut results, decided);
        if !allowed && !denied {
            denied = true;
            let _ = tokio::time::timeout(timed.left(), charged.refund()).await;
        }
    }
    // Every position is in one set.
    Ok((results.into_iter().flatten().collect(), charged))
}

/// Peeks all limits of a request that is denied for another reason, with any costs, and returns the
/// results in the order of the limits.
pub(crate) async fn peek_all(limiter: &Limiter, limits: &[RequestedLimit]) -> Vec<LimitResult> {
    let mut results: Vec<Option<LimitResult>> = vec![None; limits.len()];
    let mut timed = TimedLimits::new(limits);
    for set in atomic_sets(limits, 0..limits.len()) {
        place(&mut results, peek_denied(limiter, timed.next(), &set).await);
    }
    results.into_iter().flatten().collect()
}

/// Puts the results of a set to their positions.
fn place(results: &mut [Option<LimitResult>], decided: Vec<(usize, LimitResult)>) {
    for (position, result) in decided {
        if let Some(place) = results.get_mut(position) {
            *place = Some(result);
        }
    }
}

/// Peeks one set: the results with their positions.
async fn peek(
    limiter: &Limiter,
    limits: &[RequestedLimit],
    set: &AtomicSet,
) -> Result<Vec<(usize, LimitResult)>, Rejection> {
    let peeked = limiter.peek_all(set.requests(limits).map(|(request, _)| request));
    Ok(results(set, &peeked.await?))
}

/// Peeks one set of a request that is denied: the results with their positions, which are unknown
/// if no store returns them.
async fn peek_denied(
    limiter: &Limiter,
    limits: &[RequestedLimit],
    set: &AtomicSet,
) -> Vec<(usize, LimitResult)> {
    let unknown = || set.positions().map(|at| (at, LimitResult::UNKNOWN)).collect();
    peek(limiter, limits, set).await.unwrap_or_else(|_| unknown())
}

/// Charges the only set of a request: the results with their positions.
async fn check(
    limiter: &Limiter,
    limits: &[RequestedLimit],
    set: &AtomicSet,
) -> Result<Vec<(usize, LimitResult)>, Rejection> {
    match limiter.check_all(set.charges(limits)).await {
        Ok(decision) => Ok(results(set, &decision)),
        Err(Rejection::NeverFits { .. }) => never_fits(limiter, limits, set).await,
        Err(rejection) => Err(rejection),
    }
}

/// Charges one of several sets, which a denial of a later set refunds: the results with their
/// positions.
async fn reserve(
    limiter: &Limiter,
    timed: &mut TimedLimits<'_>,
    set: &AtomicSet,
    charged: &mut ChargedSets,
) -> Result<Vec<(usize, LimitResult)>, Rejection> {
    match timed.reserve(limiter, set).await {
        Ok(reservation) => {
            let decided = results(set, reservation.decision());
            charged.add(reservation);
            Ok(decided)
        }
        Err(Rejection::NeverFits { .. }) => never_fits(limiter, timed.next(), set).await,
        Err(rejection) => match rejection.decision() {
            Some(denied) => Ok(results(set, denied)),
            None => Err(rejection),
        },
    }
}

fn results(set: &AtomicSet, decision: &Decision) -> Vec<(usize, LimitResult)> {
    let explains = (0..set.limits.len()).any(|number| {
        let outcome = decision.outcome_at(number);
        outcome.is_some_and(|outcome| !outcome.is_allowed())
    });
    let each = set.positions.iter().map(|(position, number)| {
        let outcome = decision.outcome_at(*number);
        let fits = outcome.is_none_or(|outcome| outcome.is_allowed());
        // A denial without numbers, by a key list or an unavailable store, denies all limits.
        let allowed = decision.is_allowed() || (explains && fits);
        let result = LimitResult {
            allowed,
            would_deny: !allowed || !fits || (decision.would_deny() && !explains),
            origin: decision.origin(),
            outcome: outcome.cloned(),
            can_retry: !decision.origin().is_independent_of_permits()
                && decision.origin() != Origin::FailedClosed,
        };
        (*position, result)
    });
    each.collect()
}

/// Denies the limits whose capacity is below the cost, and peeks the others.
async fn never_fits(
    limiter: &Limiter,
    limits: &[RequestedLimit],
    set: &AtomicSet,
) -> Result<Vec<(usize, LimitResult)>, Rejection> {
    let mut denied = peek(limiter, limits, set).await?;
    for ((_, result), (_, number)) in denied.iter_mut().zip(&set.positions) {
        if set.never_fits(limiter, *number, limits).await {
            result.allowed = false;
            result.would_deny = true;
            result.can_retry = false;
        }
    }
    Ok(denied)
}

#[cfg(test)]
mod tests;
