//! A request that outlives its caller.
//!
//! The wait queue queries the store for a waiter whose future may have been dropped, so a ticket
//! owns a copy of the request without borrowed data. The copies are compared to query once for
//! several waiters with equal costs, and a waiting request is converted to the policies of a later
//! call. Limits that are blocks of penalties have no cost of their own and are left out where costs
//! are compared or converted. Tests: `wait_queue/tests.rs`, `tests/contract/waiting.rs`.

use smallvec::SmallVec;

use crate::algorithm::Mode;
use crate::decision::Rejection;
use crate::identity::Identity;
use crate::key::Key;
use crate::policy::Policy;
use crate::request::{DecisionRequest, ValidatedLimit};

/// The limits of a request, without borrowed data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnedRequest {
    limits: SmallVec<[OwnedLimit; 1]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnedLimit {
    identity: Identity,
    policy: Policy,
    key: Key<'static>,
    /// In the algorithm's unit.
    cost: u64,
    /// See [`ValidatedLimit::blocks`](crate::request::ValidatedLimit).
    blocks: Option<usize>,
}

impl OwnedRequest {
    pub(crate) fn from_request(request: &DecisionRequest<'_>) -> Self {
        let owned = |limit: &ValidatedLimit<'_>| OwnedLimit {
            identity: limit.identity,
            policy: limit.policy.clone(),
            key: limit.key.clone().into_owned(),
            cost: limit.cost,
            blocks: limit.blocks,
        };
        Self {
            limits: request.limits.iter().map(owned).collect(),
        }
    }

    /// Returns the request with its data borrowed.
    pub(crate) fn request(&self, mode: Mode) -> DecisionRequest<'_> {
        let limits = (0..self.limits.len()).filter_map(|number| self.limit(number));
        DecisionRequest {
            limits: limits.collect(),
            mode,
        }
    }

    /// Returns the limits without the blocks of penalties.
    fn charged(&self) -> impl Iterator<Item = &OwnedLimit> {
        self.limits.iter().filter(|limit| limit.blocks.is_none())
    }

    /// Returns whether both requests have the same policies, regardless of their costs.
    pub(crate) fn has_policies_of(&self, other: &Self) -> bool {
        let others = other.charged().map(|limit| &limit.policy);
        self.charged().map(|limit| &limit.policy).eq(others)
    }

    /// Returns whether both requests charge the same costs to the same limits, regardless of their
    /// policies.
    pub(crate) fn has_costs_of(&self, other: &Self) -> bool {
        fn charges(wanted: &OwnedRequest) -> impl Iterator<Item = (Identity, u64)> {
            wanted.charged().map(|limit| (limit.identity, limit.cost))
        }
        charges(self).eq(charges(other))
    }

    /// Returns this request's costs under the policies of a later call.
    ///
    /// # Errors
    ///
    /// [`Rejection::NeverFits`] if a cost exceeds the quota of the later policy.
    pub(crate) fn under_policies_of(&self, later: &Self) -> Result<Self, Rejection> {
        let limits = later.charged().cloned();
        let mut converted = Self {
            limits: limits.collect(),
        };
        for (limit, before) in converted.limits.iter_mut().zip(self.charged()) {
            limit.cost = before.cost;
            if limit.cost > limit.policy.algorithm().quota() {
                return Err(Rejection::NeverFits {
                    cost: limit.policy.amount(limit.cost),
                    quota: limit.policy.quota(),
                    policy: limit.policy.clone(),
                });
            }
        }
        // A block concerns limits with a cost, and the costs are those of this request.
        let mut request = converted.request(Mode::Charge);
        request.add_blocks();
        Ok(Self::from_request(&request))
    }

    /// Returns the cost and the quota of each charged limit, in the algorithm's unit.
    pub(crate) fn costs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.charged()
            .map(|limit| (limit.cost, limit.policy.algorithm().quota()))
    }

    /// Returns whether one of its policies leases permits.
    pub(crate) fn is_leased(&self) -> bool {
        self.limits.iter().any(|limit| limit.policy.lease().is_some())
    }

    /// Returns the limit at this index.
    fn limit(&self, number: usize) -> Option<ValidatedLimit<'_>> {
        let limit = self.limits.get(number)?;
        Some(ValidatedLimit {
            identity: limit.identity,
            policy: &limit.policy,
            key: (&limit.key).into(),
            cost: limit.cost,
            blocks: limit.blocks,
        })
    }

    /// Returns one request for each charged limit, with `times` times the cost, at most the quota,
    /// since usage cannot exceed it.
    pub(crate) fn per_limit(&self, times: usize) -> impl Iterator<Item = DecisionRequest<'_>> {
        let times = u64::try_from(times).unwrap_or(u64::MAX);
        let limits = (0..self.limits.len()).filter_map(|number| self.limit(number));
        let charged = limits.filter(|limit| limit.blocks.is_none());
        charged.map(move |limit| DecisionRequest {
            limits: SmallVec::from_buf([ValidatedLimit {
                cost: limit
                    .cost
                    .saturating_mul(times)
                    .min(limit.policy.algorithm().quota()),
                ..limit
            }]),
            mode: Mode::Peek,
        })
    }
}
