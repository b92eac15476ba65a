//! The limits of a request that are decided atomically.
//!
//! Limits with one tag form a set. The same policy and key twice is one limit, which is charged the
//! sum of its costs; policies of one name with different numbers, which descriptors of Envoy can
//! contain, are limits of different sets. A set has at most [`MAX_ATOMIC`] limits, the most of one
//! atomic decision; further limits of the tag form further sets. Tests: `tests/all_or_nothing.rs`.

use std::collections::HashMap;

use limiter_core::{Amount, Key, LimitRequest, Limiter, Rejection};

use crate::gateway::charge::RequestedLimit;

/// The largest number of limits in one atomic decision.
pub(crate) const MAX_ATOMIC: usize = 16;

/// The limits that are decided atomically, by their positions in the request.
#[derive(Debug, Default)]
pub(crate) struct AtomicSet {
    /// One position of each limit, and its cost summed over all positions.
    pub(super) limits: Vec<(usize, Amount)>,
    /// All positions, each with its number in `limits`.
    pub(super) positions: Vec<(usize, usize)>,
}

impl AtomicSet {
    /// Returns the set of the only limit of a request.
    pub(super) fn of_one(cost: Amount) -> Self {
        Self {
            limits: vec![(0, cost)],
            positions: vec![(0, 0)],
        }
    }

    /// Returns the positions of its limits in the request, one for each limit.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = usize> + '_ {
        self.limits.iter().map(|(at, _)| *at)
    }

    /// Returns the positions of its limits in the request, with repetitions.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.positions.iter().map(|(at, _)| *at)
    }

    /// Returns the limits with their costs.
    pub(super) fn requests<'a>(
        &'a self,
        limits: &'a [RequestedLimit],
    ) -> impl Iterator<Item = (LimitRequest<'a>, Amount)> {
        self.limits.iter().filter_map(|(at, cost)| {
            let limit = limits.get(*at)?;
            Some((LimitRequest::new(&limit.policy, &limit.key), *cost))
        })
    }

    /// Returns whether the cost of a limit exceeds its quota.
    pub(crate) fn exceeds_quota(&self, number: usize, limits: &[RequestedLimit]) -> bool {
        let limit = self.limits.get(number);
        limit.is_some_and(|(at, cost)| limits.get(*at).is_some_and(|limit| *cost > limit.policy.quota()))
    }

    /// Returns whether a limit is enforced and its cost exceeds its quota, so that no store can
    /// allow it. The library rejects the peek of such a cost before it calls the store.
    pub(crate) async fn never_fits(
        &self,
        limiter: &Limiter,
        number: usize,
        limits: &[RequestedLimit],
    ) -> bool {
        if !self.exceeds_quota(number, limits) {
            return false;
        }
        let only = self.charges(limits).nth(number);
        matches!(limiter.peek_all(only).await, Err(Rejection::NeverFits { .. }))
    }

    /// Returns the requests that charge its limits.
    pub(crate) fn charges<'a>(
        &'a self,
        limits: &'a [RequestedLimit],
    ) -> impl Iterator<Item = LimitRequest<'a>> {
        self.requests(limits).map(|(request, cost)| request.cost(cost))
    }
}

/// Divides limits into atomic sets, in the order of their first limits.
pub(crate) fn atomic_sets(
    limits: &[RequestedLimit],
    positions: impl IntoIterator<Item = usize>,
) -> Vec<AtomicSet> {
    if let [only] = limits {
        return positions
            .into_iter()
            .map(|_| AtomicSet::of_one(only.cost))
            .collect();
    }
    let mut sets: Vec<AtomicSet> = Vec::new();
    let mut by_tag: HashMap<Key<'static>, usize> = HashMap::new();
    let mut numbers: HashMap<(&str, &Key<'static>), (usize, usize)> = HashMap::new();
    let positions = positions.into_iter();
    for (position, limit) in positions.filter_map(|at| Some((at, limits.get(at)?))) {
        let identity = (limit.policy.name(), &limit.key);
        let known = numbers.get(&identity).copied();
        let equal = known.filter(|(set, number)| {
            let first = sets.get(*set).and_then(|set| set.limits.get(*number));
            let first = first.and_then(|(at, _)| limits.get(*at));
            first.is_some_and(|first| first.policy == limit.policy)
        });
        if let Some((set, number)) = equal
            && let Some(set) = sets.get_mut(set)
        {
            if let Some((_, cost)) = set.limits.get_mut(number) {
                *cost = sum(*cost, limit.cost);
            }
            set.positions.push((position, number));
            continue;
        }
        let tag = tag(limit);
        let place = match by_tag.get(&tag) {
            // A decision cannot contain a limit with two policies.
            Some(at) if known.is_none() && sets.get(*at).is_some_and(|set| set.limits.len() < MAX_ATOMIC) => {
                *at
            }
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

/// Returns the tag that a limit must share with others for an atomic decision.
fn tag(limit: &RequestedLimit) -> Key<'static> {
    match limit.group.as_deref().or(limit.policy.group()) {
        Some(group) => Key::from(group).into_owned(),
        None => limit.key.clone(),
    }
}

/// Returns the sum of two amounts, rounded down to whole permits if it exceeds the range of
/// thousandths.
pub(crate) fn sum(one: Amount, other: Amount) -> Amount {
    let thousandths = one.as_thousandths().saturating_add(other.as_thousandths());
    match u64::try_from(thousandths) {
        Ok(thousandths) => Amount::from_thousandths(thousandths),
        Err(_) => Amount::from(u64::try_from(thousandths / 1_000).unwrap_or(u64::MAX)),
    }
}
