//! Decides the limits of one request together: all are charged, or none.
//!
//! Limits that share a tag (their group, or else their key) form one atomic decision. Sets with
//! different tags are decided in order. When a set denies, the sets that were charged are refunded
//! and the other sets are only peeked, for their numbers. [`ChargedSets`] refunds also when the
//! request is abandoned. Tests: `tests/rate_limit_service.rs`.

pub(crate) mod refund;

use std::collections::HashMap;

use limiter_core::{Amount, Decision, Key, LimitRequest, Limiter, Origin, Policy, Rejection};

use crate::gateway::charge::refund::ChargedSets;

/// The largest number of limits in one atomic decision.
const MAX_ATOMIC: usize = 16;

/// A limit of a request, with its cost.
#[derive(Clone, Debug)]
pub struct RequestedLimit {
    /// The policy.
    pub policy: Policy,
    /// The key.
    pub key: Key<'static>,
    /// The cost; zero is a peek.
    pub cost: u64,
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

/// The limits that are decided atomically, by their positions in the request.
#[derive(Debug, Default)]
struct AtomicSet {
    /// One position of each limit, and its cost summed over all positions.
    limits: Vec<(usize, u64)>,
    /// All positions, each with its number in `limits`.
    positions: Vec<(usize, usize)>,
}

/// Decides all limits. The results are in the order of the limits.
///
/// # Errors
///
/// [`Rejection`] when no decision was possible. Nothing is charged then.
pub async fn charge_all(limiter: &Limiter, limits: &[RequestedLimit]) -> Result<Vec<LimitResult>, Rejection> {
    if let [only] = limits {
        let set = AtomicSet {
            limits: vec![(0, only.cost)],
            positions: vec![(0, 0)],
        };
        let decided = match only.cost {
            0 => peek(limiter, limits, &set).await?,
            _ => check(limiter, limits, &set).await?,
        };
        return Ok(decided.into_iter().map(|(_, result)| result).collect());
    }
    let mut results: Vec<Option<LimitResult>> = vec![None; limits.len()];
    let mut charged = ChargedSets::default();
    let mut denied = false;
    // Peeks first, because one that denies must prevent all charges.
    let (peeks, charges): (Vec<usize>, Vec<usize>) =
        (0..limits.len()).partition(|at| limits.get(*at).is_some_and(|limit| limit.cost == 0));
    let sets = atomic_sets(limits, &peeks).into_iter().map(|set| (set, true));
    let sets = sets.chain(atomic_sets(limits, &charges).into_iter().map(|set| (set, false)));
    for (set, is_peek) in sets {
        let decided = match is_peek || denied {
            true => peek(limiter, limits, &set).await?,
            false => reserve(limiter, limits, &set, &mut charged).await?,
        };
        let allowed = decided.iter().all(|(_, result)| result.allowed);
        for (position, result) in decided {
            if let Some(place) = results.get_mut(position) {
                *place = Some(result);
            }
        }
        if !allowed && !denied {
            denied = true;
            charged.refund().await;
        }
    }
    let _ = charged.keep();
    // Every position is in one set.
    Ok(results.into_iter().flatten().collect())
}

/// Divides limits into atomic sets, in the order of their first limits.
fn atomic_sets(limits: &[RequestedLimit], positions: &[usize]) -> Vec<AtomicSet> {
    let mut sets: Vec<AtomicSet> = Vec::new();
    let mut by_tag: HashMap<Key<'static>, usize> = HashMap::new();
    let mut numbers: HashMap<(&str, &Key<'static>), (usize, usize)> = HashMap::new();
    for (position, limit) in positions.iter().filter_map(|at| Some((*at, limits.get(*at)?))) {
        let identity = (limit.policy.name(), &limit.key);
        if let Some((set, number)) = numbers.get(&identity).copied()
            && let Some(set) = sets.get_mut(set)
        {
            if let Some((_, cost)) = set.limits.get_mut(number) {
                *cost = cost.saturating_add(limit.cost);
            }
            set.positions.push((position, number));
            continue;
        }
        let tag = tag(limit);
        let place = match by_tag.get(&tag) {
            Some(at) if sets.get(*at).is_some_and(|set| set.limits.len() < MAX_ATOMIC) => *at,
            _ => {
                sets.push(AtomicSet::default());
                by_tag.insert(tag, sets.len() - 1);
                sets.len() - 1
            }
        };
        if let Some(set) = sets.get_mut(place) {
            let number = set.limits.len();
            set.limits.push((position, limit.cost));
            set.positions.push((position, number));
            numbers.insert(identity, (place, number));
        }
    }
    sets
}

/// The tag that a limit must share with others for an atomic decision.
pub(crate) fn tag(limit: &RequestedLimit) -> Key<'static> {
    match limit.group.as_deref().or(limit.policy.group()) {
        Some(group) => Key::from(group).into_owned(),
        None => limit.key.clone(),
    }
}

/// Peeks one set: the results with their positions.
async fn peek(
    limiter: &Limiter,
    limits: &[RequestedLimit],
    set: &AtomicSet,
) -> Result<Vec<(usize, LimitResult)>, Rejection> {
    let peeked = limiter.peek_all(requests(limits, set).map(|(request, _)| request));
    Ok(results(set, &peeked.await?))
}

/// Charges the only set of a request: the results with their positions.
async fn check(
    limiter: &Limiter,
    limits: &[RequestedLimit],
    set: &AtomicSet,
) -> Result<Vec<(usize, LimitResult)>, Rejection> {
    let costs = requests(limits, set).map(|(request, cost)| request.cost(cost));
    match limiter.check_all(costs).await {
        Ok(decision) => Ok(results(set, &decision)),
        Err(Rejection::NeverFits { .. }) => never_fits(limiter, limits, set).await,
        Err(rejection) => Err(rejection),
    }
}

/// Charges one of several sets, which a denial of a later set refunds: the results with their
/// positions.
async fn reserve(
    limiter: &Limiter,
    limits: &[RequestedLimit],
    set: &AtomicSet,
    charged: &mut ChargedSets,
) -> Result<Vec<(usize, LimitResult)>, Rejection> {
    let costs = requests(limits, set).map(|(request, cost)| request.cost(cost));
    match limiter.reserve_all(costs).await {
        Ok(reservation) => {
            let decided = results(set, reservation.decision());
            charged.add(reservation);
            Ok(decided)
        }
        Err(Rejection::NeverFits { .. }) => never_fits(limiter, limits, set).await,
        Err(rejection) => match rejection.decision() {
            Some(denied) => Ok(results(set, denied)),
            None => Err(rejection),
        },
    }
}

/// The limits of a set, with their costs.
fn requests<'a>(
    limits: &'a [RequestedLimit],
    set: &'a AtomicSet,
) -> impl Iterator<Item = (LimitRequest<'a>, u64)> {
    set.limits.iter().filter_map(|(at, cost)| {
        let limit = limits.get(*at)?;
        Some((LimitRequest::new(&limit.policy, &limit.key), *cost))
    })
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
    let peeked = peek(limiter, limits, set).await?;
    let exceeds = |number: usize| {
        let limit = set.limits.get(number);
        limit.is_some_and(|(at, cost)| {
            let quota = limits.get(*at).map(|limit| limit.policy.quota());
            quota.is_some_and(|quota| Amount::from(*cost) > quota)
        })
    };
    let numbers = set.positions.iter().map(|(_, number)| *number);
    let denied = peeked
        .into_iter()
        .zip(numbers)
        .map(|((position, peeked), number)| {
            let exceeds = exceeds(number);
            let result = LimitResult {
                allowed: peeked.allowed && !exceeds,
                would_deny: peeked.would_deny || exceeds,
                can_retry: peeked.can_retry && !exceeds,
                ..peeked
            };
            (position, result)
        });
    Ok(denied.collect())
}

#[cfg(test)]
mod tests;
