//! Limits that are identified without a copy of their keys.

use smallvec::SmallVec;

use crate::identity::Identity;
use crate::policy::Policy;
use crate::request::LimitRequest;

/// Maximum number of limits that are identified without an allocation. A decision on more limits is
/// rare.
const MAX_IDENTIFIED: usize = 4;

/// One limit of a decision in process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentifiedLimit<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) identity: Identity,
    /// In the algorithm's unit; at most the quota.
    pub(crate) cost: u64,
}

/// Identifies the limits of a valid request. `None` for an invalid request, for more limits than
/// usual, and for a limit whose usage may have to be converted: a
/// [`DecisionRequest`](crate::request::DecisionRequest) reports and handles these.
#[inline]
pub(crate) fn identify<'a>(
    requests: &[LimitRequest<'a>],
    any_groups: bool,
) -> Option<SmallVec<[IdentifiedLimit<'a>; MAX_IDENTIFIED]>> {
    let first = requests.first().filter(|_| requests.len() <= MAX_IDENTIFIED)?;
    let tag = first.key.tag(first.policy.escaped_group());
    let mut limits: SmallVec<[IdentifiedLimit<'_>; MAX_IDENTIFIED]> = SmallVec::new();
    for request in requests {
        let policy = request.policy;
        let is_in_group = any_groups || request.key.tag(policy.escaped_group()) == tag;
        if !is_in_group || policy.is_scaled() {
            return None;
        }
        let (identity, cost) = request.charge().ok()?;
        if limits.iter().any(|earlier| earlier.identity == identity) {
            return None;
        }
        limits.push(IdentifiedLimit {
            policy,
            identity,
            cost,
        });
    }
    Some(limits)
}
