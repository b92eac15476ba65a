//! Limits that are identified without a copy of their keys.

use crate::identity::Identity;
use crate::policy::Policy;
use crate::request::{LimitRequest, units};

/// One limit of a decision in process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentifiedLimit<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) identity: Identity,
    /// In the algorithm's unit; at most the quota.
    pub(crate) cost: u64,
}

impl<'a> IdentifiedLimit<'a> {
    /// Identifies the limits of a valid request. `None` for an invalid request, for a key that is
    /// stored hashed, and for a limit whose usage may have to be converted: a
    /// [`DecisionRequest`](crate::request::DecisionRequest) reports and handles these.
    ///
    /// A key that all limits share is hashed once.
    #[inline]
    pub(crate) fn identify_all<const N: usize>(
        requests: &[LimitRequest<'a>; N],
        any_groups: bool,
    ) -> Option<[Self; N]> {
        let first = requests.first()?;
        let (first_group, first_key) = (first.group(), first.key.as_str());
        let first_hash = first.policy.identity_prefix().key_hash(first_group, first_key);
        let mut limits = [Self {
            policy: first.policy,
            identity: first.policy.identity_prefix().identity_of(first_hash),
            cost: 0,
        }; N];
        for (number, request) in requests.iter().enumerate() {
            let policy = request.policy;
            if policy.is_scaled() || !request.key.is_bounded() {
                return None;
            }
            let (group, key) = (request.group(), request.key.as_str());
            let hash = if group == first_group && is_same_text(key, first_key) {
                first_hash
            } else if any_groups || (group.is_some() && group == first_group) {
                policy.identity_prefix().key_hash(group, key)
            } else {
                return None;
            };
            let identity = policy.identity_prefix().identity_of(hash);
            let (earlier, rest) = limits.split_at_mut_checked(number)?;
            if earlier.iter().any(|earlier| earlier.identity == identity) {
                return None;
            }
            *rest.first_mut()? = Self {
                policy,
                identity,
                cost: units(policy, &request.cost).ok()?,
            };
        }
        Some(limits)
    }
}

/// Compares texts, most of which are at the same place.
#[inline]
fn is_same_text(one: &str, other: &str) -> bool {
    (one.as_ptr() == other.as_ptr() && one.len() == other.len()) || one == other
}
