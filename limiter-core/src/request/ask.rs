//! What people ask for: one limit of a decision.

use crate::algorithm::StepResult;
use crate::decision::{Decision, DecisionFlags, LimitOutcome, Origin, Participations, Rejection};
use crate::error::ConfigError;
use crate::identity::Identity;
use crate::key::Key;
use crate::policy::Policy;
use crate::request::{RequestedLimit, identity, units};
use crate::support::one_or_many::OneOrMany;
use crate::units::{Amount, Timestamp};

/// One limit of a decision: a policy, whose permits, and how many.
///
/// ```
/// use limiter_core::{LimitRequest, Policy};
///
/// let daily = Policy::sliding_window("daily").limit(1000).window("1d").build()?;
/// let ask = LimitRequest::new(&daily, "user:7").cost(3);
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LimitRequest<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) key: Key<'a>,
    pub(crate) cost: RequestedCost,
}

/// What an ask costs. Nearly every cost is a number of 64 bits, and what is not makes no ask
/// larger.
#[derive(Clone, Debug)]
pub(crate) enum RequestedCost {
    Thousandths(u64),
    Other(Box<Result<Amount, ConfigError>>),
}

impl RequestedCost {
    const ONE: Self = Self::Thousandths(1_000);
}

impl From<Result<Amount, ConfigError>> for RequestedCost {
    #[inline]
    fn from(cost: Result<Amount, ConfigError>) -> Self {
        let thousandths = cost.as_ref().map(|cost| u64::try_from(cost.as_thousandths()));
        match thousandths {
            Ok(Ok(thousandths)) => Self::Thousandths(thousandths),
            _ => Self::Other(Box::new(cost)),
        }
    }
}

impl<'a> LimitRequest<'a> {
    /// Asks for one permit of `policy` for `key`.
    #[inline]
    pub fn new(policy: &'a Policy, key: impl Into<Key<'a>>) -> Self {
        Self {
            policy,
            key: key.into(),
            cost: RequestedCost::ONE,
        }
    }

    /// Asks for `cost` permits. Default: 1. A cost of 0 charges nothing and is always allowed.
    #[must_use]
    pub fn cost(self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        Self {
            cost: cost.try_into().map_err(Into::into).into(),
            ..self
        }
    }

    pub(crate) fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// What the store in this process needs to know of a limit that is decided alone: who it is and
    /// its cost in the algorithm's own unit. The texts stay where they are.
    #[inline]
    pub(crate) fn charge(&self) -> Result<(Identity, u64), Rejection> {
        let cost = units(self.policy, &self.cost)?;
        let identity = if self.key.is_bounded() {
            identity(self.policy, &self.key)
        } else {
            identity(self.policy, &Key::from(&self.key).bounded())
        };
        Ok((identity, cost))
    }

    /// The decision that this limit's standing alone means.
    #[inline]
    pub(crate) fn decision(&self, decided_at: Timestamp, standing: StepResult, origin: Origin) -> Decision {
        Decision {
            limits: OneOrMany::One(LimitOutcome::new(self.policy, standing)),
            decided_at,
            store_error: None,
            allowed: standing.fits(),
            origin,
            marks: DecisionFlags::default(),
            parts: Participations::default(),
        }
    }

    pub(crate) fn key(&self) -> &Key<'a> {
        &self.key
    }

    pub(crate) fn set_cost(&mut self, cost: Result<Amount, ConfigError>) {
        self.cost = cost.into();
    }

    /// The limit without a cost, and the cost as an amount that was used.
    pub(crate) fn into_used(self) -> Result<(RequestedLimit<'a>, Amount), Rejection> {
        let used = match self.cost {
            RequestedCost::Thousandths(thousandths) => Amount::from_thousandths(thousandths),
            RequestedCost::Other(used) => (*used).map_err(|error| error.for_policy(self.policy.name()))?,
        };
        let key = self.key.bounded();
        let limit = RequestedLimit {
            identity: identity(self.policy, &key),
            policy: self.policy,
            cost: 0,
            key,
            blocks: None,
        };
        Ok((limit, used))
    }

    /// At most the quota, of which more cannot have been used.
    pub(crate) fn bounded(mut self) -> Self {
        let asked = match self.cost {
            RequestedCost::Thousandths(thousandths) => Ok(Amount::from_thousandths(thousandths)),
            RequestedCost::Other(asked) => *asked,
        };
        self.cost = asked.map(|cost| cost.min(self.policy.quota())).into();
        self
    }
}

impl<'a, K: Into<Key<'a>>> From<(&'a Policy, K)> for LimitRequest<'a> {
    fn from((policy, key): (&'a Policy, K)) -> Self {
        Self::new(policy, key)
    }
}
