//! What a call wants, once its caller may be gone.

use smallvec::SmallVec;

use crate::algorithm::Mode;
use crate::decision::Rejection;
use crate::identity::Identity;
use crate::key::Key;
use crate::policy::Policy;
use crate::request::{DecisionRequest, RequestedLimit};

/// The limits of a request, with nothing borrowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnedRequest {
    limits: SmallVec<[OwnedLimit; 1]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnedLimit {
    identity: Identity,
    policy: Policy,
    key: Key<'static>,
    /// In the algorithm's own unit.
    cost: u64,
    /// As of a [`Limit`].
    blocks: Option<usize>,
}

impl OwnedRequest {
    pub(crate) fn from_request(request: &DecisionRequest<'_>) -> Self {
        let owned = |limit: &RequestedLimit<'_>| OwnedLimit {
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

    /// The request for it.
    pub(crate) fn request(&self, mode: Mode) -> DecisionRequest<'_> {
        let limits = (0..self.limits.len()).filter_map(|number| self.limit(number));
        DecisionRequest {
            limits: limits.collect(),
            mode,
        }
    }

    /// Whether it is wanted by the same policies, however much of it.
    pub(crate) fn has_policies_of(&self, other: &Self) -> bool {
        let (own, others) = (self.limits.iter(), other.limits.iter());
        own.map(|limit| &limit.policy)
            .eq(others.map(|limit| &limit.policy))
    }

    /// Whether it is as much of the same limits, by whichever policies.
    pub(crate) fn has_costs_of(&self, other: &Self) -> bool {
        fn charges(wanted: &OwnedRequest) -> impl Iterator<Item = (Identity, u64)> {
            let charged = wanted.limits.iter().filter(|limit| limit.blocks.is_none());
            charged.map(|limit| (limit.identity, limit.cost))
        }
        charges(self).eq(charges(other))
    }

    /// As much of the same limits, by the policies of a call that came later.
    ///
    /// # Errors
    ///
    /// [`Rejection::NeverFits`] where that is more than these ever admit.
    pub(crate) fn under_policies_of(&self, later: &Self) -> Result<Self, Rejection> {
        let mut converted = later.clone();
        let limits = converted.limits.iter_mut().filter(|limit| limit.blocks.is_none());
        let before = self.limits.iter().filter(|limit| limit.blocks.is_none());
        for (limit, before) in limits.zip(before) {
            limit.cost = before.cost;
            if limit.cost > limit.policy.algorithm().quota() {
                return Err(Rejection::NeverFits {
                    cost: limit.policy.amount(limit.cost),
                    quota: limit.policy.quota(),
                    policy: limit.policy.clone(),
                });
            }
        }
        Ok(converted)
    }

    /// The cost and the quota of each limit that is charged, in the algorithm's own unit.
    pub(crate) fn costs(&self) -> impl Iterator<Item = (u64, u64)> {
        let limits = self.limits.iter().filter(|limit| limit.blocks.is_none());
        limits.map(|limit| (limit.cost, limit.policy.algorithm().quota()))
    }

    /// The line in which it is waited for.
    pub(crate) fn queue(&self) -> SmallVec<[Identity; 2]> {
        let limits = self.limits.iter().filter(|limit| limit.blocks.is_none());
        limits.map(|limit| limit.identity).collect()
    }

    /// Whether permits of it are borrowed.
    pub(crate) fn is_leased(&self) -> bool {
        self.limits.iter().any(|limit| limit.policy.lease().is_some())
    }

    /// One of its limits, by its number.
    fn limit(&self, number: usize) -> Option<RequestedLimit<'_>> {
        let limit = self.limits.get(number)?;
        Some(RequestedLimit {
            identity: limit.identity,
            policy: &limit.policy,
            key: (&limit.key).into(),
            cost: limit.cost,
            blocks: limit.blocks,
        })
    }

    /// For each limit that is charged a request of its own, about so many times the cost: at most
    /// the quota, of which more cannot have been used.
    pub(crate) fn each(&self, times: usize) -> impl Iterator<Item = DecisionRequest<'_>> {
        let times = u64::try_from(times).unwrap_or(u64::MAX);
        let limits = (0..self.limits.len()).filter_map(|number| self.limit(number));
        let charged = limits.filter(|limit| limit.blocks.is_none());
        charged.map(move |limit| DecisionRequest {
            limits: SmallVec::from_buf([RequestedLimit {
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
